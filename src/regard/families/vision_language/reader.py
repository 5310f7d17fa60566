"""Texts and images as a sparse autoencoder reads them, by the loss of what the head of the model says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from regard.data.batch import RegionTextBatch
from regard.errors import UsageError
from regard.families.images.pipeline import open_image
from regard.families.vision_language.pipeline import VisionLanguageModel
from regard.families.vision_language.regions import Described, Regions, TextAbout, describe
from regard.families.vision_language.task import KINDS, RegionTextTask, target_loss
from regard.look.reader import SCENES, BoxUnits, Example, Reader, Source, TokenUnits, Units, is_looked_at

SIDE = 96  # pixels of an image that is shown
FITS, FITS_NOT = 1, 0


class RegionTextReader(Reader[RegionTextBatch]):
    """A model of texts and images. Places of its stream of regions belong to boxes of the image, others to words.

    A model that says whether a text fits reads every second text with another image.
    """

    columns: ClassVar = {"ids": "<i4", "boxes": "<f4", "features": "<f2", "target": "<i4", "pixels": "|u1"}
    reads_text: ClassVar = False
    built_in: ClassVar = (SCENES,)

    def __init__(self, pipeline: VisionLanguageModel) -> None:
        if pipeline.config.head == "none":
            raise UsageError(
                f"{pipeline.name or 'this model'} has no head, so nothing says what an activation is worth"
            )
        super().__init__(pipeline)
        self.head, self.tokenizer = pipeline.config.head, pipeline.tokenizer
        self.ranks = self.head in ("pretraining", "score")

    def examples(self, source: Source) -> Iterator[Example]:
        """One text about each image."""
        described = describe(
            source.path, KINDS.get(self.head, "captions"), self.pipeline.finder, part=source.part, count=source.count,
            seed=source.seed, labels=self.pipeline.labels,
        )  # fmt: skip
        one_each = (each._replace(texts=each.texts[:1]) for each in described if each.texts)
        for example in islice(_exchanged(one_each) if self.ranks else one_each, source.count):
            yield self._packed(example)

    def given(self, text: str) -> Example:
        """The image of a file and a text after it: FILE:TEXT."""
        file, colon, words = text.partition(":")
        if not colon:
            raise UsageError(f"{text!r} is not an image with a text; write FILE:TEXT, as in image.png:a red circle")
        image = open_image(file)
        return self._packed(Described(image, self.pipeline.regions(image), [TextAbout(words, 0)]))

    def batch(self, examples: Sequence[Example]) -> RegionTextBatch:
        regions = [
            Regions(boxes.reshape(-1, 4), rows.reshape(len(boxes) // 4, -1)) for _, boxes, rows, _, _ in examples
        ]
        tokens, mask, features, places, real = self.pipeline.inputs([ids.tolist() for ids, *_ in examples], regions)
        targets = torch.tensor([int(target[0]) for _, _, _, target, _ in examples], device=self.device)
        return RegionTextBatch(tokens, mask, features, places, real, targets)

    def run(self, batch: RegionTextBatch) -> object:
        return RegionTextTask.output(self.model, batch)

    def loss(self, batch: RegionTextBatch) -> tuple[float, int]:
        output, targets = RegionTextTask.output(self.model, batch), batch.targets
        if self.ranks:  # a single pair has no others to be ranked among: does it fit?
            total = functional.binary_cross_entropy_with_logits(output.score.float(), targets.float(), reduction="sum")
        else:
            total = target_loss(output, targets)
        return float(total), len(targets)

    def real(self, batch: RegionTextBatch, place: str) -> Bool[Tensor, "B T"]:
        return batch.region_mask if _of_regions(place) else batch.mask

    def units(self, example: Example, place: str) -> Units:
        ids, boxes, _, _, pixels = example
        if _of_regions(place):
            return BoxUnits(pixels.reshape(3, SIDE, SIDE), boxes.reshape(-1, 4).tolist())
        return TokenUnits(self.tokenizer.running(ids.tolist()))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The text, and how well it fits, which box it means, or the answer."""
        output = RegionTextTask.output(self.model, self.batch([example]))
        text = self.tokenizer.decode(example[0].tolist())
        if self.ranks:
            return f"{text}: fits {float(output.score):+.2f}"
        assert output.logits is not None
        share, number = output.logits[0].float().softmax(dim=-1).max(dim=0)
        return f"{text}: {self.output_names()(int(number))} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return self.pipeline.labels.__getitem__ if self.head == "answer" else lambda number: f"region {number}"

    def _packed(self, described: Described) -> Example:
        """An image with one text about it. Shown as a small square, its boxes lie as they do in the image."""
        image, regions, (about,) = described
        shown = np.asarray(image.convert("RGB").resize((SIDE, SIDE))).transpose(2, 0, 1)
        return (
            np.array(self.pipeline.ids([about.text])[0], dtype=np.int32), regions.boxes.astype(np.float32).ravel(),
            regions.features.astype(np.float16).ravel(), np.array([about.target], dtype=np.int32), shown.ravel(),
        )  # fmt: skip


def _exchanged(described: Iterable[Described]) -> Iterator[Described]:
    """Every first text with its image, and every second one with the image before it."""
    before: Described | None = None
    for each in described:
        text = each.texts[0].text
        if before is None or before.texts[0].text == text:
            yield each._replace(texts=[TextAbout(text, FITS)])
            before = each
        else:
            yield before._replace(texts=[TextAbout(text, FITS_NOT)])
            before = None


def _of_regions(place: str) -> bool:
    """Whether the positions of a place are regions: in their stream, and in what words look at there."""
    stream = place.startswith("regions.") or ".regions." in place
    return stream != is_looked_at(place)
