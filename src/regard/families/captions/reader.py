"""Reading images with captions: captioners, by the loss of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from regard.data.batch import decoder_inputs, pad_rows
from regard.data.captions import captioned_images
from regard.families.captions.pipeline import ImageCaptioner
from regard.families.images.reader import PixelReader
from regard.look.reader import (
    SCENES,
    Example,
    Source,
    Units,
    fed_tokens,
    goes_by_steps,
    side_of,
    step_logits,
    summed_loss,
)


class CaptionInputs(NamedTuple):
    """Images, and their captions as a decoder is fed them and as it answers."""

    images: Float[Tensor, "B C H W"]
    inputs: Int[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]


class CaptionReader(PixelReader[CaptionInputs]):
    """A captioner that reads an image and its first caption. Places of its body, and what its decoder looks at, belong
    to the image, others to the words."""

    columns: ClassVar = {"pixels": "|u1", "text": "<i4"}

    def __init__(self, pipeline: ImageCaptioner) -> None:
        super().__init__(pipeline)
        self.pipeline, self.tokenizer, self.by_steps = pipeline, pipeline.tokenizer, goes_by_steps(pipeline.model)

    def examples(self, source: Source) -> Iterator[Example]:
        for image, text in islice(self._captioned(source), source.count):
            (encoded,) = self.tokenizer.encode([text])
            if len(encoded.ids) <= source.block:
                yield self.row(image), np.array(encoded.ids, dtype=np.int32)

    def given(self, text: str) -> Example:
        """The image of a file with the model's own caption."""
        (caption,) = self.pipeline.caption(text)
        return self.row(text), np.array([*caption.ids, self.tokenizer.end], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> CaptionInputs:
        pad = self.tokenizer.pad
        labels, mask = pad_rows([ids for _, ids in examples], pad)
        texts = decoder_inputs(labels, mask, pad=pad, start=pad), labels, mask
        return CaptionInputs(self.normalised(examples), *(each.to(self.device) for each in texts))

    def run(self, batch: CaptionInputs) -> object:
        return self._logits(batch, factored=True)

    def loss(self, batch: CaptionInputs) -> tuple[float, int]:
        return summed_loss(self._logits(batch), batch.labels, batch.mask)

    def real(self, batch: CaptionInputs, place: str) -> Bool[Tensor, "B T"] | None:
        return None if side_of(place) == "source" else batch.mask

    def units(self, example: Example, place: str) -> Units:
        if side_of(place) == "source":
            return super().units(example, place)
        return fed_tokens(self.tokenizer, example[1].tolist())

    def answer(self, example: Example, position: int) -> str:
        """The caption of the image."""
        return self.pipeline.describe(self.pixels([example]), self.pipeline.settings)[0].text

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.shown([number])[0]

    def _captioned(self, source: Source) -> Iterator[tuple[Image.Image, str]]:
        if source.path == SCENES:
            return ((image, scene.caption) for image, scene in self.scenes(source))
        found = captioned_images(source.path, problems=[])
        return ((each.image, each.captions[0]) for each in found)

    def _logits(self, batch: CaptionInputs, *, factored: bool = False) -> object:
        model: Any = self.model
        if self.by_steps:
            return step_logits(model, model.start(batch.images), batch.inputs)
        return model(batch.images, batch.inputs, factored=factored)[0]
