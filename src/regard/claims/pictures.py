"""Small image models that learn the built-in scenes, of one object each: which of six shapes is it?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.claims.contest import Scores, fit
from regard.data.synthetic.shapes import SHAPE_NAMES, Part, scenes
from regard.families.catalog import MODELS

SIDE, BATCH, TESTED = 16, 32, 500
Images = tuple[Float[Tensor, "B 3 H W"], Int[Tensor, "B"]]
VIT = (("patch", 4), ("width", 48), ("heads", 4), ("depth", 3), ("ffn_width", 96))
RESNET = (("stem", "small"), ("block", "basic"), ("stem_width", 12), ("widths", (12, 24, 48)), ("depths", (1, 1, 1)))
SWIN = (("patch", 2), ("width", 24), ("depths", (2, 2)), ("heads", (2, 4)), ("window", 4), ("drop_path", 0.0))


@dataclass(frozen=True)
class Pictures:
    """A model that learns from so many images, each seen again and again in another order."""

    model: str
    values: tuple[tuple[str, object], ...]
    counts: tuple[int, ...]
    rate: float = 3e-3

    def __call__(self, seed: int, steps: int) -> Scores:
        """Train with a seed for some steps, once for each number of images, and measure the accuracy on others."""
        found: Scores = {}
        for count in self.counts:
            torch.manual_seed(seed)
            model, begin = self.build(), time.process_time()
            fit(model, _batches(count, seed), partial(_loss, model),
                steps=steps, rate=self.rate)  # fmt: skip
            found[f"seconds, {count} images"] = time.process_time() - begin
            found[f"accuracy, {count} images"] = _accuracy(model)
        return found

    def build(self) -> nn.Module:
        """The model, untrained."""
        entry = MODELS[self.model]
        values = {**dict(self.values), "image_size": SIDE, "classes": len(SHAPE_NAMES)}
        return entry.model(entry.config.parse(values))


@cache
def _drawn(part: Part, count: int, seed: int) -> Images:
    drawn = list(scenes(part=part, count=count, seed=seed, size=SIDE, most=1))
    pixels = torch.from_numpy(np.stack([scene.pixels for scene in drawn])).float() / 127.5 - 1
    return pixels, torch.tensor([scene.label for scene in drawn])


def _batches(count: int, seed: int) -> Iterator[Images]:
    pixels, labels = _drawn("train", count, seed)
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(0, count, (BATCH,), generator=generator)
        yield pixels[chosen], labels[chosen]


def _loss(model: nn.Module, batch: Images) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def _accuracy(model: nn.Module) -> float:
    pixels, labels = _drawn("test", TESTED, 0)
    return float((model(pixels).argmax(dim=1) == labels).float().mean())
