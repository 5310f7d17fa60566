"""One search decodes every model: greedy, beam, sampling, over one small protocol.

S sentences are decoded together, W hypotheses each, as a grid. A hypothesis is scored by its log-probability divided by
its length (the end token counted) to the power of `length_penalty`: 0 prefers short answers, 1 is the mean per token.
The prefix is never fed again: the model's state remembers it. Every decision about a sentence depends on that sentence
alone, so a batch yields what its sentences yield one by one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from regard.config import Config
from regard.errors import UsageError

BLOCK, MANY_SCORES = 64, 20_000  # see `_top`
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
class Steps(Protocol):
    """What a model must offer to be decoded."""

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> DecoderState: ...

    def step(self, tokens: Int[Tensor, "S W"], state: DecoderState) -> Float[Tensor, "S W V"]:
        """Feed one token to every hypothesis, advancing the state; the logits of the next token."""
        ...


class SearchSettings(Config):
    """How to decode. Sampling when `sample` is set, else beam search, which with `beam = 1` is greedy."""

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 1.0
    max_length: int | None = None  # None: `max_ratio` times the source length plus `max_extra`
    max_ratio: float = 2.0
    max_extra: int = 20
    context: int | None = None  # most tokens of prompt and answer together, for models that continue their source
    min_length: int = 0
    no_repeat_ngram: int = 0  # never repeat n tokens in a row; 0 allows it
    repetition_penalty: float = 1.0  # above 1: tokens said before, and those of a prompt, become less probable
    presence_penalty: float = 0.0  # taken from the logits of tokens that the answer has
    frequency_penalty: float = 0.0  # taken from them once for each time that it has them
    logit_bias: dict[int, float] = Field(default_factory=dict)  # added to the logits of these tokens
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0  # draw from the k most probable tokens only; 0 from all
    top_p: float = 1.0  # draw from the smallest set of tokens with this much probability
    min_p: float = 0.0  # draw from the tokens with at least this share of the best one's probability
    seed: int = 0

    def limit(self, source_length: int) -> int:
        """How many tokens an answer to a source of this length may have."""
        most = self.max_length or int(self.max_ratio * source_length) + self.max_extra
        return most if self.context is None else min(most, self.context - source_length + 1)


class Vocabulary(NamedTuple):
    """The token numbers a search must know."""

    start: int
    end: int
    pad: int

    @property
    def forbidden(self) -> list[int]:
        """The tokens that no answer has."""
        return [token for token in {self.start, self.pad} if token != self.end]


@dataclass(frozen=True)
class Hypothesis:
    """One decoded answer: its tokens without start and end, its score, and whether it ended by itself."""

    tokens: list[int]
    score: float
    log_probability: float
    finished: bool


class Candidates(NamedTuple):
    """Ways to continue, best first: accumulated log-probability, hypothesis continued, token added."""

    total: Float[Tensor, "S C"]
    origin: Int[Tensor, "S C"]
    token: Int[Tensor, "S C"]


class Ensemble:
    """Several models that decide together: the mean of their probabilities at every step."""

    def __init__(self, members: Sequence[Steps]):
        self.members = members

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> "EnsembleState":
        return EnsembleState([member.start(source, source_mask) for member in self.members])

    def step(self, tokens: Int[Tensor, "S W"], state: "EnsembleState") -> Float[Tensor, "S W V"]:
        logits = [member.step(tokens, own) for member, own in zip(self.members, state.states, strict=True)]
        return torch.stack([each.log_softmax(dim=-1) for each in logits]).logsumexp(dim=0) - math.log(len(logits))


class EnsembleState:
    """The states of an ensemble's members, moved together."""

    def __init__(self, states: list[DecoderState]):
        self.states = states

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        for state in self.states:
            state.reorder(origin)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        for state in self.states:
            state.keep(sentences)


