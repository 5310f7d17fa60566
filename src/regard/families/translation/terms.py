"""The places of terms: the attention of a free answer shows which of its words a term replaces.

An answer is searched freely first. If it says all terms as often as asked for, it stays. Otherwise it becomes the
outline of a second search: a term that it lacks belongs where a word looks at the source of the term.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from regard.data.tokenizers.base import SPACE
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import DataError, UsageError
from regard.families.translation.glossary import Glossary, Match, Term, is_unspaced
from regard.look.forced_pass import within
from regard.search.constraints import Constraint, Constraints, Form, Outline, Progress, TokenKinds
from regard.search.search import Hypothesis

MOST_KNOWN = 10_000  # terms whose tokens are kept
MARK = "("  # written before a word to see how the tokenizer joins a word to a mark


class TermUse(NamedTuple):
    """A term in a source text and in its translation, by characters; a target of -1 if the translation lacks it."""

    term: Term
    start: int
    end: int
    target_start: int
    target_end: int

    def to_json(self) -> dict[str, int]:
        return {key: value for key, value in self._asdict().items() if key != "term"}


class TermEncoder:
    """Makes constraints of the terms in a sentence, by the tokenizer of a model."""

    def __init__(self, tokenizer: PairTokenizer):
        self.tokenizer = tokenizer
        self._spelled: dict[str, str] = {}
        self._known_forms: dict[tuple[Term, tuple[str, ...], tuple[str, ...]], tuple[Form, ...]] = {}

    @cached_property
    def kinds(self) -> TokenKinds:
        """Which tokens of the target continue a word, and which are marks."""
        target = self.tokenizer.target
        words = {
            i: piece for i, piece in enumerate(target.vocabulary) if i not in target.specials and i != target.capital
        }
        continuing = {i for i, piece in words.items() if piece[:1].isalnum()}
        marks = {i for i, piece in words.items() if piece.strip(SPACE) and not any(map(str.isalnum, piece))}
        return TokenKinds(frozenset(continuing), frozenset(marks), target.capital)

    def check(self, glossary: Glossary) -> None:
        """Refuse a glossary with a term that the model cannot write."""
        for term in glossary.terms:
            for form in term.targets:
                self._encode(form, term)

    def constraints(self, matches: Sequence[Match]) -> Constraints:
        """What the translation of a sentence with these terms must contain."""
        return Constraints(tuple(Constraint(self._forms(match)) for match in matches), self.kinds)

    def placed(self, constraints: Constraints, sentence: str, matches: Sequence[Match], to: str) -> Constraints:
        """The constraints of a sentence with the tokens of the source that their terms translate."""
        words_of = within(self.tokenizer.source.words_in(sentence), len(sentence.split()))
        before = len(self.tokenizer.tag(to))
        found = []
        for constraint, match in zip(constraints.each, matches, strict=True):
            first = len(sentence[: match.start].split())
            first -= match.start > 0 and not sentence[match.start - 1].isspace()  # it begins within a word
            words = range(first, first + len(sentence[match.start : match.end].split()))
            places = tuple(before + place for place, word in enumerate(words_of) if word in words)
            found.append(constraint._replace(source=places))
        return replace(constraints, each=tuple(found))

    def written(self, text: str, matches: Sequence[Match]) -> str:
        """The text with terms spelled as the glossary does, where the model's vocabulary cannot (iPhone)."""
        for match in matches:
            for form in (*match.forms, *match.capitalised):
                said = self._said(form)
                if said and said != form and _find(text, (form,), 0) is None and (place := _find(text, (said,), 0)):
                    text = text[: place[0]] + form + text[place[1] :]
        return text

    def _said(self, form: str) -> str:
        """A form as the model's vocabulary spells it."""
        if form not in self._spelled:
            if len(self._spelled) >= MOST_KNOWN:
                self._spelled.clear()
            self._spelled[form] = self.tokenizer.target.decode(self.tokenizer.target.encode([form])[0])
        return self._spelled[form]

    def _forms(self, match: Match) -> tuple[Form, ...]:
        key = match.term, match.forms, match.capitalised
        if key not in self._known_forms:
            if len(self._known_forms) >= MOST_KNOWN:
                self._known_forms.clear()
            self._known_forms[key] = self._encoded(match)
        return self._known_forms[key]

    def _encoded(self, match: Match) -> tuple[Form, ...]:
        forms: list[Form] = []
        for texts, first in ((match.forms, False), (match.capitalised, True)):
            for text in texts:
                if text not in match.term.targets and not match.term.kept and not self._writes(text):
                    continue  # capitals that nobody listed
                whole = not is_unspaced(text[-1]) and text[-1].isalnum()
                tokens, joined = tuple(self._encode(text, match.term)), self._joined(text)
                opening = 2 if tokens[0] == self.tokenizer.target.capital else 1
                forms.append(Form(tokens, whole, first, opening=opening))
                if joined and joined != tokens:
                    forms.append(Form(joined, whole, first, joined=True))
        return tuple(dict.fromkeys(forms))

    def _writes(self, form: str) -> bool:
        (ids,) = self.tokenizer.target.encode([form])
        return bool(ids) and self.tokenizer.target.unknown not in ids

    def _encode(self, form: str, term: Term) -> list[int]:
        target = self.tokenizer.target
        (ids,) = target.encode([form])
        if not ids or target.unknown in ids:
            raise DataError(f"{term.where}: the model cannot write {form!r}: its vocabulary lacks a part of it")
        return ids

    def _joined(self, form: str) -> tuple[int, ...]:
        """The tokens of a form after a mark without a space; none if the tokenizer does not keep the mark apart."""
        target = self.tokenizer.target
        (ids,) = target.encode([MARK + form])
        alone = ids and target.vocabulary[ids[0]].strip(SPACE) == MARK
        return tuple(ids[1:]) if alone and target.unknown not in ids else ()


