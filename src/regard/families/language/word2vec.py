"""Word vectors: skip-gram and continuous bag of words with negative sampling (Mikolov et al. 2013a, 2013b).

Presets: tiny (for small corpora), skipgram and cbow with the sizes of the authors' program (100 numbers, windows of 5,
5 noise words).
Deviations: all words around a word share its noise words (the loss has the same expectation); CBoW follows the gradient
of its mean, which the authors' program does not divide by the number of words.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config
from regard.layers.example import Example

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 50, "window": 3},
    "skipgram": {"kind": "skipgram"},
    "cbow": {"kind": "cbow"},
}


class Word2VecConfig(Config):
    """Sizes and choices of word vectors."""

    vocab: PositiveInt
    width: PositiveInt = 100
    kind: Literal["skipgram", "cbow"] = "skipgram"  # a word predicts its neighbours, or they predict it
    window: PositiveInt = 5  # the most words on either side; the number is drawn for each word
    negatives: PositiveInt = 5  # noise words per word


class Lookups(NamedTuple):
    """What a batch reads: a word is known by Σ shares · words[inputs], and scored against around[targets].

    The first `true` targets should be scored high, the others (noise) low; a weight of 0 leaves a target out.
    """

    inputs: Int[Tensor, "B I"]
    shares: Float[Tensor, "B I"]
    targets: Int[Tensor, "B P"]
    weights: Float[Tensor, "B P"]
    true: int


class Scores(NamedTuple):
    """Scores of true words, which should be high, and of noise words, which should be low, with the weight of each."""

    true: Float[Tensor, "B P"]
    true_weight: Float[Tensor, "B P"]
    noise: Float[Tensor, "B K"]
    noise_weight: Float[Tensor, "B K"]


class Word2Vec(nn.Module):
    """Two vectors for every word: one as input (`words`), one as output (`around`)."""

    def __init__(self, config: Word2VecConfig):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab, config.width)
        self.around = nn.Embedding(config.vocab, config.width)
        nn.init.uniform_(self.words.weight, -0.5 / config.width, 0.5 / config.width)
        nn.init.zeros_(self.around.weight)

    def forward(
        self,
        words: Int[Tensor, "B"],
        around: Int[Tensor, "B C"],
        mask: Bool[Tensor, "B C"],
        noise: Int[Tensor, "B K"],
    ) -> Scores:
        """Score the neighbours of each word (skip-gram), or each word (cbow), against noise; `mask` marks real ones."""
        looked = self.lookups(words, around, mask, noise)
        scores = torch.bmm(_rows(self.around, looked.targets), self.known(looked)[..., None])[..., 0]
        true, weights = looked.true, looked.weights
        return Scores(scores[:, :true], weights[:, :true], scores[:, true:], weights[:, true:])

    def lookups(
        self,
        words: Int[Tensor, "B"],
        around: Int[Tensor, "B C"],
        mask: Bool[Tensor, "B C"],
        noise: Int[Tensor, "B K"],
    ) -> Lookups:
        """The rows that a batch reads. Noise words that equal a true word do not count."""
        real = mask.to(self.words.weight.dtype)
        if self.config.kind == "skipgram":
            inputs, shares, true, weight = words[:, None], torch.ones_like(real[:, :1]), around, real
        else:
            inputs, shares, true = around, real / real.sum(1, keepdim=True).clamp(min=1), words[:, None]
            weight = real.amax(1, keepdim=True)  # a word without context is not predicted
        wrong = ((noise[:, :, None] != true[:, None]) | (weight[:, None] == 0)).all(-1)
        weights = torch.cat([weight, wrong * weight.sum(1, keepdim=True)], 1)
        return Lookups(inputs, shares, torch.cat([true, noise], 1), weights, true.shape[1])

    def known(self, looked: Lookups) -> Float[Tensor, "B D"]:
        """The vector that each word is known by."""
        return functional.embedding_bag(looked.inputs, self.words.weight, mode="sum", per_sample_weights=looked.shares)


def _rows(table: nn.Embedding, tokens: Int[Tensor, "B P"]) -> Float[Tensor, "B P D"]:
    """`table(tokens)`, by an operation whose gradient takes half the time on a CPU."""
    return table.weight.index_select(0, tokens.flatten()).view(*tokens.shape, -1)


def _read_windows(model: "Word2Vec", rows: int, source: int, target: int) -> Scores:
    """The words of `rows` texts, each with a full window of neighbours."""
    c, count = model.config, rows * target
    around, noise = (torch.zeros(count, size, dtype=torch.long) for size in (2 * c.window, c.negatives))
    return model(around[:, 0], around, torch.ones_like(around, dtype=torch.bool), noise)


EXAMPLE = Example(_read_windows, "target", "texts of {target} tokens")
