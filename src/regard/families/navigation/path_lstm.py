"""A recurrent scorer of paths, the baseline of VLN-BERT: an LSTM reads the words, another one the steps.

The last states of both are multiplied, and a small network makes the score of the product.
Preset: tiny. There is no paper; the speaker-follower models (Fried et al. 2018) score paths with LSTMs as well.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.config import Config, Fraction
from regard.families.vision_language.model import read_text_and_regions
from regard.layers.blocks import FeedForward
from regard.layers.example import Example
from regard.layers.recurrent import Recurrent

PRESETS: dict[str, dict[str, Any]] = {"tiny": {"embedding": 64, "width": 64, "dropout": 0.1}}


class PathLstmConfig(Config):
    """Sizes of a recurrent scorer of paths."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    embedding: PositiveInt = 128
    width: PositiveInt = 256
    max_length: PositiveInt = 512
    region_features: PositiveInt = 51  # numbers of a step
    region_places: PositiveInt = 11  # of these, those that say where it is
    dropout: Fraction = 0.3

    @property
    def longest(self) -> int:
        """The most tokens the model reads at once."""
        return self.max_length


class PathScore(NamedTuple):
    """How well each text fits its path."""

    score: Float[Tensor, "B"]


class PathLstm(nn.Module):
    """Two recurrent networks and a score of the product of their last states."""

    def __init__(self, config: PathLstmConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocab, c.embedding)
        self.words = Recurrent("lstm", c.embedding, c.width, bidirectional=True)
        self.steps = Recurrent("lstm", c.region_features + c.region_places, c.width, bidirectional=True)
        self.joint = nn.ModuleList(nn.Linear(2 * c.width, c.width) for _ in range(2))
        self.dropout = Dropout(c.dropout)
        self.output = FeedForward(c.width, c.width, "relu", c.dropout, outputs=1)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        features: Float[Tensor, "B R F"],
        places: Float[Tensor, "B R P"],
        region_mask: Bool[Tensor, "B R"],
    ) -> PathScore:
        """Read texts and paths, both padded on the right."""
        _, words = self.words(self.dropout(self.embedding(tokens)), mask=mask)
        _, steps = self.steps(torch.cat([features, places], dim=-1), mask=region_mask)
        read, walked = (
            torch.tanh(layer(self.dropout(torch.cat([state[0, 0], state[0, 1]], dim=-1))))
            for layer, state in zip(self.joint, (words, steps), strict=True)
        )
        return PathScore(self.output(read * walked)[:, 0])


EXAMPLE = Example(read_text_and_regions, reads="texts of {source} tokens with paths of {target} steps")