def as_glossary(given: Any) -> Glossary:
    """A glossary as callers give it: one, a mapping of terms, or none."""
    if given is None or isinstance(given, Glossary):
        return given or Glossary()
    if isinstance(given, Mapping):
        return Glossary.of(given)
    raise UsageError(f"a glossary is a Glossary or a mapping of terms; {given!r:.60} came; read files by Glossary.read")


def term_uses(source: str, text: str, glossary: Glossary) -> list[TermUse]:
    """The terms of a source, and where its translation has them: each place of the translation once."""
    taken: list[tuple[int, int]] = []
    uses = []
    for match in glossary.find(source):
        place, start = None, 0
        while (place := _find(text, (*match.forms, *match.capitalised), start)) in taken and place:
            start = place[1]
        taken += [place] if place else []
        uses.append(TermUse(match.term, match.start, match.end, *(place or (-1, -1))))
    return uses


def _find(text: str, forms: Sequence[str], start: int) -> tuple[int, int] | None:
    """The first of these forms in a text as whole words, from a character on; of several there, the longest."""
    each = "|".join(r"\s+".join(map(re.escape, form.split())) for form in sorted(forms, key=len, reverse=True))
    unspaced = any(is_unspaced(form[-1]) for form in forms)
    found = re.compile(f"(?:{each})" if unspaced else rf"(?<!\w)(?:{each})(?!\w)").search(text, start)
    return found and found.span()


FREE = 2  # tokens before the first missing term that may still change, for its article


@dataclass(frozen=True)
class Draft:
    """A free answer to a sentence, with the terms that it should have."""

    sentence: int
    source: str
    constraints: Constraints
    answer: Hypothesis
    given: int  # the number of tokens that were given as the beginning of the answer

    @property
    def is_right(self) -> bool:
        """Whether each term is said as often as asked for."""
        return len(self.said) == len(self.constraints.each) and not self._read[1]

    @property
    def said(self) -> dict[int, tuple[int, int]]:
        """The tokens (first, last + 1) of the terms that are said, by the number of the constraint."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[dict[int, tuple[int, int]], bool]:
        """The terms that are said, and whether one is said more often than asked for."""
        progress, said, again = Progress(self.constraints), dict[int, tuple[int, int]](), False
        for place, token in enumerate(self.answer.tokens):
            if token in self.constraints.relevant:
                again |= place >= self.given and token in progress.forbidden
            after = progress.after(token, 0.0)
            if after.met == progress.met:
                progress = after
                continue
            for number in range(len(self.constraints.each)):
                if after.met >> number & 1 and not progress.met >> number & 1:
                    said[number] = place - progress.longest_before(token), place + 1
                elif not after.met >> number & 1:
                    said.pop(number, None)
            progress = after
        return said, again

    def beginning(self, outline: Outline) -> list[int]:
        """The tokens that an answer with all terms has too: up to a little before the first that is missing."""
        said, again = self._read
        missing = [start for start, end in outline.places if (start, end) not in said.values()]
        first = 0 if again else min(missing) - FREE
        return self.answer.tokens[: max(self.given, first)]

    def with_tokens(self, tokens: list[int]) -> Draft:
        """Another answer to the same sentence."""
        return replace(self, answer=replace(self.answer, tokens=tokens))

    def outline(self, weights: Float[np.ndarray, "T S"], words_of: Sequence[int]) -> Outline:
        """This answer as the outline of another one, with the places of terms by the attention of its tokens;
        `words_of` has the word of each token."""
        each = self.constraints.each
        places = _said_places(self, weights)
        taken = {token for start, end in places.values() for token in range(start, end)}
        for number in sorted(set(range(len(each))) - places.keys()):
            places[number] = self._place(weights[:, list(each[number].source)].sum(axis=1), words_of, taken)
            taken |= set(range(*places[number]))
        return Outline(tuple(self.answer.tokens), tuple(places[number] for number in range(len(each))))

    def _place(self, looks: Float[np.ndarray, T], words_of: Sequence[int], taken: set[int]) -> tuple[int, int]:
        """The tokens of the word that looks most at the source of a term, without marks; the end if no word is left."""
        tokens, marks = self.answer.tokens, self.constraints.kinds.marks
        words: dict[int, list[int]] = {}
        for place, word in enumerate(words_of):
            if place >= self.given and place not in taken and word >= 0 and tokens[place] not in marks:
                words.setdefault(word, []).append(place)
        if not words:
            return len(tokens), len(tokens)
        best = max(words.values(), key=lambda places: float(looks[places].max()))
        return best[0], best[-1] + 1


def _said_places(draft: Draft, weights: Float[np.ndarray, "T S"]) -> dict[int, tuple[int, int]]:
    """The places of the terms that are said. Of constraints with the same forms, attention decides which are met."""
    each, found = draft.constraints.each, dict[int, tuple[int, int]]()
    for number, (start, end) in draft.said.items():
        alike = [n for n in range(len(each)) if each[n].forms == each[number].forms and n not in found]
        found[max(alike, key=lambda n: float(weights[start:end, list(each[n].source)].sum()))] = start, end
    return found
