"""A protein's sequence or alignment in; distances, contacts, and a backbone in space with its confidence out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from regard.attention import record
from regard.attention.record import attention_names
from regard.data.proteins import Alignment, given_proteins, read_alignment, read_proteins, read_residues
from regard.device import free_bytes
from regard.errors import DataError
from regard.families.folding.data import FoldingSettings, ProteinInput, pad_inputs
from regard.families.folding.model import (
    Evoformer,
    EvoformerConfig,
    contact_probabilities,
    expected_distances,
    expected_lddt,
)
from regard.families.folding.structures import SUFFIXES as STRUCTURES
from regard.families.folding.structures import Chain, read_structure
from regard.look.neurons import LayerNeurons, record_neurons
from regard.search.pipeline import batches_that_fit, load_for_pipeline

FLOAT = 4  # bytes
MOST_NEURONS = 8 * 2**20  # numbers of queries, keys and biases that are kept of one chain, as many as a page holds
PAIRS_AT_ONCE = 1 << 16  # of residues, in all chains of a batch
PERCENT = 100.0
ALIGNMENTS = (".a3m", ".afa")  # suffixes of files that are one alignment; other files have sequences to fold
COLUMN, STRUCTURE, TRIANGLES = "column.attention", "structure", ("starting.attention", "ending.attention")
LONGEST_NAME = 255  # bytes of a file's name; longer texts are sequences
NOT_CLAIMED = "a model of tens of chains: no claim of folding; see the confidence"


@dataclass(frozen=True)
class ResidueAttention:
    """What the residues of a chain look at in every layer and head, and what the scores are made of, where it is
    known."""

    weights: dict[str, Float[np.ndarray, "H L L"]]
    neurons: dict[str, LayerNeurons]


@dataclass(frozen=True)
class Prediction:
    """A predicted structure: places of CA atoms in Å, the expected lDDT of each residue (0 to 100), and of each pair
    the expected distance of CB atoms and the probability of a contact."""

    given: ProteinInput = field(repr=False)
    places: Float[np.ndarray, "L 3"] = field(repr=False)
    confidence: Float[np.ndarray, " L"] = field(repr=False)
    distances: Float[np.ndarray, "L L"] = field(repr=False)
    contacts: Float[np.ndarray, "L L"] = field(repr=False)
    logits: Float[np.ndarray, "L L bins"] = field(repr=False)  # of the distances

    @property
    def name(self) -> str:
        return self.given.name

    @property
    def told(self) -> tuple[str, ...]:
        """What was changed while the protein was read, in words."""
        return self.given.told

    @property
    def mean_confidence(self) -> float:
        return float(self.confidence.mean())

    @property
    def chain(self) -> Chain:
        """The CA atoms as a chain that can be written to a file."""
        return Chain.trace(self.name, self.given.sequence, self.places.astype(np.float32))


class StructurePredictor:
    """A model of structures, and how it reads alignments."""

    pipeline: ClassVar = "structure_predictor"

    def __init__(self, model: nn.Module, settings: FoldingSettings, *, name: str = "") -> None:
        assert isinstance(model, Evoformer)
        self.model, self.settings, self.name = model.eval(), settings, name
        self.config: EvoformerConfig = model.config
        self.device = next(model.parameters()).device

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> StructurePredictor:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot="folds no proteins")
        return cls(loaded.model, FoldingSettings.load(loaded.folder), name=Path(folder).name)

    def read(self, what: str | Path | bytes) -> list[ProteinInput]:
        """What a text or a file asks for: a sequence, the sequences of a FASTA file or of its bytes, an alignment
        (A3M), or the sequences of a structure (mmCIF, PDB)."""
        return [
            ProteinInput.of(name, sequence, alignment, coupled=self.config.couplings, told=told)
            for name, sequence, told, alignment in _read(what)
        ]

    def fold(self, what: str | Sequence[str]) -> list[Prediction]:
        """The structures of sequences or files, in order."""
        texts = [what] if isinstance(what, str) else list(what)
        return self.predict([protein for text in texts for protein in self.read(text)])

    @torch.inference_mode()
    def predict(self, proteins: Sequence[ProteinInput], poll: Callable[[], None] = lambda: None) -> list[Prediction]:
        """The structures of what was read, several at a time; `poll` may raise to stop."""
        for protein in proteins:
            self.refuse_too_long(protein)
        predictions: dict[int, Prediction] = {}
        for numbers in pair_batches(list(map(len, proteins))):
            poll()
            some = [proteins[number] for number in numbers]
            predictions |= zip(numbers, self._predictions(some), strict=True)
        return [predictions[number] for number in range(len(proteins))]

    def _predictions(self, proteins: Sequence[ProteinInput]) -> Iterator[Prediction]:
        answer = self.model(*pad_inputs(proteins, self.settings.rows).to(self.device))
        of_residues = answer.frames.translation[-1], PERCENT * expected_lddt(answer.confidence)
        of_pairs = expected_distances(answer.distances), contact_probabilities(answer.distances), answer.distances
        places, confidence, *pairs = (part.float().cpu().numpy() for part in (*of_residues, *of_pairs))
        for at, protein in enumerate(proteins):
            size = len(protein)
            distances, contacts, logits = (part[at, :size, :size] for part in pairs)
            yield Prediction(protein, places[at, :size], confidence[at, :size], distances, contacts, logits)

    @torch.inference_mode()
    def attention(self, given: ProteinInput) -> ResidueAttention:
        """What residues look at in every layer, in one pass without recycling, and what the scores are made of.

        Rows of an alignment: the first row. Triangle attention, in which a pair i, j has weights over the pairs i, k:
        the mean over j. The structure module: its last pass. Attention along columns is not between residues, and is
        left out. Layers are recorded one by one, since the weights of triangle attention grow with the cube of length.
        A layer whose queries and keys would make more than MOST_NEURONS numbers of all has none.
        """
        self.refuse_too_long(given)
        inputs, found = pad_inputs([given], self.settings.rows).to(self.device), ResidueAttention({}, {})
        left = MOST_NEURONS
        for name in attention_names(self.model):
            if name.endswith(COLUMN):
                continue
            stop = not name.startswith(STRUCTURE)
            with record_neurons(self.model, name) as seen, record(self.model, name, stop=stop) as looks:
                self.model(*inputs, recycles=0)
            weights = looks[name]
            triangles = name.endswith(TRIANGLES)
            seen_by = weights.mean(dim=2).transpose(0, 1) if triangles else weights[0, :, -weights.shape[-1] :]
            found.weights[name] = seen_by.float().cpu().numpy()
            neurons = _neurons_of_triangles(seen[name]) if triangles else seen[name].input(0)
            if neurons.size <= left:
                found.neurons[name] = neurons
                left -= neurons.size
        return found

    def refuse_too_long(self, given: ProteinInput) -> None:
        """Refuse a chain whose pairs do not fit into memory, before anything is allocated."""
        rows = min(len(given.rows), self.settings.rows)
        needed, there = inference_bytes(self.config, len(given), rows), free_bytes(self.device)
        if needed > there:
            raise DataError(
                f"{given.name} has {len(given):,} residues, which need about {needed / 2**30:,.1f} GiB (memory grows "
                f"with their square); {there / 2**30:,.1f} GiB are free: cut it into domains, or use a smaller model"
            )


def _neurons_of_triangles(neurons: LayerNeurons) -> LayerNeurons:
    """What the scores of triangle attention are made of. Every residue i has a window of its own: the mean of the
    queries of the pairs i, j asks the keys of the pairs i, k, and its scores are the mean of theirs."""
    residues = np.arange(neurons.keys.shape[2])
    cells = residues[:, None], np.tile(residues, (len(residues), 1))
    return replace(neurons.mean_over([slice(None)]), cells=cells)


def inference_bytes(c: EvoformerConfig, residues: int, rows: int) -> int:
    """The most memory that a prediction takes beside the weights; the pairs of residues need nearly all of it."""
    heads = max(c.pair_heads * c.pair_head_width, c.triangle_width)
    outer = 2 * c.outer_width**2 if c.to_pairs == "outer" else 4 * c.pair_width
    pair = 2 * c.pair_width + max(outer, 4 * c.triangle_width + 5 * heads, (1 + 2 * c.growth) * c.pair_width)
    each = c.width * (3 + 2 * c.growth) + 6 * c.heads * c.head_width
    return FLOAT * (residues**2 * pair + rows * residues * each)


def _read(what: str | Path | bytes) -> Iterator[tuple[str, str, tuple[str, ...], Alignment | None]]:
    """The name, the sequence, what was changed in it, and the alignment of each protein."""
    if isinstance(what, bytes):
        for protein in given_proteins(what, "the input"):
            yield *protein, None
        return
    path = Path(what)
    if isinstance(what, str) and not _is_file(what):
        yield "sequence", *read_residues(what), None
    elif path.is_dir():
        raise DataError(f"{what} is a folder; give a sequence, or the files in it")
    elif not path.is_file():
        raise DataError(f"there is no file {str(what)!r}; expected a sequence, or a file as FASTA or A3M")
    elif set(path.suffixes) & set(ALIGNMENTS):
        alignment = read_alignment(path)
        yield alignment.names[0], alignment.query, (), alignment
    elif set(path.suffixes) & set(STRUCTURES):
        for chain in read_structure(path):
            yield chain.name, chain.sequence, ("of the structure, the sequence alone is read",), None
    else:
        for protein in read_proteins(path):
            yield *protein, None


def _is_file(text: str) -> bool:
    """Whether a text is meant as the name of a file: it looks like one, or there is one."""
    return any(mark in text for mark in "./\\") or (0 < len(text.strip()) <= LONGEST_NAME and Path(text).exists())


def pair_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of chains, shortest first, in groups whose pairs of residues are computed together."""
    return batches_that_fit(lengths, lambda count, longest: count * longest**2 <= PAIRS_AT_ONCE)
