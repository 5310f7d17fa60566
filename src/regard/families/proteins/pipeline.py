"""Two proteins in, the probability that they bind out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention import record
from regard.data.arguments import all_texts
from regard.data.proteins.alphabet import encode, read_residues
from regard.errors import DataError, UsageError
from regard.families.proteins.data import InteractionSettings, padded_proteins
from regard.families.proteins.model import Interactor
from regard.look.forced_pass import require_attention
from regard.look.neurons import LayerNeurons, record_neurons
from regard.search.pipeline import load_for_pipeline

RESIDUES = 1 << 16  # that are read at once
POOL = "pool"  # the layer that pools the tokens of a protein


@dataclass(frozen=True)
class Interaction:
    """The probability that two proteins bind, and what was changed in their sequences to read them, in words."""

    probability: float
    told: tuple[str, ...] = ()

    @property
    def binds(self) -> bool:
        return self.probability > 0.5


@dataclass(frozen=True)
class InteractionAttention:
    """The attention of every layer and head, for both proteins: within each, to the other, and of the pooling query.

    Tokens are `span` residues each. `weights[layer]` has the first protein's and the second's, and so has
    `neurons[layer]`, what their scores are made of.
    """

    sequences: tuple[str, str]
    span: int
    weights: dict[str, tuple[Float[np.ndarray, "H Tq Tk"], Float[np.ndarray, "H Sq Sk"]]]
    neurons: dict[str, tuple[LayerNeurons, LayerNeurons]]


class InteractionPredictor:
    """A model of pairs of proteins."""

    pipeline: ClassVar = "interactions"

    def __init__(self, model: Interactor, settings: InteractionSettings, *, name: str = "") -> None:
        self.model, self.settings, self.name = model.eval(), settings, name
        self.config, self.device = model.config, next(model.parameters()).device

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> InteractionPredictor:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot="reads no protein pairs")
        assert isinstance(loaded.model, Interactor)
        return cls(loaded.model, InteractionSettings.load(loaded.folder), name=Path(folder).name)

    @torch.inference_mode()
    def interact(self, first: str | Sequence[str], second: str | Sequence[str]) -> list[Interaction]:
        """Whether each protein of `first` binds the one of the same place in `second`; swapping them changes
        nothing."""
        ones, others = all_texts(first), all_texts(second)
        if len(ones) != len(others):
            raise UsageError(f"{len(ones)} proteins came with {len(others)} others; give as many of both")
        read = [(self._read(one, "the first protein"), self._read(other, "the second protein"))
                for one, other in zip(ones, others, strict=True)]  # fmt: skip
        lengths = np.array([max(len(one[0]), len(other[0])) for one, other in read])
        order, answers = np.argsort(-lengths, kind="stable"), [Interaction(0.0)] * len(read)
        start = 0
        while start < len(order):
            some = order[start : start + max(1, RESIDUES // (2 * int(lengths[order[start]])))]
            scores = self._scores([(read[row][0][0], read[row][1][0]) for row in some])
            for row, probability in zip(some, scores.sigmoid().tolist(), strict=True):
                told = (f"{side}: {each}" for side, found in zip(("first", "second"), read[row], strict=True)
                        for each in found[1])  # fmt: skip
                answers[row] = Interaction(probability, tuple(told))
            start += len(some)
        return answers

    @torch.inference_mode()
    def attention(self, first: str, second: str, *, layers: str = "*") -> InteractionAttention:
        """The recorded attention of reading a pair."""
        require_attention(self.model, self.name)
        pair = self._read(first, "the first protein")[0], self._read(second, "the second protein")[0]
        with record_neurons(self.model, layers) as seen, record(self.model, layers) as looks:
            self._scores([pair])
        span = self.config.residues_per_token
        one, other = (-(-len(sequence) // span) for sequence in pair)
        weights, neurons = {}, {}
        for name, found in looks.items():
            both = found.float().cpu().numpy()
            keys = (other, one) if name.endswith("cross") else (one, other)
            queries = (1, 1) if name == POOL else (one, other)
            weights[name] = both[0, :, : queries[0], : keys[0]], both[1, :, : queries[1], : keys[1]]
            one_side, other_side = (
                seen[name].input(side).part(slice(queries[side]), slice(keys[side])) for side in (0, 1)
            )
            neurons[name] = one_side, other_side
        return InteractionAttention(pair, span, weights, neurons)

    def _read(self, text: str, where: str) -> tuple[str, tuple[str, ...]]:
        sequence, told = read_residues(text, where)
        if len(sequence) > self.config.max_length:
            raise DataError(
                f"{where} that begins with {sequence[:10]} has {len(sequence):,} residues; this model reads at most "
                f"{self.config.max_length:,}: give a part of it"
            )
        return sequence, told

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> Float[Tensor, N]:
        first, second = (padded_proteins([encode(pair[side]) for pair in pairs]) for side in (0, 1))
        return self.model(*(each.to(self.device) for each in (*first, *second))).score.float().cpu()
