"""One search decodes every model: greedy, beam, sampling, over one small protocol.

S sentences are decoded together, W hypotheses each, as a grid. A hypothesis is scored by its log-probability divided by
its length (the end token counted) to the power of `length_penalty`: 0 prefers short answers, 1 is the mean per token.
The prefix is never fed again: the model's state remembers it. Every decision about a sentence depends on that sentence
alone, so a batch yields what its sentences yield one by one.

Answers come in order of their scores. A search prefers answers that ended by themselves to those that the length limit
cut: the first is an ended one if there is any, cut ones are given only where too few ended, and none that scores better
than the first. How many answers are asked for never changes the first: see `search`. Drawn answers are all given.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.inference.decoding.candidates import WIDEST, Candidates, Choosing, Grid, SearchSettings, Turn, Vocabulary

WIDENINGS = 4  # how many widths are tried to find as many answers as are asked for
Stop = Callable[[int, list[int]], bool]  # (number of the sentence, tokens of an answer) -> whether it ends here


@runtime_checkable
class DecoderState(Protocol):
    """A decoding in progress; see `Steps`."""

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        """Hypothesis w of sentence s continues its previous hypothesis origin[s, w]; the width may change."""
        ...

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        """Drop all but these sentences."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A decoding that prepares for how many hypotheses of a sentence there will be, and for how many steps at most."""

    def expect(self, width: int, steps: int) -> None: ...


@runtime_checkable
class Steps(Protocol):
    """What a model must offer to be decoded."""

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> DecoderState: ...

    def step(self, tokens: Int[Tensor, "S W"], state: DecoderState) -> Float[Tensor, "S W V"]:
        """Feed one token to every hypothesis, advancing the state; the logits of the next token."""
        ...


@runtime_checkable
class Run(Protocol):
    """A search that goes on by itself, ahead of who looks at it."""

    def turns(self) -> Iterable[Turn]:
        """What was decided next: one turn at least, on the host."""
        ...


@runtime_checkable
class Runner(Steps, Protocol):
    """A model that takes whole steps of a search by itself (graphs.py)."""

    def begin(self, search: "Search") -> Run | None:
        """Take over a search that is about to make its first step; None if that cannot be."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """One decoded answer: its tokens without start and end, its score, and whether it ended by itself."""

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool


class Ensemble:
    """Several models that decide together: the mean of their probabilities at every step."""

    def __init__(self, members: Sequence[Steps]):
        self.members = members

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> "EnsembleState":
        return EnsembleState([member.start(source, source_mask) for member in self.members])

    def step(self, tokens: Int[Tensor, "S W"], state: "EnsembleState") -> Float[Tensor, "S W V"]:
        logits = [member.step(tokens, own) for member, own in zip(self.members, state.states, strict=True)]
        return torch.stack([each.log_softmax(dim=-1) for each in logits]).logsumexp(dim=0) - math.log(len(logits))

    def fixed(self, state: "EnsembleState", width: int, room: Sequence[Any]) -> "EnsembleState":
        """A state of fixed shape of every member (graphs.py)."""
        members: Iterable[tuple[Any, Any, Any]] = zip(self.members, state.states, room, strict=True)
        return EnsembleState([member.fixed(own, width, each) for member, own, each in members])


class EnsembleState:
    """The states of an ensemble's members, moved together."""

    def __init__(self, states: list[Any]):
        self.states = states

    def room(self, width: int, steps: int) -> tuple[Any, ...]:
        return tuple(state.room(width, steps) for state in self.states)

    def restart(self, state: "EnsembleState") -> None:
        for mine, other in zip(self.states, state.states, strict=True):
            mine.restart(other)

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        for state in self.states:
            state.reorder(origin)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        for state in self.states:
            state.keep(sentences)


