"""Interventions on pipelines: the same on every model of an ensemble, named as the command line names them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from regard.attention.intervene import WithoutHead, intervene


def models_of(pipeline: Any) -> list[nn.Module]:
    """The models that a pipeline runs."""
    several: Sequence[nn.Module] | None = getattr(pipeline, "models", None)
    return [pipeline.model] if several is None else list(several)


@contextmanager
def without_heads(pipeline: Any, heads: Sequence[str]) -> Iterator[None]:
    """Run a pipeline with heads switched off, each as LAYER:HEAD; with none, as it is."""
    with ExitStack() as stack:
        for model in models_of(pipeline):
            changes = [change for text in heads for change in WithoutHead.parse(model, text)]
            stack.enter_context(intervene(model, *changes))
        yield
