"""Interventions on pipelines: the same on every model of an ensemble, named as the command line names them.

A change is written WHERE=WHAT. WHERE is a head (LAYER:HEAD) or a place (PLACE, PLACE:HEAD), at all tokens or at some
(@2,5):

- `LAYER:HEAD=off` switches a head off; `LAYER:HEAD=uniform` lets it look at all keys alike;
- `LAYER:HEAD=row 4: 0.2 0.8` draws the weights of one query by hand; `LAYER:HEAD=weights` takes those of another input;
- `PLACE=patch` takes the activation of another input; `PLACE=add FILE.npy 3` adds a direction times a strength.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention.intervene import AddDirection, Change, Patch, ReplaceWeights, WithoutHead, intervene
from regard.attention.places import places, record_activations
from regard.attention.record import record
from regard.errors import DataError, UsageError

WHERE = re.compile(r"(?P<name>[^:@=]+)(:(?P<head>\d+|\*))?(@(?P<tokens>\d+(,\d+)*))?")
ROW = re.compile(r"row\s+(?P<query>\d+)\s*:(?P<weights>[\s\d.,eE+-]+)")
ADD = re.compile(r"add\s+(?P<file>\S+)(\s+(?P<strength>[-+]?[\d.]+([eE][-+]?\d+)?))?")
FORMS = "off, uniform, row QUERY: W W ..., weights, patch, or add FILE.npy STRENGTH"
OF_OTHERS = ("weights", "patch")  # what is taken from another input


class Spec(NamedTuple):
    """A change as it is written: a layer or place, a head, some tokens, and what becomes of them."""

    text: str
    name: str
    head: str
    tokens: list[int] | None
    what: str

    @classmethod
    def parse(cls, text: str) -> Spec:
        where, equals, what = text.partition("=")
        found = WHERE.fullmatch(where.strip())
        if not equals or found is None:
            raise UsageError(f"{text!r} names no change; write LAYER:HEAD=WHAT or PLACE=WHAT, where WHAT is {FORMS}")
        tokens = [int(each) for each in found["tokens"].split(",")] if found["tokens"] else None
        return cls(text, found["name"], found["head"] or "", tokens, what.strip())

    def heads(self, model: nn.Module) -> list[WithoutHead]:
        """The heads that are named."""
        if self.tokens is not None:
            raise UsageError(f"{self.text!r}: a head is changed at all tokens; leave out @{self.tokens[0]}")
        return WithoutHead.parse(model, f"{self.name}:{self.head}" if self.head else self.name)


class Other(NamedTuple):
    """What another input recorded: activations by place, and attention weights [H Tq Tk] by layer."""

    activations: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


def models_of(pipeline: Any) -> list[nn.Module]:
    """The models that a pipeline runs."""
    several: Sequence[nn.Module] | None = getattr(pipeline, "models", None)
    return [pipeline.model] if several is None else list(several)


def switched_off(heads: Sequence[str]) -> list[str]:
    """The changes that switch heads off, each LAYER:HEAD."""
    for each in heads:
        if WHERE.fullmatch(each) is None:
            raise UsageError(f"{each!r} names no head; write LAYER:HEAD, such as decoder.1.cross:3")
    return [f"{each}=off" for each in heads]


@contextmanager
def without_heads(pipeline: Any, heads: Sequence[str]) -> Iterator[None]:
    """Run a pipeline with heads switched off, each as LAYER:HEAD; with none, as it is."""
    with changed(pipeline, switched_off(heads)):
        yield


@contextmanager
def changed(pipeline: Any, changes: Sequence[str], run_other: Callable[[], object] | None = None) -> Iterator[None]:
    """Run a pipeline with changes, each as WHERE=WHAT; `run_other` runs it on the other input, of which the last pass
    counts."""
    specs = [Spec.parse(text) for text in changes]
    others = [_recorded(model, specs, run_other) for model in models_of(pipeline)]
    made = list[Change]()
    with ExitStack() as stack:
        for model, other in zip(models_of(pipeline), others, strict=True):
            some = [each for spec in specs for each in _changes(model, spec, other)]
            stack.enter_context(intervene(model, *some))
            made += some
        yield
    for change in made:
        if isinstance(change, ReplaceWeights) and change.never_asked:
            raise UsageError(f"{change.layer} had no query {change.never_asked[0]}, so its row was not used")


def _recorded(model: nn.Module, specs: Sequence[Spec], run: Callable[[], object] | None) -> Other:
    """The last pass of a model on the other input, at the places that changes take from it."""
    wanted = [spec for spec in specs if spec.what in OF_OTHERS]
    if not wanted:
        if run is not None:
            raise UsageError("another input came, but no change takes from it; write =weights or =patch")
        return Other({}, {})
    if run is None:
        raise UsageError(f"{wanted[0].text!r} needs another input; `regard look` takes one with --from")
    patched = [spec.name for spec in wanted if spec.what == "patch"]
    layers = [head.layer for spec in wanted if spec.what == "weights" for head in spec.heads(model)]
    with ExitStack() as stack:
        seen = stack.enter_context(record_activations(model, patched)) if patched else None
        looks = stack.enter_context(record(model, layers)) if layers else None
        run()
    activations = {} if seen is None else {name: seen.steps(name)[-1] for name in seen}
    return Other(activations, {} if looks is None else {name: looks.steps(name)[-1] for name in looks})


def _changes(model: nn.Module, spec: Spec, other: Other) -> list[Change]:
    """What a spec changes in a model."""
    what = spec.what
    if what == "off":
        return [*spec.heads(model)]
    if what == "uniform":
        return [ReplaceWeights(each.layer, each.head) for each in spec.heads(model)]
    if what == "weights":
        return [
            ReplaceWeights(each.layer, each.head, other.weights[each.layer][:, each.head]) for each in spec.heads(model)
        ]
    if found := ROW.fullmatch(what):
        row = _numbers(found["weights"], spec)
        return [ReplaceWeights(each.layer, each.head, {int(found["query"]): row}) for each in spec.heads(model)]
    head = int(spec.head) if spec.head.isdecimal() else None
    if what == "patch":
        return [Patch(name, other.activations[name], head, spec.tokens) for name in places(model, spec.name)]
    if found := ADD.fullmatch(what):
        direction, strength = _direction(found["file"]), float(found["strength"] or 1)
        return [AddDirection(name, direction, strength, head, spec.tokens) for name in places(model, spec.name)]
    raise UsageError(f"{spec.text!r}: {what!r} is no change; expected {FORMS}")


def _numbers(text: str, spec: Spec) -> list[float]:
    try:
        return [float(each) for each in text.replace(",", " ").split()]
    except ValueError:
        raise UsageError(f"{spec.text!r}: {text.strip()!r} are no weights; write numbers, such as 0.2 0.8") from None


def _direction(file: str) -> Tensor:
    """The vector of a .npy file."""
    try:
        vector = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is no vector that can be read: {error}") from None
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or not np.isfinite(vector).all():
        raise DataError(f"{file} holds an array of shape {getattr(vector, 'shape', '?')}; expected one finite vector")
    return torch.from_numpy(vector.astype(np.float32))