class Search:
    """A search in progress. `advance` takes one step; `last` and `live` let a caller stream tokens or draw the tree.

    A model that continues its source has read it up to its last token: that token is given as `first`, and fed in place
    of the vocabulary's start. `stop` may end answers before their end token. With `below`, one answer of each sentence,
    only other answers are found that score no better.
    """

    def __init__(
        self,
        steps: Steps,
        source: Int[Tensor, "S L"],
        source_mask: Bool[Tensor, "S L"],
        settings: SearchSettings,
        vocabulary: Vocabulary,
        prefixes: Sequence[Sequence[int]] | None = None,
        *,
        first: Int[Tensor, "S"] | None = None,
        stop: Stop | None = None,
        below: Sequence[Hypothesis] | None = None,
    ):
        samples = settings.n_best if settings.sample else 1
        self.state = steps.start(source, source_mask)
        if samples > 1:  # every sample is a search of its own; their source is read once
            rows = torch.arange(len(source), device=source.device).repeat_interleave(samples)
            self.state.keep(rows)
            source, source_mask, first = source[rows], source_mask[rows], None if first is None else first[rows]
            prefixes = None if prefixes is None else [prefix for prefix in prefixes for _ in range(samples)]
        count, device = len(source), source.device
        self.steps, self.settings, self.vocabulary, self.samples = steps, settings, vocabulary, samples
        self.width, self.choosing = settings.width, Choosing(settings, vocabulary, device)
        self.limits = [settings.limit(length) for length in source_mask.sum(1).tolist()]
        self.prefixes, self.stop, self.below = prefixes, stop, below
        if isinstance(self.state, Foreseeing):
            self.state.expect(self.width, max(self.limits, default=0))
        self.noise = _noise(source, source_mask, settings) if settings.sample else []
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.sentence = list(range(count))  # which sentence each row of the grid decodes
        self.finished = [False] * count  # by row
        start = torch.full((count,), vocabulary.start, dtype=torch.long, device=device) if first is None else first
        self.tokens = start[:, None]
        # what a repetition repeats besides the answer itself; padding must not count
        self.prompt = self.tokens[:, :0] if first is None else torch.where(source_mask, source, start[:, None])
        self.totals = torch.zeros(count, 1, device=device)
        self.history = torch.empty(count, 1, 0, dtype=torch.long, device=device)
        self.last: Candidates | None = None
        self.live: Candidates | None = None  # those of `last` that go on
        self.ended = torch.zeros(0, dtype=torch.bool)  # which of `last` end an answer
        self.ahead: deque[Turn] = deque()
        self.run = steps.begin(self) if isinstance(steps, Runner) else None
        if self.run is not None:  # all that is left to do here is to read the turns
            self.totals = torch.full((count, self.width), -math.inf)
            self.totals[:, 0] = 0.0
            self.history = torch.empty(count, self.width, 0, dtype=torch.long)

    @property
    def done(self) -> bool:
        return all(self.finished)

    @torch.inference_mode()
    def advance(self) -> None:
        """Add one token to every live hypothesis."""
        if self.run is None:
            self.ahead.append(self._turn())
        elif not self.ahead:
            self.ahead.extend(self.run.turns())
        self.last, self.ended, self.live = self.ahead.popleft()
        if self.run is not None and self.stop is not None:
            self.ended |= self._stopped(self.last)
        self._harvest(self.last)
        if not self.done:
            self._continue(self.live)
            self._drop_finished_rows()

    def common(self, sentence: int = 0) -> list[int]:
        """The tokens that every hypothesis of a sentence begins with, open or ended: no answer can differ in them."""
        ended = [hypothesis.tokens for hypothesis in self.found[sentence]]
        row = self.sentence.index(sentence) if sentence in self.sentence else None
        open_ones = self.history[row][self.totals[row].isfinite()].tolist() if row is not None else []
        common: list[int] = []
        for tokens in zip(*ended, *open_ones, strict=False):
            if len(set(tokens)) > 1:
                break
            common.append(tokens[0])
        return common

    def results(self) -> list[list[Hypothesis]]:
        """The best hypotheses of every sentence, best first."""
        groups = [
            [hypothesis for found in self.found[first : first + self.samples] for hypothesis in found]
            for first in range(0, len(self.found), self.samples)
        ]
        return [self._in_order(group)[: self.settings.n_best] for group in groups]

    def _in_order(self, found: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Hypotheses by score; of a search, those that ended, and cut ones where these are too few."""
        found = sorted(found, key=lambda each: -each.score)
        ended = [each for each in found if each.finished]
        if self.settings.sample or not ended:
            return found
        cut = [each for each in found if not each.finished and (self.below or each.score <= ended[0].score)]
        return sorted([*ended, *cut[: max(0, self.settings.n_best - len(ended))]], key=lambda each: -each.score)

    def _turn(self) -> Turn:
        """One step of the model, and what comes of it."""
        length = self.history.shape[2]
        forced, draws = self.forced(length), None
        if self.settings.sample:
            draws = torch.tensor([[self.noise[sentence].random()] for sentence in self.sentence]).to(self.totals)
        grid = Grid(self.totals, self.history, length, self.prompt)
        candidates = self.choosing(self.steps.step(self.tokens, self.state), grid, forced, draws)
        ended = candidates.token == self.vocabulary.end
        if self.stop is not None:
            ended |= self._stopped(candidates).to(ended.device)
        return Turn(candidates, ended, self.choosing.live(candidates, ended))

    def forced(self, length: int) -> Int[Tensor, "S"] | None:
        """The tokens that must come after so many; -1 where any may."""
        if not self.prefixes:
            return None
        prefixes = [self.prefixes[sentence] for sentence in self.sentence]
        tokens = [prefix[length] if length < len(prefix) else -1 for prefix in prefixes]
        return torch.tensor(tokens, device=self.totals.device) if max(tokens) >= 0 else None

    def _stopped(self, candidates: Candidates) -> Bool[Tensor, "S C"]:
        """Which candidates end an answer because the caller says so."""
        assert self.stop is not None
        rows = []
        for row, sentence in enumerate(self.sentence):
            pairs = zip(candidates.origin[row].tolist(), candidates.token[row].tolist(), strict=True)
            rows.append(
                [self.stop(sentence // self.samples, [*self.history[row, way].tolist(), token]) for way, token in pairs]
            )
        return torch.tensor(rows)

    def _harvest(self, candidates: Candidates) -> None:
        """Collect ended hypotheses; mark the sentences that need no more steps."""
        length = self.history.shape[2] + 1
        if self._uneventful(candidates, length):
            return
        ended, *listed = (part.tolist() for part in (self.ended, *candidates))  # to read numbers one by one is slow
        for row, sentence in enumerate(self.sentence):
            if self.finished[row]:
                continue
            ways = list(zip(ended[row], *(part[row] for part in listed), strict=True))
            for ends, total, origin, token in ways[: self.width]:
                if ends and math.isfinite(total):
                    said = [token] if token != self.vocabulary.end else []
                    self._found(row, [*self.history[row, origin].tolist(), *said], total, length, finished=True)
            best_live = max((total for ends, total, *_ in ways if not ends), default=-math.inf)
            found = self.found[sentence]
            if len(found) >= self.width:
                worst = sorted((h.score for h in found), reverse=True)[self.width - 1]
                self.finished[row] = worst >= self._score(best_live, length)
            if not self.finished[row] and (length >= self.limits[sentence] or best_live == -math.inf):
                self._give_up(row, candidates)

    def _uneventful(self, candidates: Candidates, length: int) -> bool:
        """Whether nothing can end at this step, as at most steps: one cheap question instead of several."""
        going = [sentence for row, sentence in enumerate(self.sentence) if not self.finished[row]]
        if any(length >= self.limits[sentence] or len(self.found[sentence]) >= self.width for sentence in going):
            return False
        return not bool((self.ended | candidates.total.isinf()).any())

    def _give_up(self, row: int, candidates: Candidates) -> None:
        """The limit is reached: what is still open is kept, marked as unfinished."""
        self.finished[row] = True
        for total, origin, token, ended in zip(
            *(part[row].tolist() for part in (*candidates, self.ended)), strict=True
        ):
            if not ended and total != -math.inf:
                tokens = [*self.history[row, origin].tolist(), token]
                self._found(row, tokens, total, len(tokens), finished=False)

    def _found(self, row: int, tokens: list[int], total: float, length: int, *, finished: bool) -> None:
        sentence, score = self.sentence[row], self._score(total, length)
        known = None if self.below is None else self.below[sentence]
        if known is None or (score <= known.score and tokens != known.tokens):
            self.found[sentence].append(Hypothesis(tokens, score, total, finished))

    def _score(self, total: float, length: int) -> float:
        return total / length**self.settings.length_penalty

    def _continue(self, live: Candidates) -> None:
        width = self.history.shape[1]
        moved = width != live.origin.shape[1] or (width > 1 and not self._in_place(live.origin))
        if moved:
            if self.run is None:
                self.state.reorder(live.origin)
            rows = live.origin[:, :, None].expand(-1, -1, self.history.shape[2])
            self.history = self.history.gather(1, rows)
        self.history = torch.cat([self.history, live.token[:, :, None]], dim=2)
        self.tokens, self.totals = live.token, live.total

    @staticmethod
    def _in_place(origin: Int[Tensor, "S W"]) -> bool:
        return bool((origin == torch.arange(origin.shape[1], device=origin.device)).all())

    def _drop_finished_rows(self) -> None:
        """Stop paying for finished sentences, once they are a sixteenth of the rows (dropping costs a copy)."""
        if self.run is not None or 16 * sum(self.finished) < len(self.finished):
            return
        rows = [row for row, finished in enumerate(self.finished) if not finished]
        index = torch.tensor(rows, device=self.tokens.device)
        self.state.keep(index)
        self.tokens, self.totals, self.history = self.tokens[index], self.totals[index], self.history[index]
        self.prompt = self.prompt[index]
        self.sentence = [self.sentence[row] for row in rows]
        self.finished = [False] * len(rows)


def search(
    steps: Steps,
    source: Int[Tensor, "S L"],
    source_mask: Bool[Tensor, "S L"],
    settings: SearchSettings,
    vocabulary: Vocabulary,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    first: Int[Tensor, "S"] | None = None,
    stop: Stop | None = None,
) -> list[list[Hypothesis]]:
    """The n best answers for each of S sentences, best first; see `Search`.

    The first answer is the one that the beam finds, however many are asked for. If these are more than the beam is
    wide, a second, wider search finds the others: those that score no better than the first. Where it finds too few of
    them, it is made twice as wide, a few times; of a model whose greedy answer is a poor one, fewer may come.
    """

    def run(
        chosen: SearchSettings, rows: list[int], below: Sequence[Hypothesis] | None = None
    ) -> list[list[Hypothesis]]:
        index = torch.tensor(rows, dtype=torch.long, device=source.device)
        running = Search(
            steps, source[index], source_mask[index], chosen, vocabulary,
            None if prefixes is None else [prefixes[row] for row in rows],
            first=None if first is None else first[index],
            stop=None if stop is None else lambda row, tokens: stop(rows[row], tokens),
            below=None if below is None else [below[row] for row in rows],
        )  # fmt: skip
        while not running.done:
            running.advance()
        return running.results()

    rows = list(range(len(source)))
    with torch.inference_mode():
        if not settings.widens:
            return run(settings, rows)
        best = [answer for (answer,) in run(settings.replace(n_best=1), rows)]
        others: dict[int, list[Hypothesis]] = {}
        for width in (settings.n_best * 2**times for times in range(WIDENINGS)):
            if rows and width <= WIDEST:
                others |= dict(zip(rows, run(settings.replace(beam=width), rows, best), strict=True))
                rows = [row for row in rows if len(others[row]) < settings.n_best - 1]
    return [[answer, *others[row]][: settings.n_best] for row, answer in enumerate(best)]


def _noise(source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"], settings: SearchSettings) -> list[Random]:
    """For every sample a source of chance that depends on the sentence alone, never on its padding or neighbours."""
    real = (row[mask].tolist() for row, mask in zip(source, source_mask, strict=True))
    return [Random(f"{settings.seed} {row % settings.n_best} {tokens}") for row, tokens in enumerate(real)]
