"""Captioners as sparse autoencoders read them: images with captions, and the loss of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.families.captions.data import decoder_rows, open_examples
from regard.families.captions.pipeline import ImageCaptioner
from regard.look.reader import Example, PixelReader, Source, Units, fed_tokens, goes_by_steps, side_of, step_logits
from regard.training.losses import cross_entropy


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
    pipeline: ImageCaptioner

    def __init__(self, pipeline: ImageCaptioner) -> None:
        super().__init__(pipeline)
        self.tokenizer, self.by_steps = pipeline.tokenizer, goes_by_steps(pipeline.model)

    def examples(self, source: Source) -> Iterator[Example]:
        size, count = self.shape[1], source.count
        examples = open_examples(source.path, size=size, part=source.part, count=count, seed=source.seed)
        for example in islice(examples, count):
            (encoded,) = self.tokenizer.encode(example.captions[:1])
            if len(encoded.ids) <= source.block:
                yield self.row(example.image), np.array(encoded.ids, dtype=np.int32)

    def given(self, text: str) -> Example:
        """The image of a file with the model's own caption."""
        (caption,) = self.pipeline.caption(text)
        return self.row(text), np.array([*caption.ids, self.tokenizer.end], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> CaptionInputs:
        words = decoder_rows([ids for _, ids in examples], self.tokenizer.pad)
        return CaptionInputs(self.normalised(examples), *(part.to(self.device) for part in words))

    def run(self, batch: CaptionInputs) -> object:
        return self._logits(batch, factored=True)

    def loss(self, batch: CaptionInputs) -> tuple[float, int]:
        return float(cross_entropy(self._logits(batch), batch.labels, batch.mask)), int(batch.mask.sum())

    def real(self, batch: CaptionInputs, place: str) -> Bool[Tensor, "B T"] | None:
        return None if side_of(place) == "source" else batch.mask

    def units(self, example: Example, place: str) -> Units:
        if side_of(place) == "source":
            return super().units(example, place)
        return fed_tokens(self.tokenizer, example[1].tolist())

    def answer(self, example: Example, position: int) -> str:
        return self.pipeline.describe(self.pixels([example]), self.pipeline.settings)[0].text

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.shown([number])[0]

    def _logits(self, batch: CaptionInputs, *, factored: bool = False) -> Any:
        model: Any = self.model
        if self.by_steps:
            return step_logits(model, model.start(batch.images), batch.inputs)
        return model(batch.images, batch.inputs, factored=factored)[0]