class Search:
    """A search in progress. `advance` takes one step; `live` and `last` let a caller stream tokens or draw the tree.

    A model that continues its source has read it up to its last token: that token is given as `first`, and fed in place
    of the vocabulary's start. `stop` may end answers before their end token.
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
    ):
        _check(settings)
        samples = settings.n_best if settings.sample else 1
        self.state = steps.start(source, source_mask)
        if samples > 1:  # every sample is a search of its own; their source is read once
            rows = torch.arange(len(source), device=source.device).repeat_interleave(samples)
            self.state.keep(rows)
            source, source_mask, first = source[rows], source_mask[rows], None if first is None else first[rows]
            prefixes = None if prefixes is None else [prefix for prefix in prefixes for _ in range(samples)]
        count, device = len(source), source.device
        self.steps, self.settings, self.vocabulary, self.samples = steps, settings, vocabulary, samples
        self.width = 1 if settings.sample else max(settings.beam, settings.n_best)
        self.limits = [settings.limit(length) for length in source_mask.sum(1).tolist()]
        self.prefixes, self.stop = prefixes, stop
        self.noise = _noise(source, source_mask, settings) if settings.sample else []
        self.forbidden = torch.tensor(vocabulary.forbidden, dtype=torch.long, device=device)
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
        self.ended = torch.zeros(0, dtype=torch.bool)  # which of `last` end an answer

    @property
    def done(self) -> bool:
        return all(self.finished)

    @torch.inference_mode()
    def advance(self) -> None:
        """Add one token to every live hypothesis."""
        logits = self.steps.step(self.tokens, self.state).float()
        log_p = own = logits.log_softmax(dim=-1)
        changed = self._biased(self._penalised(logits))
        if changed is not logits:
            log_p = changed.log_softmax(dim=-1)
        self._forbid(log_p)
        self.last = self._sampled(log_p, own) if self.settings.sample else self._best(log_p)
        self.ended = self._ends(self.last)
        self._harvest(self.last)
        if not self.done:
            self._continue(self.live(self.last))
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
        return [sorted(group, key=lambda h: (-h.finished, -h.score))[: self.settings.n_best] for group in groups]

    def _penalised(self, logits: Float[Tensor, "S W V"]) -> Float[Tensor, "S W V"]:
        """The logits of what was said before divided by the penalty, or multiplied if negative (Keskar et al. 2019)."""
        if self.settings.repetition_penalty == 1:
            return logits
        said = torch.zeros_like(logits, dtype=torch.bool).scatter_(2, self.history, value=True)
        said.scatter_(2, self.prompt[:, None].expand(-1, logits.shape[1], -1), value=True)
        penalty = torch.where(logits > 0, 1 / self.settings.repetition_penalty, self.settings.repetition_penalty)
        return torch.where(said, logits * penalty, logits)

    def _biased(self, logits: Float[Tensor, "S W V"]) -> Float[Tensor, "S W V"]:
        """The logits less what repeating costs, and with the bias of their tokens, as OpenAI's API defines them."""
        settings = self.settings
        if settings.presence_penalty or settings.frequency_penalty:
            once = torch.ones_like(self.history, dtype=logits.dtype)
            counts = torch.zeros_like(logits).scatter_add_(2, self.history, once)
            logits = logits - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)
        if settings.logit_bias:
            bias = logits.new_zeros(logits.shape[-1])
            bias[list(settings.logit_bias)] = bias.new_tensor(list(settings.logit_bias.values()))
            logits = logits + bias
        return logits

    def _forbid(self, log_p: Float[Tensor, "S W V"]) -> None:
        """Take away, in place, the tokens that may not come next."""
        length = self.history.shape[2]
        log_p.index_fill_(2, self.forbidden, -math.inf)
        if length < self.settings.min_length:
            log_p[..., self.vocabulary.end] = -math.inf
        n = self.settings.no_repeat_ngram
        if n and length >= n:
            seen = self.history.unfold(2, n, 1)  # [S W windows n]
            again = (seen[..., :-1] == self.history[:, :, None, length - n + 1 :]).all(-1)
            log_p.scatter_reduce_(2, seen[..., -1], torch.where(again, -math.inf, math.inf), "amin")
        for row, sentence in enumerate(self.sentence if self.prefixes else ()):
            prefix = self.prefixes[sentence] if self.prefixes else ()
            if length < len(prefix):
                forced = log_p[row, :, prefix[length]].clone()
                log_p[row] = -math.inf
                log_p[row, :, prefix[length]] = forced

    def _best(self, log_p: Float[Tensor, "S W V"]) -> Candidates:
        """The most probable continuations; twice the width, since up to half of them may be the end token."""
        vocab = log_p.shape[-1]
        totals = log_p.add_(self.totals[:, :, None]).flatten(1)
        total, index = _top(totals, 1 if self.width == 1 else min(2 * self.width, totals.shape[1]))
        return Candidates(total, index // vocab, index % vocab)

    def _sampled(self, log_p: Float[Tensor, "S W V"], own: Float[Tensor, "S W V"]) -> Candidates:
        """One token per row, drawn from the tempered and truncated distribution; scored by the model's own."""
        probability, order = drawable(log_p[:, 0], self.settings)
        reached = probability.cumsum(dim=-1)
        draws = torch.tensor([[self.noise[sentence].random()] for sentence in self.sentence]).to(reached)
        place = torch.searchsorted(reached, draws * reached[:, -1:], right=True)
        token = order.gather(1, place.clamp(max=order.shape[1] - 1))
        return Candidates(self.totals + own[:, 0].gather(1, token), torch.zeros_like(token), token)

    def _ends(self, candidates: Candidates) -> Bool[Tensor, "S C"]:
        """Which candidates end an answer: with the end token, or because the caller says so."""
        ended = candidates.token == self.vocabulary.end
        if self.stop is None:
            return ended
        for row, sentence in enumerate(self.sentence):
            pairs = zip(candidates.origin[row].tolist(), candidates.token[row].tolist(), strict=True)
            stopped = [
                self.stop(sentence // self.samples, [*self.history[row, way].tolist(), token]) for way, token in pairs
            ]
            ended[row] |= torch.tensor(stopped, device=ended.device)
        return ended

    def _harvest(self, candidates: Candidates) -> None:
        """Collect ended hypotheses; mark the sentences that need no more steps."""
        length = self.history.shape[2] + 1
        if self._uneventful(candidates, length):
            return
        total, _, token = (part[:, : self.width] for part in candidates)
        for row, rank in (self.ended[:, : self.width] & total.isfinite()).nonzero().tolist():
            if not self.finished[row]:
                last = int(token[row, rank])
                tokens = self.history[row, candidates.origin[row, rank]].tolist()
                tokens += [last] if last != self.vocabulary.end else []
                self._found(row, tokens, float(total[row, rank]), length, finished=True)
        best_live = candidates.total.masked_fill(self.ended, -math.inf).amax(1).tolist()
        for row, sentence in enumerate(self.sentence):
            if self.finished[row]:
                continue
            found = self.found[sentence]
            if len(found) >= self.width:
                worst = sorted((h.score for h in found), reverse=True)[self.width - 1]
                self.finished[row] = worst >= self._score(best_live[row], length)
            if not self.finished[row] and (length >= self.limits[sentence] or best_live[row] == -math.inf):
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
        self.found[self.sentence[row]].append(Hypothesis(tokens, self._score(total, length), total, finished))

    def _score(self, total: float, length: int) -> float:
        return total / length**self.settings.length_penalty

    def live(self, candidates: Candidates) -> Candidates:
        """The best `width` candidates that go on."""
        if candidates.total.shape[1] == 1:
            return candidates
        going = candidates.total.masked_fill(self.ended, -math.inf)
        total, place = going.topk(min(self.width, going.shape[1]), dim=-1)
        return Candidates(total, candidates.origin.gather(1, place), candidates.token.gather(1, place))

    def _continue(self, live: Candidates) -> None:
        width = self.history.shape[1]
        moved = width != live.origin.shape[1] or (width > 1 and not self._in_place(live.origin))
        if moved:
            self.state.reorder(live.origin)
            rows = live.origin[:, :, None].expand(-1, -1, self.history.shape[2])
            self.history = self.history.gather(1, rows)
        self.history = torch.cat([self.history, live.token[:, :, None]], dim=2)
        self.tokens, self.totals = live.token, live.total

    @staticmethod
    def _in_place(origin: Int[Tensor, "S W"]) -> bool:
        return bool((origin == torch.arange(origin.shape[1], device=origin.device)).all())

    def _drop_finished_rows(self) -> None:
        """Stop paying for finished sentences, once they are a quarter of the rows (dropping costs a copy)."""
        if 4 * sum(self.finished) < len(self.finished):
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
    """The n best answers for each of S sentences, best first; see `Search`."""
    with torch.inference_mode():
        running = Search(steps, source, source_mask, settings, vocabulary, prefixes, first=first, stop=stop)
        while not running.done:
            running.advance()
    return running.results()


def drawable(log_p: Float[Tensor, "N V"], settings: SearchSettings) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
    """The tokens of tempered distributions, most probable first, with their weights: 0 where they were cut off."""
    tempered = log_p / settings.temperature
    few = 0 < settings.top_k < tempered.shape[1]
    scores, order = tempered.topk(settings.top_k) if few else tempered.sort(dim=-1, descending=True)
    probability = scores.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability  # the mass of everything more probable
    unlikely = probability < settings.min_p * probability[:, :1]
    return probability.masked_fill((before >= settings.top_p) | unlikely, 0.0), order


def _noise(source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"], settings: SearchSettings) -> list[Random]:
    """For every sample a source of chance that depends on the sentence alone, never on its padding or neighbours."""
    real = (row[mask].tolist() for row, mask in zip(source, source_mask, strict=True))
    return [Random(f"{settings.seed} {row % settings.n_best} {tokens}") for row, tokens in enumerate(real)]


def _top(scores: Float[Tensor, "S N"], count: int) -> tuple[Float[Tensor, "S C"], Int[Tensor, "S C"]]:
    """`topk`, but quicker on many scores: the best can only lie in the `count` blocks with the greatest maxima."""
    whole = scores.shape[1] - scores.shape[1] % BLOCK
    if scores.numel() < MANY_SCORES or whole < count * BLOCK:
        return scores.topk(count, dim=-1)
    maxima = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(dim=-1)
    first = maxima.topk(count, dim=-1).indices[:, :, None] * BLOCK
    inside = (first + torch.arange(BLOCK, device=scores.device)).flatten(1)
    rest = torch.arange(whole, scores.shape[1], device=scores.device).expand(len(scores), -1)
    index = torch.cat([inside, rest], dim=1)
    value, place = scores.gather(1, index).topk(count, dim=-1)
    return value, index.gather(1, place)


def _check(settings: SearchSettings) -> None:
    for name, value, low in (
        ("beam", settings.beam, 1),
        ("n_best", settings.n_best, 1),
        ("min_length", settings.min_length, 0),
        ("no_repeat_ngram", settings.no_repeat_ngram, 0),
        ("top_k", settings.top_k, 0),
    ):
        if value < low:
            raise UsageError(f"{name} is {value}; it must be at least {low}")
    if settings.temperature <= 0 or not 0 < settings.top_p <= 1:
        raise UsageError(
            f"temperature {settings.temperature} must be above 0 and top_p {settings.top_p} within (0, 1]; "
            "for the most probable answer leave `sample` off"
        )
    if not 0 <= settings.min_p <= 1 or settings.repetition_penalty <= 0:
        raise UsageError(
            f"min_p {settings.min_p} must be within [0, 1] and repetition_penalty {settings.repetition_penalty} above 0"
        )
