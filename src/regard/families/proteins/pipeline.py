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
from regard.data.proteins import Residues, encode, read_residues
from regard.errors import DataError, UsageError
from regard.families.proteins.data import InteractionBatch, InteractionSettings, similar_lengths
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
        pairs = [self._read_pair(*pair) for pair in zip(ones, others, strict=True)]
        answers = [Interaction(0.0)] * len(pairs)
        lengths = np.array([max(len(one.sequence), len(other.sequence)) for one, other in pairs], dtype=np.int64)
        for rows in similar_lengths(lengths, RESIDUES):
            scores = self._scores([(pairs[row][0].sequence, pairs[row][1].sequence) for row in rows])
            for row, probability in zip(rows, scores.sigmoid().tolist(), strict=True):
                one, other = pairs[row]
                told = *(f"first: {change}" for change in one.told), *(f"second: {change}" for change in other.told)
                answers[row] = Interaction(probability, told)
        return answers

    @torch.inference_mode()
    def attention(self, first: str, second: str, *, layers: str = "*") -> InteractionAttention:
        """The recorded attention of reading a pair."""
        require_attention(self.model, self.name)
        one, other = self._read_pair(first, second)
        sequences = one.sequence, other.sequence
        with record_neurons(self.model, layers) as seen, record(self.model, layers) as looks:
            self._scores([sequences])
        span = self.config.residues_per_token
        tokens = [-(-len(sequence) // span) for sequence in sequences]
        weights, neurons = {}, {}
        for name, found in looks.items():
            both = found.float().cpu().numpy()
            keys = tokens[::-1] if name.endswith("cross") else tokens
            queries = [1, 1] if name == POOL else tokens
            weights[name] = both[0, :, : queries[0], : keys[0]], both[1, :, : queries[1], : keys[1]]
            one_side, other_side = (
                seen[name].input(side).part(slice(queries[side]), slice(keys[side])) for side in (0, 1)
            )
            neurons[name] = one_side, other_side
        return InteractionAttention(sequences, span, weights, neurons)

    def _read_pair(self, first: str, second: str) -> tuple[Residues, Residues]:
        return self._read(first, "the first protein"), self._read(second, "the second protein")

    def _read(self, text: str, where: str) -> Residues:
        protein = read_residues(text, where)
        if len(protein.sequence) > self.config.max_length:
            raise DataError(
                f"{where} that begins with {protein.sequence[:10]} has {len(protein.sequence):,} residues; this model "
                f"reads at most {self.config.max_length:,}: give a part of it"
            )
        return protein

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> Float[Tensor, N]:
        first, second = ([encode(pair[side]) for pair in pairs] for side in (0, 1))
        batch = InteractionBatch.of(first, second, np.zeros(len(pairs))).to(self.device)
        return self.model(*batch.inputs).float().cpu()
