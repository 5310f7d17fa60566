"""Attention with a choice of score functions, from Bahdanau's alignment model to the scaled dot product.

Bahdanau 2015 (additive), Luong 2015 (dot, general), Vaswani 2017 (scaled dot), Xu 2015 (soft and hard reading).
"""

import math
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.places import Argument, Result

Score = Literal["additive", "dot", "general", "scaled_dot"]
Reading = Literal["soft", "hard"]
Estimator = Literal["straight_through", "reinforce"]
LEAST_PROBABILITY = 1e-12  # below it the logarithm of a probability is cut off


class Attended(NamedTuple):
    """What T queries of each of B sequences saw; a loss on attention needs no more of it.

    `weights` are those of the contexts: one-hot where a place was drawn. `probabilities` are the soft weights that it
    was drawn from. `drawn` says which sequences drew; the others read the expectation. It is None if none did. `gates`
    are what a decoder multiplied the contexts by.
    """

    probabilities: Float[Tensor, "B T S"]
    weights: Float[Tensor, "B T S"]
    drawn: Bool[Tensor, "B"] | None = None
    gates: Float[Tensor, "B T"] | None = None

    @property
    def log_probability(self) -> Float[Tensor, "B T"]:
        """log a_s of the place s that each query drew."""
        chosen = (self.probabilities * self.weights.detach()).sum(dim=-1)
        return chosen.float().clamp_min(LEAST_PROBABILITY).log()

    @property
    def entropy(self) -> Float[Tensor, "B T"]:
        """-Σ_i a_i log a_i of each query."""
        return torch.special.entr(self.probabilities.float().clamp_min(LEAST_PROBABILITY)).sum(dim=-1)


class ScoredAttention(nn.Module):
    """One-headed attention over a memory: e = f_att(query, memory), a = softmax(e), context = Σ a_i memory_i.

    `dot` and `scaled_dot` need a query and a memory of equal width; `additive` is W3 tanh(W1 memory + W2 query);
    `general` is query W memory. With `hard` reading exactly one position is read: drawn from `a` in training, the most
    probable one in evaluation. A draw has no derivative. `straight_through` gives it that of the soft weights, which is
    biased but needs no further loss. `reinforce` gives it none: the loss must have a term for it, whose gradient is
    unbiased (`training/hard_attention.py`).
    """

    PLACES: ClassVar = {
        "queries": Argument(),
        "values": Argument(whole=True, index=1),
        "keys": Argument(whole=True, index=2),
        "heads": Result(index=0),
    }

    def __init__(
        self,
        query_width: int,
        memory_width: int,
        hidden: int | None = None,
        *,
        score: Score = "additive",
        reading: Reading = "soft",
        estimator: Estimator = "straight_through",
    ):
        super().__init__()
        if score in ("dot", "scaled_dot") and query_width != memory_width:
            raise ValueError(
                f"score {score!r} compares query and memory directly, but they are {query_width} and {memory_width} "
                "wide; make them equal or use 'general' or 'additive'"
            )
        self.score, self.reading, self.estimator = score, reading, estimator
        self.scale = 1 / math.sqrt(memory_width) if score == "scaled_dot" else 1.0
        hidden = hidden or memory_width
        if score == "additive":
            self.of_memory = nn.Linear(memory_width, hidden, bias=False)  # W1
            self.of_query = nn.Linear(query_width, hidden)  # W2
            self.to_score = nn.Linear(hidden, 1, bias=False)  # W3
        elif score == "general":
            self.of_memory = nn.Linear(memory_width, query_width, bias=False)

    def project(self, memory: Float[Tensor, "B S M"]) -> Float[Tensor, "B S P"]:
        """The part of the score that does not depend on the query; compute it once per sentence."""
        return self.of_memory(memory) if self.score in ("additive", "general") else memory

    def scores(self, query: Float[Tensor, "B W Q"], keys: Float[Tensor, "B S P"]) -> Float[Tensor, "B W S"]:
        """e_{w,i} = f_att(query_w, memory_i), before the softmax."""
        if self.score == "additive":
            mixed = torch.tanh(keys[:, None] + self.of_query(query)[:, :, None])  # [B W S hidden]
            return self.to_score(mixed).squeeze(-1)
        return query @ keys.transpose(1, 2) * self.scale

    def forward(
        self,
        query: Float[Tensor, "B W Q"],
        memory: Float[Tensor, "B S M"],
        keys: Float[Tensor, "B S P"] | None = None,
        mask: Bool[Tensor, "B S"] | None = None,
        drawn: Bool[Tensor, "B"] | None = None,
    ) -> tuple[Float[Tensor, "B W M"], Float[Tensor, "B W S"], Float[Tensor, "B W S"]]:
        """The context that each query reads from the memory, the weights it reads by, and the soft weights.

        With `drawn`, a hard reading draws for these sequences only; the others read the expectation.
        """
        keys = self.project(memory) if keys is None else keys
        scores = self.scores(query, keys)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -math.inf)
        soft = weights = scores.softmax(dim=-1)
        if self.reading == "hard":
            hard = self.draw(soft)
            weights = hard if drawn is None else torch.where(drawn[:, None, None], hard, soft)
        return weights @ memory, weights, soft

    def draw(self, weights: Float[Tensor, "B W S"]) -> Float[Tensor, "B W S"]:
        """One-hot weights: a position drawn from `weights` in training, the best one in evaluation (Xu 2015)."""
        chances = weights.detach()
        if self.training:  # the first of independent clocks to ring; torch.multinomial would make a GPU wait
            chances = chances / torch.empty_like(chances).exponential_()
        one_hot = torch.zeros_like(weights).scatter(-1, chances.argmax(dim=-1, keepdim=True), 1.0)
        if self.estimator == "reinforce":
            return one_hot
        return one_hot + (weights - weights.detach())  # the value is one-hot, the gradient is that of the weights
