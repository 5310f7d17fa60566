"""Candidate selection: from the logits of a step to the tokens that may continue each hypothesis.

Nothing here reads a value back to the host, and no shape depends on the number of steps taken so far if the history has
its full length from the start. So a step of the search can be captured as a CUDA graph (cuda_graphs.py).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.runtime import compiled
from regard.search.settings import SearchSettings, Vocabulary

BLOCK, MANY_SCORES = 64, 20_000  # see `_top`
MIN_TEMPERATURE = 1e-6  # divided by less, logits would become infinite


class Candidates(NamedTuple):
    """Possible continuations, best first: total log-probability, hypothesis that is continued, token that is added."""

    total: Float[Tensor, "S C"]
    origin: Int[Tensor, "S C"]
    token: Int[Tensor, "S C"]


class Grid(NamedTuple):
    """The hypotheses so far, W for every sentence."""

    totals: Float[Tensor, "S W"]
    history: Int[Tensor, "S W T"]  # their tokens; after the first `length`, V, which is no token
    length: int | Int[Tensor, ""]
    prompt: Int[Tensor, "S P"]  # tokens that the repetition penalty counts besides the answer's own


# (log-probabilities [S W V], hypotheses so far): sets those of tokens that may not come next to -inf, in place
Rule = Callable[[Tensor, Grid], None]


class StepDecision(NamedTuple):
    """What one step of a search decided: the candidates, which of them end an answer, and the best of the others."""

    candidates: Candidates
    ended: Bool[Tensor, "S C"]
    live: Candidates


class CandidateSelection:
    """Selects candidates from logits, by the settings of a search."""

    def __init__(
        self, settings: SearchSettings, vocabulary: Vocabulary, device: torch.device, rule: Rule | None = None
    ):
        self.settings, self.end, self.rule = settings, vocabulary.end, rule
        self.forbidden = torch.tensor(vocabulary.forbidden, dtype=torch.long, device=device)
        self.biased = torch.tensor(list(settings.logit_bias), dtype=torch.long, device=device)
        self.bias = torch.tensor(list(settings.logit_bias.values()), dtype=torch.float32, device=device)

    @property
    def uses_history(self) -> bool:
        """Whether the candidates depend on the history."""
        s = self.settings
        repeats = s.no_repeat_ngram or s.presence_penalty or s.frequency_penalty or self.rule
        return bool(repeats) or s.repetition_penalty != 1

    def __call__(
        self,
        logits: Float[Tensor, "S W V"],
        grid: Grid,
        forced: Int[Tensor, "S"] | None = None,
        draws: Float[Tensor, "S 1"] | None = None,
    ) -> Candidates:
        """The best continuations; with `draws`, random ones. `forced` tokens, where not negative, must come next."""
        if draws is None and forced is None and not self.uses_history and not self._changes_logits(grid):
            found = self._best_compiled(logits, grid)
            if found is not None:
                return found
        log_p, own = self._log_probabilities(logits, grid, forced)
        return self._best(log_p, grid) if draws is None else self._sampled(log_p, own, grid, draws)

    def allowed(
        self, logits: Float[Tensor, "S W V"], grid: Grid, forced: Int[Tensor, "S"] | None = None
    ) -> Float[Tensor, "S W V"]:
        """The log-probability of every token; -inf where it may not come next."""
        return self._log_probabilities(logits, grid, forced)[0]

    def _log_probabilities(
        self, logits: Float[Tensor, "S W V"], grid: Grid, forced: Int[Tensor, "S"] | None
    ) -> tuple[Float[Tensor, "S W V"], Float[Tensor, "S W V"]]:
        """The log-probability of every token that may come next, and those of the model itself."""
        logits = logits.float()
        log_p = own = logits.log_softmax(dim=-1)
        changed = self._biased(self._penalised(logits, grid), grid)
        if changed is not logits:
            log_p = changed.log_softmax(dim=-1)
        self._forbid(log_p, grid, forced)
        if self.settings.first_token is not None:
            first = torch.full_like(log_p[0, 0], -math.inf)
            first[self.settings.first_token] = 0.0
            log_p = torch.where(torch.as_tensor(grid.length == 0, device=log_p.device), first, log_p)
        return log_p, own

    def _changes_logits(self, grid: Grid) -> bool:
        """Whether more than single tokens that are forbidden sets this step apart from the model's own choice."""
        begins = self.settings.first_token is not None and not (isinstance(grid.length, int) and grid.length > 0)
        return bool(self.settings.logit_bias) or begins

    def live(self, candidates: Candidates, ended: Bool[Tensor, "S C"]) -> Candidates:
        """The best candidates that do not end, one for each hypothesis."""
        if candidates.total.shape[1] == 1:
            return candidates
        going = candidates.total.masked_fill(ended, -math.inf)
        total, place = going.topk(min(self.settings.width, going.shape[1]), dim=-1)
        return Candidates(total, candidates.origin.gather(1, place), candidates.token.gather(1, place))

    def _penalised(self, logits: Float[Tensor, "S W V"], grid: Grid) -> Float[Tensor, "S W V"]:
        """The logits of earlier tokens divided by the penalty, or multiplied if negative (Keskar et al. 2019)."""
        if self.settings.repetition_penalty == 1:
            return logits
        said = _columns(logits, torch.bool).scatter_(2, grid.history, value=True)[..., :-1]
        said.scatter_(2, grid.prompt[:, None].expand(-1, logits.shape[1], -1), value=True)
        penalty = torch.where(logits > 0, 1 / self.settings.repetition_penalty, self.settings.repetition_penalty)
        return torch.where(said, logits * penalty, logits)

    def _biased(self, logits: Float[Tensor, "S W V"], grid: Grid) -> Float[Tensor, "S W V"]:
        """The logits less the presence and frequency penalties, plus `logit_bias`, as OpenAI's API defines them."""
        settings = self.settings
        if settings.presence_penalty or settings.frequency_penalty:
            once = torch.ones_like(grid.history, dtype=logits.dtype)
            counts = _columns(logits, logits.dtype).scatter_add_(2, grid.history, once)[..., :-1]
            logits = logits - settings.frequency_penalty * counts - settings.presence_penalty * (counts > 0)
        if settings.logit_bias:
            logits = logits + logits.new_zeros(logits.shape[-1]).index_copy(0, self.biased, self.bias)
        return logits

    def _forbid(self, log_p: Float[Tensor, "S W V"], grid: Grid, forced: Int[Tensor, "S"] | None) -> None:
        """Set the log-probability of tokens that may not come next to -inf, in place."""
        if len(self.forbidden):
            log_p.index_fill_(2, self.forbidden, -math.inf)
        if self.settings.min_length and self.end >= 0:
            early = torch.as_tensor(grid.length < self.settings.min_length, device=log_p.device)
            log_p[..., self.end].masked_fill_(early, -math.inf)
        n = self.settings.no_repeat_ngram
        if n and grid.history.shape[2] >= n:
            seen = grid.history.unfold(2, n, 1)  # [S W windows n]
            where = grid.length - n + 1 + torch.arange(n - 1, device=log_p.device)
            recent = grid.history.index_select(2, where.clamp(min=0))
            again = (seen[..., :-1] == recent[:, :, None]).all(-1) & (grid.length >= n)
            next_ones = torch.where(again, seen[..., -1], log_p.shape[2])
            log_p.masked_fill_(_columns(log_p, torch.bool).scatter_(2, next_ones, value=True)[..., :-1], -math.inf)
        if self.rule is not None:
            self.rule(log_p, grid)
        if forced is not None:
            others = torch.arange(log_p.shape[2], device=log_p.device) != forced[:, None]
            log_p.masked_fill_((others & (forced >= 0)[:, None])[:, None], -math.inf)

    def _best_compiled(self, logits: Float[Tensor, "S W V"], grid: Grid) -> Candidates | None:
        """What `_best` finds if only single tokens are forbidden, in one pass over logits on a CPU by compiled code;
        None where the compiled code does not apply."""
        known = logits.device.type == "cpu" and logits.dtype == torch.float32 and isinstance(grid.length, int)
        if not known or logits.numel() == 0 or compiled.library() is None:
            return None
        early = self.end >= 0 and grid.length < self.settings.min_length
        forbidden = torch.cat([self.forbidden, self.forbidden.new_tensor([self.end])]) if early else self.forbidden
        sentences, width, vocab = logits.shape
        logits, totals, count = logits.contiguous(), grid.totals.contiguous(), self._count(width * vocab)
        total = logits.new_empty(sentences, count)
        origin, token = (torch.empty(sentences, count, dtype=torch.long) for _ in range(2))
        missing = compiled.library().choose_best(
            logits.data_ptr(), totals.data_ptr(), sentences, width, vocab, forbidden.data_ptr(), len(forbidden), count,
            total.data_ptr(), origin.data_ptr(), token.data_ptr(),
        )  # fmt: skip
        return None if missing else Candidates(total, origin, token)

    def _count(self, most: int) -> int:
        """The number of candidates: twice the width, since up to half of them may be the end token."""
        width = self.settings.width
        return 1 if width == 1 else min(2 * width, most)

    def _best(self, log_p: Float[Tensor, "S W V"], grid: Grid) -> Candidates:
        """The most probable continuations."""
        vocab = log_p.shape[-1]
        totals = log_p.add_(grid.totals[:, :, None]).flatten(1)
        total, index = _top(totals, self._count(totals.shape[1]))
        return Candidates(total, index // vocab, index % vocab)

    def _sampled(
        self, log_p: Float[Tensor, "S 1 V"], own: Float[Tensor, "S 1 V"], grid: Grid, draws: Float[Tensor, "S 1"]
    ) -> Candidates:
        """One token per row, drawn from the tempered and truncated distribution; scored by the model's own."""
        probability, order = truncated_distribution(log_p[:, 0], self.settings)
        reached = probability.cumsum(dim=-1)
        place = torch.searchsorted(reached, draws * reached[:, -1:], right=True)
        token = order.gather(1, place.clamp(max=order.shape[1] - 1))
        return Candidates(grid.totals + own[:, 0].gather(1, token), torch.zeros_like(token), token)


def truncated_distribution(
    log_p: Float[Tensor, "N V"], settings: SearchSettings
) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"]]:
    """What sampling draws from: probabilities (unnormalised, 0 where truncated) and tokens, most probable first."""
    tempered = log_p / max(settings.temperature, MIN_TEMPERATURE)
    few = 0 < settings.top_k < tempered.shape[1]
    scores, order = tempered.topk(settings.top_k) if few else tempered.sort(dim=-1, descending=True)
    probability = scores.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability  # the mass of everything more probable
    unlikely = probability < settings.min_p * probability[:, :1]
    return probability.masked_fill((before >= settings.top_p) | unlikely, 0.0), order


def _columns(logits: Float[Tensor, "S W V"], dtype: torch.dtype) -> Tensor:
    """Zeros, one column wider than the vocabulary: the last stands for places of the history without a token."""
    return torch.zeros(*logits.shape[:2], logits.shape[2] + 1, dtype=dtype, device=logits.device)


def _top(scores: Float[Tensor, "S N"], count: int) -> tuple[Float[Tensor, "S C"], Int[Tensor, "S C"]]:
    """`topk`, but faster on many scores: the best can only lie in the `count` blocks with the largest maxima."""
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
