"""A model of pairs of proteins as sparse autoencoders read it, with the loss of whether they bind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.data.proteins import decode, encode, read_residues
from regard.errors import UsageError
from regard.families.proteins.data import InteractionBatch, read_pairs
from regard.families.proteins.pipeline import InteractionPredictor
from regard.families.proteins.task import pair_loss
from regard.look.reader import Example, Reader, Source, TokenUnits


class InteractionReader(Reader[InteractionBatch]):
    """A model of pairs of proteins. Positions are pieces of the first protein, then of the second."""

    columns: ClassVar = {"first": "|i1", "second": "|i1", "binds": "|i1"}

    def __init__(self, pipeline: InteractionPredictor) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
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

    def run(self, batch: InteractionBatch) -> object:
        return self.model(*batch.inputs)

    def loss(self, batch: InteractionBatch) -> tuple[float, int]:
        return float(pair_loss(self.model, batch).total), batch.tokens

    def arranged(self, vectors: Float[Tensor, "N *T D"], place: str) -> Float[Tensor, "B 2 *T D"]:
        """Both proteins of a pair side by side; each looks at the other, so what it looks at comes in another order."""
        crossing = ".cross." in place and place.endswith((".keys", ".values"))
        pairs = torch.stack(vectors.chunk(2), dim=1)
        return pairs.flip(1) if crossing else pairs

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
        score = self.model(*self.batch([example]).inputs).score.float()
        return f"binds {float(score.sigmoid()):.1%}"


def _row(one: str, other: str, label: int) -> Example:
    return encode(one).astype(np.int8), encode(other).astype(np.int8), np.array([label], dtype=np.int8)
