"""Reading texts with images as regions, by the loss of what the head of the model says: does a text fit, which region
does a phrase mean, what is the answer to a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from regard.data.captions import captioned_images
from regard.data.sources import PARTS
from regard.data.synthetic.scene_texts import Chooser, phrases, questions
from regard.data.synthetic.shapes import Scene, scenes
from regard.errors import UsageError
from regard.families.images.pipeline import open_image
from regard.families.vision_language.finders import Regions, overlapping
from regard.families.vision_language.model import VilbertOutput
from regard.families.vision_language.pipeline import VisionLanguageModel
from regard.look.reader import SCENES, BoxUnits, Example, Reader, Source, TokenUnits, Units

SIDE, SCENE = 96, 64  # pixels of an image that is shown, and of a drawn one
FITS, FITS_NOT = 1, 0


class Told(NamedTuple):
    """An image, a text, and what the head of the model has to say to them."""

    image: Image.Image
    text: str
    target: int


class PairInputs(NamedTuple):
    """Texts and regions as the model reads them, and their targets."""

    tokens: Tensor
    mask: Bool[Tensor, "B T"]
    features: Float[Tensor, "B R F"]
    places: Float[Tensor, "B R P"]
    region_mask: Bool[Tensor, "B R"]
    targets: Tensor


class RegionTextReader(Reader[PairInputs]):
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
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.head, self.tokenizer = pipeline.config.head, pipeline.tokenizer

    def examples(self, source: Source) -> Iterator[Example]:
        for told in islice(self._told(source), source.count):
            yield self._packed(told)

    def given(self, text: str) -> Example:
        """The image of a file and a text after it: FILE:TEXT."""
        file, colon, words = text.partition(":")
        if not colon:
            raise UsageError(f"{text!r} is no image with a text; write FILE:TEXT, as in image.png:a red circle")
        return self._packed(Told(open_image(file), words, 0))

    def batch(self, examples: Sequence[Example]) -> PairInputs:
        regions = [
            Regions(boxes.reshape(-1, 4), rows.reshape(len(boxes) // 4, -1)) for _, boxes, rows, _, _ in examples
        ]
        inputs = self.pipeline.inputs([ids.tolist() for ids, *_ in examples], regions)
        targets = torch.tensor([int(target[0]) for _, _, _, target, _ in examples], device=self.device)
        tokens, mask, features, places, real = inputs
        return PairInputs(tokens, mask, features, places, real, targets)

    def run(self, batch: PairInputs) -> object:
        return self._output(batch)

    def loss(self, batch: PairInputs) -> tuple[float, int]:
        output, targets = self._output(batch), batch.targets
        if self.head in ("pretraining", "score"):
            total = functional.binary_cross_entropy_with_logits(output.score.float(), targets.float(), reduction="sum")
        else:
            assert output.logits is not None
            total = functional.cross_entropy(output.logits.float(), targets, reduction="sum")
        return float(total), len(targets)

    def real(self, batch: PairInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.region_mask if _of_regions(place) else batch.mask

    def units(self, example: Example, place: str) -> Units:
        ids, boxes, _, _, pixels = example
        if _of_regions(place):
            return BoxUnits(pixels.reshape(3, SIDE, SIDE), boxes.reshape(-1, 4).tolist())
        return TokenUnits(self.tokenizer.running(ids.tolist()))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The text, and how well it fits, which box it means, or the answer."""
        output, text = self._output(self.batch([example])), self.tokenizer.decode(example[0].tolist())
        if self.head in ("pretraining", "score"):
            return f"{text}: fits {float(output.score):+.2f}"
        assert output.logits is not None
        share, number = output.logits[0].float().softmax(dim=-1).max(dim=0)
        return f"{text}: {self.output_names()(int(number))} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return self.pipeline.labels.__getitem__ if self.head == "answer" else lambda number: f"region {number}"

    def _output(self, batch: PairInputs) -> VilbertOutput:
        output: VilbertOutput = self.model(*batch[:-1])
        return output

    def _packed(self, told: Told) -> Example:
        ids, regions = self.pipeline.ids([told.text])[0], self.pipeline.regions(told.image)
        return (
            np.array(ids, dtype=np.int32), regions.boxes.astype(np.float32).ravel(),
            regions.features.astype(np.float16).ravel(), np.array([told.target], dtype=np.int32), _shown(told.image),
        )  # fmt: skip

    def _told(self, source: Source) -> Iterator[Told]:
        if self.head in ("pretraining", "score"):
            return _exchanged(self._captioned(source))
        if source.path != SCENES:
            raise UsageError(f"{source.path}: phrases and questions are known of {SCENES!r} alone; give that")
        return self._about(source)

    def _captioned(self, source: Source) -> Iterator[tuple[Image.Image, str]]:
        if source.path == SCENES:
            return ((image, scene.caption) for image, scene in _drawn(source))
        return ((each.image, each.captions[0]) for each in captioned_images(source.path, problems=[]))

    def _about(self, source: Source) -> Iterator[Told]:
        """One phrase or question about each scene."""
        choose = Chooser()
        for number, (image, scene) in enumerate(_drawn(source)):
            rng = np.random.default_rng([source.seed, PARTS.index(source.part), number])
            if self.head == "answer":
                known = [each for each in questions(scene) if str(each.target) in self.pipeline.labels]
                for each in choose(known, 1, rng):
                    yield Told(image, each.text, self.pipeline.labels.index(str(each.target)))
                continue
            boxes = self.pipeline.regions(image).boxes
            places = [overlapping(boxes, thing.box) for thing in scene.things]
            for each in choose([each for each in phrases(scene) if places[int(each.target)] is not None], 1, rng):
                yield Told(image, each.text, places[int(each.target)] or 0)


def _drawn(source: Source) -> Iterator[tuple[Image.Image, Scene]]:
    for scene in scenes(part=source.part, count=source.count, seed=source.seed, size=SCENE):
        yield Image.fromarray(scene.pixels.transpose(1, 2, 0)), scene


def _exchanged(captioned: Iterator[tuple[Image.Image, str]]) -> Iterator[Told]:
    """Every first text with its image, and every second one with the image before it."""
    before: tuple[Image.Image, str] | None = None
    for image, text in captioned:
        if before is None or before[1] == text:
            yield Told(image, text, FITS)
            before = (image, text)
        else:
            yield Told(before[0], text, FITS_NOT)
            before = None


def _shown(image: Image.Image) -> NDArray[np.uint8]:
    """An image as a small square, in which boxes lie as they do in the image: they are shares of its sides."""
    return np.asarray(image.convert("RGB").resize((SIDE, SIDE))).transpose(2, 0, 1).ravel()


def _of_regions(place: str) -> bool:
    """Whether the positions of a place are regions: in their stream, and in what words look at there."""
    stream = place.startswith("regions.") or ".regions." in place
    looked_at = ".cross." in place and place.endswith((".keys", ".values"))
    return stream != looked_at
