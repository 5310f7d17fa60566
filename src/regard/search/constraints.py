"""Terms that an answer must contain, and how far a hypothesis has come with them.

Each constraint has several forms, which are sequences of tokens. It is met when one of its forms is in the answer as
whole words. What is met and what has begun is a function of the tokens said so far, so two hypotheses never differ in
it alone. A form comes as often as constraints ask for it: what would complete it once more is forbidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple


class Form(NamedTuple):
    """One way to say a term."""

    tokens: tuple[int, ...]
    whole: bool = True  # no token may follow that continues its last word
    first: bool = False  # it may only begin an answer, or follow a mark
    joined: bool = False  # it is written without a space, so it may only follow a mark such as a quotation mark
    opening: int = 1  # the first tokens, which show whether the form fits its place; 2 if the first is a capital letter


class Constraint(NamedTuple):
    """A term that must be in an answer, and the tokens of the source that it translates."""

    forms: tuple[Form, ...]
    source: tuple[int, ...] = ()


class Outline(NamedTuple):
    """An answer that was found without constraints, and for each constraint the tokens of it that the term replaces."""

    tokens: tuple[int, ...]
    places: tuple[tuple[int, int], ...]  # (first, last + 1)


@dataclass(frozen=True)
class TokenKinds:
    """What tracking must know of the vocabulary."""

    continuing: frozenset[int] = frozenset()  # tokens that continue a word
    marks: frozenset[int] = (
        frozenset()
    )  # tokens without letters and digits, after which a word may follow without space
    capital: int | None = None  # the token that capitalises the next word


class Match(NamedTuple):
    """A form that has begun: its constraint, its tokens so far, and the log-probability of all after its opening."""

    constraint: int
    form: Form
    length: int
    inner: float = 0.0

    @property
    def next(self) -> int:
        return self.form.tokens[self.length]


@dataclass(frozen=True)
class Progress:
    """How far a hypothesis has come with the constraints of its sentence; sets of constraints are bit masks."""

    constraints: Constraints
    met: int = 0  # complete, those of `ended` included
    ended: int = 0  # complete with the last token, so that a continuation of its word would undo it
    begun: tuple[Match, ...] = ()
    inner: float = 0.0  # the log-probability inside of complete forms: of all tokens after their opening
    ended_inner: float = 0.0  # the part of it that belongs to `ended`
    only_marks: bool = True  # whether nothing but marks was said, so that a word would be the first
    after_mark: bool = False
    after_capital: bool = False

    @cached_property
    def complete(self) -> bool:
        return self.met == self.constraints.all

    @cached_property
    def open(self) -> tuple[Match, ...]:
        """Forms that have begun, of constraints that are not met."""
        return tuple(match for match in self.begun if not self.met >> match.constraint & 1)

    @cached_property
    def rank(self) -> int:
        """The number of constraints that are met or have begun; hypotheses compete with others of their rank."""
        return self.met.bit_count() + (1 if self.open else 0)

    @cached_property
    def credit(self) -> float:
        """What the rest of each form costs wherever it begins. Without it, hypotheses that have begun a form late or
        not at all would displace those that go through with it."""
        return -self.inner - max((match.length, match.inner) for match in self.open)[1] if self.open else -self.inner

    @cached_property
    def needed(self) -> int:
        """The fewest tokens to a complete answer, its end included."""
        left = 1
        for number, constraint in enumerate(self.constraints.each):
            if not self.met >> number & 1:
                begun = max((m.length for m in self.open if m.constraint == number), default=0)
                left += max(1, min(len(form.tokens) for form in constraint.forms) - begun)
        return left

    @cached_property
    def steps(self) -> frozenset[int]:
        """The tokens that begin or continue a form of a constraint that is not met."""
        return frozenset(match.next for match in self._expected if not self._has_all(match))

    def steps_of(self, constraints: int) -> frozenset[int]:
        """The tokens that continue a form of these constraints; if none has begun, those that begin one."""
        for listed in (self.begun, self._beginnings):
            fitting = [match for match in listed if constraints >> match.constraint & 1 and not self._has_all(match)]
            if fitting:
                return frozenset(match.next for match in fitting)
        return frozenset()

    @cached_property
    def forbidden(self) -> frozenset[int]:
        """The tokens that would say a term once more than asked for."""
        last = [match for match in self._expected if match.length == len(match.form.tokens) - 1]
        asked = {match.next for match in last if not self._has_all(match)}
        return frozenset(match.next for match in last) - asked

    def after(self, token: int, log_p: float) -> Progress:
        """The progress after one more token, which has this log-probability."""
        if token in self.constraints.relevant:
            return self._advanced(token, log_p)
        kinds = self.constraints.kinds
        if token == kinds.capital:
            return replace(self._after_other(False, False), only_marks=self.only_marks, after_capital=True)
        return self._after_other(token in kinds.continuing, token in kinds.marks)

    def _after_other(self, continuing: bool, mark: bool) -> Progress:
        """The progress after a token that is in no form: the same for all that continue a word, and for all others."""
        known = self._known.get((continuing, mark))
        if known is None:
            marks, capital = self.only_marks and mark, self.after_capital and mark
            same = not (self.begun or self.ended) and self.after_mark == mark
            if same and (self.only_marks, self.after_capital) == (marks, capital):
                known = self
            else:
                confirmed = self._confirmed(continuing)
                known = replace(confirmed, begun=(), only_marks=marks, after_mark=mark, after_capital=capital)
            self._known[continuing, mark] = known
        return known

    @cached_property
    def _known(self) -> dict[tuple[bool, bool], Progress]:
        return {}

    def _advanced(self, token: int, log_p: float) -> Progress:
        kinds = self.constraints.kinds
        before, mark = self._confirmed(token in kinds.continuing), token in kinds.marks
        longer = [
            match._replace(
                length=match.length + 1, inner=match.inner + (log_p if match.length >= match.form.opening else 0.0)
            )
            for match in self._expected
            if match.next == token
        ]
        done = [match for match in longer if match.length == len(match.form.tokens)]
        met, ended, inner, terms = before.met, 0, 0.0, set[tuple[Form, ...]]()
        for match in sorted(done, key=lambda each: -each.length):
            term = self.constraints.each[match.constraint].forms
            if term not in terms and not met >> match.constraint & 1:  # a term counts once, whichever forms end here
                terms.add(term)
                met |= 1 << match.constraint
                ended |= match.form.whole << match.constraint
                inner += match.inner
        return Progress(
            self.constraints,
            met,
            ended,
            tuple(match for match in longer if match.length < len(match.form.tokens)),
            before.inner + inner,
            inner,
            self.only_marks and (mark or token == kinds.capital),
            mark,
            token == kinds.capital or (self.after_capital and mark),
        )

    def longest_before(self, token: int) -> int:
        """The tokens before this one of the longest form that it completes."""
        return max(
            (m.length for m in self._expected if m.next == token and m.length + 1 == len(m.form.tokens)), default=0
        )

    def _confirmed(self, continuing: bool) -> Progress:
        """The progress if the next token continues the last word or not."""
        if not self.ended:
            return self
        undone, cost = (self.ended, self.ended_inner) if continuing else (0, 0.0)
        return replace(self, met=self.met & ~undone, ended=0, inner=self.inner - cost, ended_inner=0.0)

    @property
    def _beginnings(self) -> Sequence[Match]:
        return self.constraints.beginnings(self.only_marks, self.after_mark, self.after_capital)

    @property
    def _expected(self) -> Sequence[Match]:
        """The forms that the next token may begin or continue."""
        return (*self.begun, *self._beginnings)

    def _has_all(self, match: Match) -> bool:
        """Whether a form has been said as often as asked for when its next token comes, which may undo the last one."""
        undone = self.ended if match.next in self.constraints.kinds.continuing else 0
        return all((self.met & ~undone) >> number & 1 for number in self.constraints.asking[match.form.tokens])


@dataclass(frozen=True)
class Constraints:
    """The constraints of one sentence."""

    each: tuple[Constraint, ...]
    kinds: TokenKinds = field(default=TokenKinds(), repr=False)
    outline: Outline | None = None  # what the answer follows where its terms let it, if their places are known

    @property
    def fewest_tokens(self) -> int:
        """The tokens of the shortest forms and the end token."""
        return 1 + sum(min(len(form.tokens) for form in each.forms) for each in self.each)

    @cached_property
    def all(self) -> int:
        return (1 << len(self.each)) - 1

    @cached_property
    def forms(self) -> int:
        return sum(len(each.forms) for each in self.each)

    @cached_property
    def relevant(self) -> frozenset[int]:
        """The tokens of all forms."""
        return frozenset(token for each in self.each for form in each.forms for token in form.tokens)

    @cached_property
    def asking(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The constraints that have a form, by its tokens."""
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        for number, constraint in enumerate(self.each):
            for tokens in {form.tokens for form in constraint.forms}:
                found[tokens] = (*found.get(tokens, ()), number)
        return found

    def beginnings(self, first: bool, mark: bool, capitalised: bool) -> list[Match]:
        """The forms that may begin, by whether a word would be the first of the answer, whether it follows a mark, and
        whether a capital token came before that mark: then those that begin with a capital have begun there."""
        key = first, mark, capitalised
        if key not in self._beginnings:
            self._beginnings[key] = [
                Match(number, form, int(capitalised))
                for number, each in enumerate(self.each)
                for form in each.forms
                if (first or mark or not form.first) and (mark or not form.joined)
                if not capitalised or form.tokens[0] == self.kinds.capital
            ]
        return self._beginnings[key]

    @cached_property
    def _beginnings(self) -> dict[tuple[bool, bool, bool], list[Match]]:
        return {}
