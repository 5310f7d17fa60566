"""Batches of texts and regions: pairs, masked pairs for pre-training, and choices for retrieval.

Every example is a function of (seed, epoch, its number), as in `data/text/masking.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray

from regard.data.batch import RegionTextBatch
from regard.data.loader import Place, Rows
from regard.data.text.masking import Masking
from regard.families.vision_language.data import RegionTexts

SHOWN = 0.1  # the share of the masked regions whose features stay; the others become zeros
MATCH, NO_MATCH = 0, 1


@dataclass(frozen=True)
class PairMaker:
    """Makes batches of texts with their images; every text is padded to `longest` tokens."""

    store: RegionTexts
    pad: int
    longest: int

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> RegionTextBatch:
        return self.pairs(rows, self.store.images[rows], targets=torch.from_numpy(self.store.targets[rows]))

    def pairs(self, texts: Rows, images: Rows, **more: Any) -> RegionTextBatch:
        """Any texts with any images, side by side."""
        inputs, mask = self.padded([self.store.texts[row] for row in texts.tolist()])
        return RegionTextBatch(inputs, mask, *self.regions(images), **more)

    def regions(self, images: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features and places of the regions of images, and which of them are real."""
        store = self.store
        real = np.arange(store.features.shape[1])[None] < store.counts[images][:, None]
        # Cloned, since torch aligns its memory and numpy does not: products may round by where their numbers lie.
        places = torch.from_numpy(store.places[images]).clone()
        return torch.from_numpy(store.features[images]), places, torch.from_numpy(real)

    def padded(self, rows: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids padded to one length, the same for all batches, and a mask of the real ones."""
        lengths = np.array([len(row) for row in rows])
        mask = np.arange(self.longest)[None] < lengths[:, None]
        ids = np.full(mask.shape, self.pad, dtype=np.int64)
        ids[mask] = np.concatenate(rows)
        return torch.from_numpy(ids), torch.from_numpy(mask)


@dataclass(frozen=True)
class MaskedPairMaker:
    """Makes batches for pre-training: half of the texts belong to other images; words and regions are masked.

    What is masked is predicted only where text and image belong together (as in Lu et al. 2020): elsewhere the other
    stream says nothing about it. Region 0, the whole image, is never masked.
    """

    pairs: PairMaker
    masking: Masking
    region_share: float
    seed: int

    def __call__(self, rows: Rows, place: Place) -> RegionTextBatch:
        store, rngs = self.pairs.store, [np.random.default_rng([self.seed, place[0], row]) for row in rows.tolist()]
        other = np.array([rng.random() < 0.5 for rng in rngs])
        drawn = zip(rows.tolist(), rngs, other, strict=True)
        texts = [different(store, row, rng) if swap else row for row, rng, swap in drawn]
        true = [store.texts[row].astype(np.int64) for row in texts]
        hidden, guessed = zip(*map(self.masking, true, rngs), strict=True)
        inputs, mask = self.pairs.padded(hidden)
        labels, _ = self.pairs.padded(true)
        chosen, _ = self.pairs.padded([words & (not swap) for words, swap in zip(guessed, other, strict=True)])
        features, places, real = self.pairs.regions(store.images[rows])
        masked, zeroed = self._masked_regions(rngs, real.numpy())
        targets = features.clone() if store.classes is None else torch.from_numpy(store.classes[store.images[rows]])
        features[torch.from_numpy(zeroed)] = 0
        return RegionTextBatch(
            inputs, mask, features, places, real,
            targets=torch.from_numpy(np.where(other, NO_MATCH, MATCH)),
            labels=labels, labels_mask=chosen.bool() & mask,
            region_targets=targets, region_labels_mask=torch.from_numpy(masked & ~other[:, None]),
        )  # fmt: skip

    def exchanged(self, rows: Rows) -> RegionTextBatch:
        """Pairs without masks; every text with an odd number is exchanged for one of another image."""
        store = self.pairs.store
        texts = [
            different(store, row, np.random.default_rng([self.seed, row])) if row % 2 else row for row in rows.tolist()
        ]
        matches = torch.from_numpy(np.where(rows % 2, NO_MATCH, MATCH))
        return self.pairs.pairs(np.array(texts), store.images[rows], targets=matches)

    def _masked_regions(
        self, rngs: Sequence[np.random.Generator], real: Bool[np.ndarray, "B R"]
    ) -> tuple[Bool[np.ndarray, "B R"], Bool[np.ndarray, "B R"]]:
        """The regions to predict, and those of them whose features become zeros."""
        draws = np.stack([rng.random((2, real.shape[1])) for rng in rngs])
        masked = (draws[:, 0] < self.region_share) & real
        masked[:, 0] = False
        return masked, masked & (draws[:, 1] >= SHOWN)


@dataclass(frozen=True)
class ChoiceMaker:
    """Makes batches for retrieval: every pair is followed by wrong ones, with another text or another image in turn."""

    pairs: PairMaker
    choices: int  # pairs of an example; the first is the right one
    seed: int

    def __call__(self, rows: Rows, place: Place) -> RegionTextBatch:
        store = self.pairs.store
        texts, images = np.repeat(rows, self.choices), np.repeat(store.images[rows], self.choices)
        for number, row in enumerate(rows.tolist()):
            rng = np.random.default_rng([self.seed, place[0], row])
            for wrong in range(1, self.choices):
                other = different(store, row, rng)
                if wrong % 2:
                    texts[number * self.choices + wrong] = other
                else:
                    images[number * self.choices + wrong] = store.images[other]
        return self.pairs.pairs(texts, images, targets=torch.zeros(len(rows), dtype=torch.int64))


def different(store: RegionTexts, row: int, rng: np.random.Generator) -> int:
    """A text of another image that does not say the same as text `row`; `row` itself if none is found."""
    for _ in range(100):
        other = int(rng.integers(len(store)))
        if store.images[other] != store.images[row] and not np.array_equal(store.texts[other], store.texts[row]):
            return other
    return row
