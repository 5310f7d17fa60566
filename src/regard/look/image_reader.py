"""What the readers of all models of images share; the first row of an example is the pixels of its image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from regard.data.images.reading import Pixels, Preprocessing
from regard.look.reader import SCENES, B, Example, ImageUnits, Reader, Site, Units, observe

AT_ONCE = 64  # images


class PipelineOfImages(Protocol):
    """A pipeline whose model reads images."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def preprocessing(self) -> Preprocessing: ...
    def pixels(self, image: Any) -> Pixels: ...


class PixelReader(Reader[B]):
    """A model that reads images of one size."""

    reads_text: ClassVar = False
    built_in: ClassVar = (SCENES,)
    at_once: ClassVar = AT_ONCE

    def __init__(self, pipeline: PipelineOfImages) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.shape = (pipeline.preprocessing.channels, *pipeline.preprocessing.size)

    def row(self, image: Image.Image | str) -> NDArray[np.uint8]:
        """The pixels of an image, or of a file, at the size of the model."""
        return self.pipeline.pixels(image).ravel()

    def image(self, example: Example) -> Pixels:
        """The image of an example."""
        return example[0].reshape(self.shape)

    def pixels(self, examples: Sequence[Example]) -> UInt8[Tensor, "B C H W"]:
        """The images of examples."""
        return torch.from_numpy(np.stack([self.image(example) for example in examples]))

    def normalised(self, examples: Sequence[Example]) -> Float[Tensor, "B C H W"]:
        """The images of examples as the model reads them."""
        return self.pipeline.preprocessing.normalise(self.pixels(examples).to(self.device))

    def real(self, batch: B, place: str) -> Bool[Tensor, "B T"] | None:
        return None

    @torch.inference_mode()
    def units(self, example: Example, place: str) -> Units:
        """The map of a place, perhaps after a class token. Places in a row are those of a map of the image's shape."""
        shape = observe(self, Site(self.model, place), [example]).vectors.shape[1:-1]
        pixels = self.image(example)
        if len(shape) == 2:
            return ImageUnits(pixels, *shape)
        aspect = pixels.shape[1] / pixels.shape[2]
        rows = int((shape[0] * aspect) ** 0.5 + 1e-6)
        columns = round(rows / aspect)
        return ImageUnits(pixels, rows, columns, shape[0] - rows * columns)
