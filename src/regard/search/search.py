"""One search decodes every model: greedy, beam search and sampling, from the state of a model that read its source.

S sentences are decoded together, with W hypotheses each. The score of a hypothesis is its log-probability divided by
its length (the end token counts) to the power of `length_penalty`: 0 prefers short answers, 1 is the mean per token.
The prefix is never fed again: the model's state holds it. Every decision about a sentence depends on that sentence
alone, so a batch gives the same answers as its sentences one by one.

Answers are sorted by score. Beam search prefers answers that ended by themselves to answers that the length limit cut:
the first answer is an ended one if there is any that says something. Cut answers are returned only where too few ended,
and never one that scores better than the first. Settings of Hugging Face let the scores alone decide
(`ended_first = False`). The number of answers asked for never changes the first; see `search`. Sampling returns
every answer that it drew.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import UsageError
from regard.search.candidates import Candidates, CandidateSelection, Grid, StepDecision
from regard.search.constrained import TermLanes
from regard.search.protocols import SearchAwareState, StepModel
from regard.search.settings import MAX_BEAM, SearchSettings, Vocabulary
from regard.search.start import SearchStart

MAX_WIDENINGS = 4  # how many widths are tried to find as many answers as are asked for


@runtime_checkable
class DecisionStream(Protocol):
    """The decisions of a search whose steps are computed elsewhere, possibly several steps ahead."""

    def decisions(self) -> Iterable[StepDecision]:
        """The next decisions, at least one, on the host."""


@runtime_checkable
class SearchRunner(StepModel, Protocol):
    """A model that computes whole steps of a search by itself (cuda_graphs.py)."""

    def begin(self, search: "Search") -> DecisionStream | None:
        """Take over a search before its first step; None if this search cannot be taken over."""


@dataclass(frozen=True)
class Hypothesis:
    """One decoded answer: its tokens without start and end, its score, and whether it ended by itself."""

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool


class Search:
    """A search in progress. `advance` takes one step; `last` and `live` let a caller stream tokens or draw the tree.

    It takes over the state of `start`. With `worse_than`, one answer of each sentence, it collects only other answers
    that score no better.
    """

    def __init__(
        self,
        model: StepModel,
        start: SearchStart,
        settings: SearchSettings,
        vocabulary: Vocabulary,
        *,
        worse_than: Sequence[Hypothesis] | None = None,
    ):
        if settings.sample and len(start.seeds) != len(start.limits):
            raise UsageError(
                f"{len(start.seeds)} seeds for {len(start.limits)} sentences: sampling needs one for each; give "
                "SearchStart(seeds=...)"
            )
        samples = settings.n_best if settings.sample else 1
        if samples > 1:  # every sample is a search of its own, but the source was read once
            start = start.select([sentence for sentence in range(len(start.limits)) for _ in range(samples)])
        count, device = len(start.limits), start.first.device
        self.model, self.settings, self.vocabulary, self.samples = model, settings, vocabulary, samples
        self.state, self.limits, self.prefixes, self.stop = start.state, start.limits, start.prefixes, start.stop
        self.width, self.selection = settings.width, CandidateSelection(settings, vocabulary, device, start.rule)
        self.worse_than = worse_than
        self.terms = None
        if start.constraints is not None:
            if settings.sample or start.stop is not None:
                raise UsageError("terms that an answer must contain need a search; leave out sampling and stop texts")
            self.terms = TermLanes(start.constraints, self.limits, self.width, vocabulary.end)
        if isinstance(self.state, SearchAwareState):
            self.state.expect(self.terms.width if self.terms else self.width, max(self.limits, default=0))
        self.noise = _noise(start.seeds, settings) if settings.sample else []
        self.found: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.sentence = list(range(count))  # the sentence that each row of the grid decodes
        self.finished = [False] * count  # by row
        self.tokens = start.first[:, None]
        self.prompt = self.tokens[:, :0] if start.prompt is None else start.prompt
        self.totals = torch.zeros(count, 1, device=device)
        self.history = torch.empty(count, 1, 0, dtype=torch.long, device=device)
        self.last: Candidates | None = None
        self.live: Candidates | None = None  # those of `last` that are continued
        self.ended = torch.zeros(0, dtype=torch.bool)  # which of `last` end an answer
        self.pending: deque[StepDecision] = deque()
        self.stream = model.begin(self) if isinstance(model, SearchRunner) else None
        if self.stream is not None:  # the decisions arrive on the host
            self.totals = torch.full((count, self.width), -math.inf)
            self.totals[:, 0] = 0.0
            self.history = torch.empty(count, self.width, 0, dtype=torch.long)

    @property
    def done(self) -> bool:
        return all(self.finished)

    @torch.inference_mode()
    def advance(self) -> None:
        """Add one token to every live hypothesis."""
        if self.stream is None:
            self.pending.append(self._decide())
        elif not self.pending:
            self.pending.extend(self.stream.decisions())
        self.last, self.ended, self.live = self.pending.popleft()
        if self.stream is not None and self.stop is not None:
            self.ended |= self._stopped(self.last)
        self._collect_ended(self.last)
        if not self.done:
            self._continue(self.live)
            self._drop_finished_rows()

    def common_prefix(self, sentence: int = 0) -> list[int]:
        """The tokens that every hypothesis of a sentence begins with, live or ended; so does the answer."""
        ended = [hypothesis.tokens for hypothesis in self.found[sentence]]
        row = self.sentence.index(sentence) if sentence in self.sentence else None
        live = self.history[row][self.totals[row].isfinite()].tolist() if row is not None else []
        common: list[int] = []
        for tokens in zip(*ended, *live, strict=False):
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
        limits = self.limits[:: self.samples]
        ranked = [
            self._ranked(group, limit)[: self.settings.n_best] for group, limit in zip(groups, limits, strict=True)
        ]
        return ranked if self.terms is None else [[self._without_payments(each) for each in some] for some in ranked]

    def _ranked(self, found: Sequence[Hypothesis], limit: int) -> list[Hypothesis]:
        """Hypotheses by score. Beam search returns those that ended and say something, and cut ones where too few
        did, unless the settings say that scores alone decide."""
        found = sorted(found, key=lambda each: -each.score)
        asked = self.settings.max_length is not None or limit == self.settings.most  # else it follows from the source
        if self.settings.sample or (asked and not self.settings.ended_first):
            return found
        found = [each for each in found if not self._says_nothing(each)] or found
        ended = [each for each in found if each.finished]
        if not ended:
            return found
        cut = [each for each in found if not each.finished and (self.worse_than or each.score <= ended[0].score)]
        return sorted([*ended, *cut[: max(0, self.settings.n_best - len(ended))]], key=lambda each: -each.score)

    def _without_payments(self, found: Hypothesis) -> Hypothesis:
        """An answer with the score that the model gives it."""
        length = len(found.tokens)
        length += found.finished or self._end_is_due(length)
        return replace(found, score=self._score(found.log_probability, length))

    def _decide(self) -> StepDecision:
        """One step of the model, and the candidates that follow from it; with terms, those that lead to all of them."""
        length = self.history.shape[2]
        forced, draws = self.forced(length), None
        if self.settings.sample:
            draws = torch.tensor([[self.noise[sentence].random()] for sentence in self.sentence]).to(self.totals)
        logits = self.model.step(self.tokens, self.state)
        grid = Grid(self.totals, self.history, length, self.prompt)
        if self.terms is not None:
            return self.terms.decide(self.totals, self.selection.allowed(logits, grid, forced), length)
        candidates = self.selection(logits, grid, forced, draws)
        ended = candidates.token == self.vocabulary.end
        if self.stop is not None:
            ended |= self._stopped(candidates).to(ended.device)
        return StepDecision(candidates, ended, self.selection.live(candidates, ended))

    def forced(self, length: int) -> Int[Tensor, "S"] | None:
        """The token that must come at this position of each answer; -1 where any may come."""
        if not self.prefixes:
            return None
        prefixes = [self.prefixes[sentence] for sentence in self.sentence]
        tokens = [prefix[length] if length < len(prefix) else -1 for prefix in prefixes]
        return torch.tensor(tokens, device=self.totals.device) if max(tokens) >= 0 else None

    def _stopped(self, candidates: Candidates) -> Bool[Tensor, "S C"]:
        """Which candidates end an answer because `stop` says so."""
        assert self.stop is not None
        rows = []
        for row, sentence in enumerate(self.sentence):
            pairs = zip(candidates.origin[row].tolist(), candidates.token[row].tolist(), strict=True)
            rows.append([self.stop(sentence, [*self.history[row, way].tolist(), token]) for way, token in pairs])
        return torch.tensor(rows)

    def _collect_ended(self, candidates: Candidates) -> None:
        """Collect ended hypotheses; mark the sentences that need no more steps."""
        length = self.history.shape[2] + 1
        if self._nothing_ends(candidates, length):
            return
        ended, *listed = (part.tolist() for part in (self.ended, *candidates))  # reading numbers one by one is slow
        for row, sentence in enumerate(self.sentence):
            if self.finished[row]:
                continue
            ways = list(zip(ended[row], *(part[row] for part in listed), strict=True))
            for ends, total, origin, token in ways[: self.width]:
                if ends and math.isfinite(total):
                    self._collect(row, origin, token, total, finished=True)
            found = self.found[sentence]
            best_live = max((total for ends, total, *_ in ways if not ends), default=-math.inf)
            if len(found) >= self.width:
                worst = sorted((h.score for h in found), reverse=True)[self.width - 1]
                self.finished[row] = self.settings.early_stopping or worst >= self._score(best_live, length)
            if not self.finished[row] and (length >= self.limits[sentence] or best_live == -math.inf):
                self._collect_cut(row, candidates)

    def _nothing_ends(self, candidates: Candidates, length: int) -> bool:
        """Whether nothing can end at this step, which is so at most steps: one cheap check instead of several."""
        going = [sentence for row, sentence in enumerate(self.sentence) if not self.finished[row]]
        if any(length >= self.limits[sentence] or len(self.found[sentence]) >= self.width for sentence in going):
            return False
        return not bool((self.ended | candidates.total.isinf()).any())

    def _collect_cut(self, row: int, candidates: Candidates) -> None:
        """The length limit is reached: collect the live hypotheses, marked as unfinished."""
        self.finished[row] = True
        for total, origin, token, ended in zip(
            *(part[row].tolist() for part in (*candidates, self.ended)), strict=True
        ):
            if not ended and total != -math.inf:
                self._collect(row, origin, token, total, finished=False)

    def _collect(self, row: int, origin: int, token: int, total: float, *, finished: bool) -> None:
        said = [] if finished and token == self.vocabulary.end else [token]
        tokens = [*self.history[row, origin].tolist(), *said]
        sentence = self.sentence[row]
        length = self.history.shape[2] + 1
        score = self._score(total, length + (not finished and self._end_is_due(length)))
        paid = 0.0 if self.terms is None else self.terms.paid(row, origin, token)
        known = None if self.worse_than is None else self.worse_than[sentence]
        if known is None or (score <= known.score and tokens != known.tokens):
            self.found[sentence].append(Hypothesis(tokens, score, total + paid, finished))

    def _says_nothing(self, found: Hypothesis) -> bool:
        """Whether an answer ended where there is nothing to see, from a model that should say something."""
        return found.finished and self.vocabulary.blank is not None and self.vocabulary.blank.issuperset(found.tokens)

    def _end_is_due(self, length: int) -> bool:
        """Whether the limit that cuts an answer of this length gives it an end token, which its length counts."""
        return self.settings.end_at_limit and length == self.settings.most

    def _score(self, total: float, length: int) -> float:
        return total / length**self.settings.length_penalty

    def _continue(self, live: Candidates) -> None:
        width = self.history.shape[1]
        in_place = torch.arange(live.origin.shape[1], device=live.origin.device)
        if width != live.origin.shape[1] or (width > 1 and not bool((live.origin == in_place).all())):
            if self.stream is None:
                self.state.reorder(live.origin)
            rows = live.origin[:, :, None].expand(-1, -1, self.history.shape[2])
            self.history = self.history.gather(1, rows)
        self.history = torch.cat([self.history, live.token[:, :, None]], dim=2)
        self.tokens, self.totals = live.token, live.total
        if self.terms is not None:
            self.terms.advance()

    def _drop_finished_rows(self) -> None:
        """Stop decoding finished sentences, once they are a sixteenth of the rows: dropping costs a copy."""
        if self.stream is not None or 16 * sum(self.finished) < len(self.finished):
            return
        rows = [row for row, finished in enumerate(self.finished) if not finished]
        index = torch.tensor(rows, device=self.tokens.device)
        self.state.keep(index)
        if self.terms is not None:
            self.terms.keep(rows)
        self.tokens, self.totals, self.history = self.tokens[index], self.totals[index], self.history[index]
        self.prompt = self.prompt[index]
        self.sentence = [self.sentence[row] for row in rows]
        self.finished = [False] * len(rows)


@torch.inference_mode()
def search(
    model: StepModel, start: SearchStart, settings: SearchSettings, vocabulary: Vocabulary
) -> list[list[Hypothesis]]:
    """The n best answers for each of S sentences, best first; see `Search`.

    The first answer is the one that the beam finds, however many are asked for. If more are asked for than the beam is
    wide, a second, wider search finds the others: those that score no better than the first. Where it finds too few, it
    is made twice as wide, a few times. A model whose greedy answer is poor may still have fewer.
    """
    if not settings.widens:
        return _run(Search(model, start, settings, vocabulary))
    found = _run(Search(model, start.copy(), settings.replace(n_best=1), vocabulary))
    best, others = [answer for (answer,) in found], dict[int, list[Hypothesis]]()
    rows = list(range(len(best)))
    for width in (settings.n_best * 2**times for times in range(MAX_WIDENINGS)):
        if rows and width <= MAX_BEAM:
            wider, some = settings.replace(beam=width), start.copy().select(rows)
            found = _run(Search(model, some, wider, vocabulary, worse_than=[best[row] for row in rows]))
            others |= dict(zip(rows, found, strict=True))
            rows = [row for row in rows if len(others[row]) < settings.n_best - 1]
    return [[answer, *others[row]][: settings.n_best] for row, answer in enumerate(best)]


def _run(running: Search) -> list[list[Hypothesis]]:
    while not running.done:
        running.advance()
    return running.results()


def _noise(seeds: Sequence[str], settings: SearchSettings) -> list[Random]:
    """A random generator for every sample, which depends on its sentence and its number alone."""
    return [Random(f"{settings.seed} {row % settings.n_best} {seed}") for row, seed in enumerate(seeds)]
