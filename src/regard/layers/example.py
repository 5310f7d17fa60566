"""What `regard plan` runs of a model: the forward pass of a training step on blank data of a given size.

A model's file holds its `EXAMPLE`. The pass may run on fake tensors, which have shapes and no values, so it must not
depend on values; where a model does (regions that were proposed), the example feeds it blank values instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Example:
    """A training pass of `rows` examples of `source` and `target` tokens, and how a plan describes the batch."""

    run: Callable[[Any, int, int, int], Any]  # (model, rows, source, target) -> what the loss reads
    learns: Literal["source", "target", "examples"] = "examples"  # what a training step counts
    reads: str = "sentences of {source} source and {target} target tokens"  # unless `config.examples` says it
    scored: float = 1.0  # share of the tokens whose logits training computes
    start: Callable[[Any, int, int], Any] | None = None  # (model, rows, source) -> state of a decoder


def blank_tokens(rows: int, length: int) -> Int[Tensor, "rows length"]:
    return torch.zeros(rows, length, dtype=torch.long)


def all_real(rows: int, length: int) -> Bool[Tensor, "rows length"]:
    """The mask of a batch without padding."""
    return torch.ones(rows, length, dtype=torch.bool)


def blank_images(config: Any, rows: int) -> Float[Tensor, "rows C H W"]:
    return torch.zeros(rows, config.channels, config.image_size, config.image_size)


def _read_pair(model: Any, rows: int, source: int, target: int) -> Any:
    return model(blank_tokens(rows, source), all_real(rows, source), blank_tokens(rows, target), factored=True)


def start_text(model: Any, rows: int, source: int) -> Any:
    return model.start(blank_tokens(rows, source), all_real(rows, source))


def _read_text(model: Any, rows: int, source: int, target: int) -> Any:
    return model(blank_tokens(rows, target), factored=True)


def _read_encoded(model: Any, rows: int, source: int, target: int) -> Any:
    return model(blank_tokens(rows, source), all_real(rows, source), factored=True)


def _read_images(model: Any, rows: int, source: int, target: int) -> Any:
    return model(blank_images(model.config, rows))


PAIRS = Example(_read_pair, "target", start=start_text)
LANGUAGE = Example(_read_text, "target", "texts of {target} tokens", start=start_text)
ENCODED = Example(_read_encoded, "source", "texts of {source} tokens")
IMAGES = Example(_read_images)
