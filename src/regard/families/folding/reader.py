"""A model of structures as sparse autoencoders read it: residues and pairs, and how wrong their distances are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.data.proteins import decode, read_residues
from regard.data.sources import PARTS
from regard.families.folding.data import (
    FoldInputs,
    ProteinInput,
    alignments_of,
    examples_of,
    pad_inputs,
    spread,
    usable_chains,
)
from regard.families.folding.metrics import distance_losses
from regard.families.folding.model import Folded, contact_probabilities, distance_edges, expected_lddt
from regard.families.folding.pipeline import StructurePredictor, pair_batches
from regard.families.folding.structures import BUILT_IN
from regard.look.reader import Example, Reader, Source, TokenUnits

STRUCTURE = "structure."  # begins the names of places whose positions are residues at every pass
PAIRS = ("_pairs", "outgoing.hidden", "incoming.hidden", "pair_transition.hidden")  # end those of pairs of residues
FARTHEST = 10.0  # ångströms: an error of a distance in space counts at most as much
APART, SHOWN = 6, 3  # residues of a contact that is told, and how many are


class ChainInputs(NamedTuple):
    """Proteins as the model reads them, and the places of their CB and CA atoms as far as these are known."""

    inputs: FoldInputs
    points: Float[Tensor, "B T 3"]
    backbone: Float[Tensor, "B T 3"]
    known: Bool[Tensor, "B T"]


class ChainReader(Reader[ChainInputs]):
    """A model of structures that reads a protein in one pass, without recycling.

    The positions of a block are the residues of every row of the alignment, or pairs of residues; those of the
    structure module are the residues at each of its passes.
    """

    columns: ClassVar = {"rows": "|i1", "numbers": "<i4", "couplings": "<f4", "places": "<f4", "known": "|u1"}
    built_in: ClassVar = (BUILT_IN,)
    pipeline: StructurePredictor

    def examples(self, source: Source) -> Iterator[Example]:
        numbers = (len(PARTS) * number + PARTS.index(source.part) for number in range(source.count))
        chains = usable_chains(source.path, numbers, source.seed, longest=source.block, skipped=[])[: source.count]
        alignments = alignments_of(source.path, chains)
        for given, chain in examples_of(chains, alignments, coupled=self.pipeline.config.couplings):
            (points, seen), (backbone, known) = chain.contact_points(), chain.backbone
            yield self._packed(given, np.concatenate([points, backbone[:, 1]], axis=1), seen & known)

    def given(self, text: str) -> Example:
        """A sequence, whose structure is not known."""
        sequence = read_residues(text).sequence
        given = ProteinInput.of("sequence", sequence, coupled=self.pipeline.config.couplings)
        return self._packed(given, np.zeros((len(given), 6)), np.zeros(len(given)))

    def batch(self, examples: Sequence[Example]) -> ChainInputs:
        inputs = pad_inputs([_protein(example) for example in examples], self.pipeline.settings.rows)
        places, known = torch.zeros(*inputs.mask.shape, 6), torch.zeros_like(inputs.mask)
        for number, (_, _, _, atoms, there) in enumerate(examples):
            places[number, : len(there)] = torch.tensor(atoms).view(-1, 6)
            known[number, : len(there)] = torch.tensor(there).bool()
        points, backbone = places.to(self.device).split(3, dim=-1)
        return ChainInputs(inputs.to(self.device), points, backbone, known.to(self.device))

    def batches(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        return pair_batches([len(example[1]) for example in examples])

    def run(self, batch: ChainInputs) -> Folded:
        return self.model(*batch.inputs, recycles=0)

    def loss(self, batch: ChainInputs) -> tuple[float, int]:
        """Of every pair of residues: the cross-entropy of the binned distance of CB atoms, as in training, and the
        error of the distance of CA atoms in space as a share of 10 Å. Training has the error of frames instead, which
        needs all atoms of the backbone."""
        folded, counted = self.run(batch), batch.known[:, :, None] & batch.known[:, None]
        edges = distance_edges(folded.distances.shape[-1], self.device)
        distances = distance_losses(folded.distances, batch.points, edges)
        wrong = (_distances(folded.frames.translation[-1]) - _distances(batch.backbone)).abs().clamp(max=FARTHEST)
        return float((distances + wrong / FARTHEST)[counted].sum()), int(counted.sum())

    def real(self, batch: ChainInputs, place: str) -> Bool[Tensor, "B ..."]:
        mask, rows = batch.inputs.mask, batch.inputs.rows_mask
        if place.startswith(STRUCTURE):
            return mask.repeat(1, self.pipeline.config.passes)
        if place.endswith(PAIRS):
            return mask[:, :, None] & mask[:, None]
        return rows[:, :, None] & mask[:, None]

    def units(self, example: Example, place: str) -> TokenUnits:
        """Residues with their numbers, in every row of the alignment or at every pass, or pairs of them."""
        given = _protein(example)
        names = [f" {letter}{number + 1}" for letter, number in zip(given.sequence, given.numbers, strict=True)]
        if place.startswith(STRUCTURE):
            return TokenUnits(names * self.pipeline.config.passes)
        if place.endswith(PAIRS):
            return TokenUnits([f"{one}:{other.strip()}" for one in names for other in names])
        rows = [[f" {letter}{name[2:]}" for letter, name in zip(decode(row), names, strict=True)] for row in given.rows]
        return TokenUnits([name for row in rows for name in row])

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The mean confidence, and the most probable contacts of residues that are far apart in the chain."""
        folded = self.run(self.batch([example]))
        near = contact_probabilities(folded.distances[0]).triu(APART)
        best, numbers = near.flatten().topk(min(SHOWN, near.numel())), np.asarray(example[1]) + 1
        contacts = [
            f"{numbers[at // len(near)]}-{numbers[at % len(near)]} {share:.0%}"
            for share, at in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        return f"confidence {float(expected_lddt(folded.confidence).mean()):.0%}, contacts {', '.join(contacts)}"

    def _packed(self, given: ProteinInput, places: Float[np.ndarray, "L 6"], known: np.ndarray) -> Example:
        rows = given.rows[spread(len(given.rows), self.pipeline.settings.rows)]
        couplings = np.zeros(0) if given.couplings is None else given.couplings
        kinds = zip((rows, given.numbers, couplings, places, known), self.columns.values(), strict=True)
        return tuple(np.asarray(values).astype(kind).ravel() for values, kind in kinds)


def _protein(example: Example) -> ProteinInput:
    rows, numbers, couplings = map(np.asarray, example[:3])
    rows, size = rows.reshape(-1, len(numbers)), len(numbers)
    between = couplings.reshape(size, size) if couplings.size else None
    return ProteinInput("", decode(rows[0]), rows, numbers.astype(np.int64), between)


def _distances(places: Float[Tensor, "B T 3"]) -> Float[Tensor, "B T T"]:
    return (places[:, :, None] - places[:, None]).norm(dim=-1)
