"""Captioners: scores of their captions beside baselines and, on the built-in scenes, whether they look at what they
name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image

from regard.data.captions import captioned_images
from regard.data.synthetic.shapes import Scene, scenes
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError
from regard.families.captions.metrics import caption_scores
from regard.families.captions.pipeline import Caption, ImageCaptioner
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.images.pipeline import BATCH_IMAGES
from regard.training.recipe.files import SCENES

SHOWN = ("bleu4", "cider")  # scores of the baselines


class Measured(NamedTuple):
    """An image, its references, and the scene if it was drawn."""

    image: Image.Image
    references: Sequence[str]
    scene: Scene | None = None


def evaluate_captions(captioner: ImageCaptioner, data: str, options: EvaluationOptions) -> Evaluation:
    """BLEU-1 to 4, CIDEr-D, ROUGE-L and exact captions; the same of a constant caption and of exchanged images."""
    unread: list[str] = []
    settings = captioner.settings.replace(n_best=1, **({} if options.beam is None else {"beam": options.beam}))
    found, references, looks = list[Caption](), list[Sequence[str]](), Looks(captioner.tokenizer)
    stream = _examples(captioner, data, options, unread)
    while some := list(islice(stream, BATCH_IMAGES)):
        pixels = torch.from_numpy(np.stack([captioner.pixels(each.image) for each in some]))
        captions = captioner.describe(pixels, settings)
        found += captions
        references += [each.references for each in some]
        drawn = [each.scene for each in some if each.scene is not None]
        if drawn and captioner.looks:
            looks.add(drawn, captions, captioner.forced(pixels, [each.ids for each in captions]))
    if not found:
        raise DataError(f"{data} has no captioned image that can be read")
    texts = [each.text for each in found]
    exact = sum(text in known for text, known in zip(texts, references, strict=True)) / len(texts)
    scores: dict[str, object] = {"images": len(texts), **caption_scores(texts, references), "exact": exact}
    return Evaluation(scores | looks.scores() | _baselines(texts, references), unread)


def _baselines(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, object]:
    """The scores of the most frequent reference for every image, and of each caption for another image."""
    ((constant, _),) = Counter(text for known in references for text in known).most_common(1)
    half = len(texts) // 2
    others = {"constant": [constant] * len(texts), "exchanged": [*texts[half:], *texts[:half]]}
    found: dict[str, object] = {"constant caption": constant}
    for name, captions in others.items():
        scores = caption_scores(captions, references)
        found |= {f"{name} {key}": scores[key] for key in SHOWN}
    return found


def _examples(
    captioner: ImageCaptioner, data: str, options: EvaluationOptions, unread: list[str]
) -> Iterator[Measured]:
    if data != SCENES:
        for found in captioned_images(data, problems=unread, skip_bad=True):
            yield Measured(found.image, found.captions)
        return
    config: Any = captioner.model.config
    for scene in scenes(part="test", count=options.count, seed=options.seed, size=config.image_size):
        yield Measured(Image.fromarray(scene.pixels.transpose(1, 2, 0)), scene.captions, scene)


class Looks:
    """How much of the attention falls on a shape while it is named, and how much of the image the shape covers."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.masses: dict[str, list[float]] = {}
        self.areas: list[float] = []

    def add(
        self,
        drawn: Sequence[Scene],
        captions: Sequence[Caption],
        seen: Iterable[tuple[dict[str, Float[np.ndarray, "H T L"]], list[float]]],
    ) -> None:
        """Measure the words that name shapes: size, colour and shape of every object that is in the scene."""
        for scene, caption, (layers, _) in zip(drawn, captions, seen, strict=True):
            numbers = self.tokenizer.word_numbers(caption.ids)
            for thing, words in named_things(scene, caption.text.split()):
                places = [place for place, number in enumerate(numbers) if number in words]
                assert scene.owners is not None
                inside = scene.owners == thing + 1
                self.areas.append(float(inside.mean()))
                for name, weights in layers.items():
                    mass = np.mean([mass_inside(weights[:, place].mean(axis=0), inside) for place in places])
                    self.masses.setdefault(name, []).append(float(mass))

    def scores(self) -> dict[str, object]:
        """The mean mass of every layer, and how many times the mean area that is."""
        if not self.areas:
            return {}
        area = float(np.mean(self.areas))
        found: dict[str, object] = {"named shapes": len(self.areas), "area of a named shape": area}
        for name, masses in self.masses.items():
            mass = float(np.mean(masses))
            kind = f"attention on it, {name}"
            found |= {kind: mass, f"{kind}, times its area": mass / max(area, 1e-9)}
        return found


def named_things(scene: Scene, words: Sequence[str]) -> Iterator[tuple[int, range]]:
    """The objects of a scene that words name, each with the places of its three words."""
    left = [thing.words.split() for thing in scene.things]
    for place in range(len(words) - 2):
        name = list(words[place : place + 3])
        if name in left:
            number = left.index(name)
            left[number] = []  # an object is named once
            yield number, range(place, place + 3)


def mass_inside(weights: Float[np.ndarray, L], inside: NDArray[np.bool_]) -> float:
    """The weight of the cells of a square grid that falls on a part of the image, if it is spread evenly over cells."""
    side = int(len(weights) ** 0.5)
    rows, columns = (np.arange(size) * side // size for size in inside.shape)
    cells = rows[:, None] * side + columns[None, :]
    covered = np.bincount(cells[inside], minlength=len(weights)) / np.bincount(cells.ravel(), minlength=len(weights))
    return float(weights @ covered)
