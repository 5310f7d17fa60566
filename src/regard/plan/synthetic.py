"""Synthetic data for presets whose cost is measured, not their quality.

All examples have the same length, except that some sources of a batch are a little shorter. Real batches rarely have
sources of one length, and some kernels are faster on such batches.
"""

from __future__ import annotations

import string
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.config import Config
from regard.data.images.datasets import IDX_IMAGES, IDX_LABELS
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.layers.vision import ImageConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.files import changed
from regard.training.recipe.load import parse_recipe

TASKS = ("translation", "prompts", "masked", "language", "images")  # tasks that data can be generated for
LETTERS = string.ascii_lowercase
BATCHES, LENGTHS = 4, 16  # the least number of batches, and the number of different source lengths


def synthetic_recipe(
    what: str, config: Config, sets: Sequence[str], folder: Path, *, batch: int, source: int, target: int
) -> Recipe:
    """A recipe that trains a preset on random words or images in batches of one shape; the data are written to
    `folder`."""
    name, _, preset = what.partition(":")
    task = next(iter(MODELS[name].tasks), "")
    if task not in TASKS or getattr(config, "pixels", False):
        raise UsageError(f"no data can be made up for {what}; name a recipe for it instead (regard models lists them)")
    values = changed({"model": {"name": name, "preset": preset}, "training": {}}, sets)
    values["task"] = task
    count = BATCHES * batch
    if isinstance(config, ImageConfig):
        values["training"]["batch"] = batch
        values["data"] = _images(folder, config, count)
    else:
        size = getattr(config, "vocab", 0) or getattr(config, "target_vocab", 0)
        values["tokenizer"] = {**values.get("tokenizer", {}), "kind": "word", "size": size, "min_frequency": 1}
        values["training"]["batch_tokens"] = batch * max(source, target)
        values["data"] = _texts(folder, task, _Words(size), count, source, target)
    values["training"]["validate_every"] = 0
    return parse_recipe(values, where=what)


class _Words:
    """Cycles through words so that the whole vocabulary occurs; a few ids are left for special tokens."""

    def __init__(self, vocabulary: int):
        self.size, self.next = max(2, vocabulary - 8), 0

    def line(self, count: int) -> str:
        numbers = [(self.next + number) % self.size for number in range(max(1, count))]
        self.next += len(numbers)
        return " ".join("".join(LETTERS[number // 26**place % 26] for place in range(4)) for number in numbers)


def _texts(folder: Path, task: str, words: _Words, count: int, source: int, target: int) -> dict[str, Any]:
    """Texts, with one token less for the end token; a BERT adds three special tokens to two segments."""
    path = folder / "texts.tsv"
    count = max(count, -(-words.size // max(1, min(source, target) - 1)))
    match task:
        case "translation" | "prompts":
            lengths = range(source - 1, source - 1 - min(LENGTHS, source // 2), -1)
            lines = [f"{words.line(lengths[n % len(lengths)])}\t{words.line(target - 1)}" for n in range(count)]
        case "masked":
            lines = [words.line((source - 3) // 2) + "\n" * (1 + number % 2) for number in range(4 * count)]
        case _:
            lines = [words.line(target) for _ in range(2 * count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    match task:
        case "translation":
            return {"train": str(path), "source": "en", "target": "de"}
        case "prompts":
            return {"train": {"made-up": str(path)}}
        case "masked":
            return {"train": str(path), "block": source}
    return {"train": str(path), "block": target, "documents": "file"}


def _images(folder: Path, config: ImageConfig, count: int) -> dict[str, Any]:
    """Grey noise in the format of MNIST."""
    random, side = np.random.default_rng(1), config.image_size
    pixels = random.integers(256, size=(count, side, side), dtype=np.uint8)
    labels = random.integers(min(config.classes, 256), size=count, dtype=np.uint8)
    path = folder / "noise-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4i", IDX_IMAGES, *pixels.shape) + pixels.tobytes())
    (folder / "noise-labels-idx1-ubyte").write_bytes(struct.pack(">2i", IDX_LABELS, count) + labels.tobytes())
    return {"train": str(path), "labels": [str(number) for number in range(config.classes)]}
