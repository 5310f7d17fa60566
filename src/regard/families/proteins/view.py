"""Models of pairs of proteins as reports show them and as sparse autoencoders read them: attention within and between
two proteins, in tokens of several residues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.data.proteins import Protein, decode, encode, given_proteins, read_residues
from regard.errors import UsageError
from regard.families.proteins.data import InteractionBatch, read_pairs
from regard.families.proteins.pipeline import POOL, InteractionAttention, InteractionPredictor
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Kind, Panel, Tokens
from regard.look.reader import Example, Reader, Source, TokenUnits, is_looked_at
from regard.look.report import AttentionReport

TWO = "give two proteins: a FASTA file of two, or two sequences"


def inspect_interaction(predictor: InteractionPredictor, given: GivenInput) -> Inspected:
    """Every layer and head while a model reads two proteins, and which of their residues it weighs.

    The file has both, or the text beside it is the second: a sequence, or another FASTA file.
    """
    one, other = _pair(given)
    (answer,) = predictor.interact(one.sequence, other.sequence)
    seen = predictor.attention(one.sequence, other.sequence)
    told = [f"{protein.name}: {each}" for protein in (one, other) for each in protein.told]
    said = f"{answer.probability:.1%}"
    report = AttentionReport(
        f"{one.name} and {other.name}", predictor.name, _panels(seen, (one.name, other.name)),
        meta={"binds": said} | ({"read": "; ".join(told)} if told else {}),
    )  # fmt: skip
    proteins = [
        {"name": protein.name, "sequence": sequence, "weights": weights.round(6).tolist()}
        for protein, sequence, weights in zip((one, other), seen.sequences, residue_weights(seen), strict=True)
    ]
    return Inspected(report, {"probability": answer.probability, "proteins": proteins, "told": told})


def residue_weights(seen: InteractionAttention) -> list[Float[np.ndarray, L]]:
    """How much the pooling query weighs each residue: its token's weight, shared by the token's residues, mean of
    heads."""
    shared = []
    for sequence, weights in zip(seen.sequences, seen.weights[POOL], strict=True):
        spread = np.repeat(weights.mean(axis=0)[0], seen.span)[: len(sequence)]
        counts = np.bincount(np.arange(len(sequence)) // seen.span)
        shared.append(spread / np.repeat(counts, seen.span)[: len(sequence)])
    return shared


def _pair(given: GivenInput) -> tuple[Protein, Protein]:
    found = given_proteins(given.file, given.title)
    if given.text.strip():
        found = [*found, *given_proteins(given.text.strip())]
    if len(found) != 2:
        raise UsageError(f"{len(found)} {'protein' if len(found) == 1 else 'proteins'} came; {TWO}")
    return found[0], found[1]


def _panels(seen: InteractionAttention, names: tuple[str, str]) -> list[Panel]:
    """Attention between the proteins first, then that of the pooling query, then that within each."""
    axes = [_axis(sequence, seen.span) for sequence in seen.sequences]
    order = sorted(seen.weights, key=lambda name: (not name.endswith("cross"), name != POOL))
    panels = []
    for name in order:
        kind: Kind = "cross" if name.endswith("cross") or name == POOL else "self"
        for side, weights in enumerate(seen.weights[name]):
            queries = Tokens([names[side]]) if name == POOL else axes[side]
            keys = axes[1 - side] if name.endswith("cross") else axes[side]
            neurons = seen.neurons[name][side]
            panels.append(Panel(f"{name}.{('first', 'second')[side]}", kind, weights, queries, keys, neurons))
    return panels


def _axis(sequence: str, span: int) -> Tokens:
    """Tokens by their first and last residue, such as M1-K16."""
    ends = [(start, min(start + span, len(sequence)) - 1) for start in range(0, len(sequence), span)]
    return Tokens([f"{sequence[first]}{first + 1}-{sequence[last]}{last + 1}" for first, last in ends])


class InteractionReader(Reader[InteractionBatch]):
    """A model of pairs of proteins. Positions are pieces of the first protein, then of the second."""

    columns: ClassVar = {"first": "|i1", "second": "|i1", "binds": "|i1"}

    def __init__(self, pipeline: InteractionPredictor) -> None:
        super().__init__(pipeline)
        self.span, self.longest = pipeline.config.residues_per_token, pipeline.config.max_length

    def examples(self, source: Source) -> Iterator[Example]:
        """The pairs of a table, whose sequences are beside it; those that are too long are left out."""
        found = read_pairs(source.path)
        for (one, other), label in list(zip(found.pairs, found.labels, strict=True))[: source.count]:
            proteins = found.sequences[one], found.sequences[other]
            if max(map(len, proteins)) <= self.longest:
                yield _row(*proteins, int(label))

    def given(self, text: str) -> Example:
        """Two sequences with a colon between them."""
        parts = text.split(":")
        if len(parts) != 2:
            raise UsageError(f"{text[:40]!r} is not a pair of proteins; write SEQUENCE:SEQUENCE")
        one, other = (read_residues(part).sequence[: self.longest] for part in parts)
        return _row(one, other, 0)

    def length(self, example: Example) -> int:
        return 2 * max(map(len, example)) // self.span

    def batch(self, examples: Sequence[Example]) -> InteractionBatch:
        first, second, labels = zip(*examples, strict=True)
        return InteractionBatch.of(first, second, np.concatenate(labels)).to(self.device)

    def run(self, batch: InteractionBatch) -> Float[Tensor, B]:
        return self.model(*batch.inputs)

    def loss(self, batch: InteractionBatch) -> tuple[float, int]:
        scores = self.run(batch).float()
        return float(functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum")), batch.tokens

    def arranged(self, vectors: Float[Tensor, "N *T D"], place: str) -> Float[Tensor, "B 2 *T D"]:
        """Both proteins of a pair side by side; each looks at the other, so what it looks at comes in another order."""
        pairs = torch.stack(vectors.chunk(2), dim=1)
        return pairs.flip(1) if is_looked_at(place) else pairs

    def real(self, batch: InteractionBatch, place: str) -> Bool[Tensor, "B 2 T"]:
        lengths = torch.stack([mask.sum(dim=1) for mask in (batch.first_mask, batch.second_mask)], dim=1)
        most = max(batch.first.shape[1], batch.second.shape[1])
        return torch.arange(-(-most // self.span), device=self.device) < -(-lengths[..., None] // self.span)

    def units(self, example: Example, place: str) -> TokenUnits:
        """The residues of every position, after the number of their protein."""
        tokens = list[str]()
        for number, letters in enumerate((decode(example[0]), decode(example[1])), 1):
            tokens += [f" {number}:{letters[at : at + self.span]}" for at in range(0, len(letters), self.span)]
        return TokenUnits(tokens)

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        return f"binds {float(self.run(self.batch([example])).float().sigmoid()):.1%}"


def _row(one: str, other: str, label: int) -> Example:
    return encode(one).astype(np.int8), encode(other).astype(np.int8), np.array([label], dtype=np.int8)
