"""Word vectors: skip-gram and continuous bag of words with negative sampling (Mikolov et al. 2013a, 2013b).

Presets: tiny (for small corpora), skipgram and cbow with the sizes of the authors' program (100 numbers, windows of 5,
5 noise words).
Deviations: all words around a word share its noise words (the loss has the same expectation); any optimiser.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config

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
        """Score the neighbours of each word (skip-gram), or each word (cbow), against noise; `mask` marks real ones.

        Noise words that equal a true word do not count.
        """
        real = mask.to(self.words.weight.dtype)
        if self.config.kind == "skipgram":
            known, true, weight = self.words(words), around, real
        else:
            total = functional.embedding_bag(around, self.words.weight, mode="sum", per_sample_weights=real)
            known, true = total / real.sum(1, keepdim=True).clamp(min=1), words[:, None]
            weight = real.amax(1, keepdim=True)  # a word without context is not predicted
        wrong = ((noise[:, :, None] != true[:, None]) | (weight[:, None] == 0)).all(-1)
        noise_weight = wrong * weight.sum(1, keepdim=True)
        scores = torch.bmm(_rows(self.around, torch.cat([true, noise], 1)), known[..., None])[..., 0]
        return Scores(scores[:, : true.shape[1]], weight, scores[:, true.shape[1] :], noise_weight)


def _rows(table: nn.Embedding, tokens: Int[Tensor, "B P"]) -> Float[Tensor, "B P D"]:
    """`table(tokens)`, by an operation whose gradient takes half the time on a CPU."""
    return table.weight.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
