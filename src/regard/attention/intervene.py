"""Interventions: a model run with a head switched off, other attention weights, or another activation at a place.

`with intervene(model, WithoutHead("decoder.1.cross", 3)):` puts hooks on the places (`places.py`) of the changes. When
the context ends they are gone, and outputs are bit-identical to those before. The fast version of a model shares the
hooks. Open a recorder inside of the context to record changed values.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from regard.attention.core import attention_weights
from regard.attention.places import Argument, Computed, Place, Result, find_places, value_of
from regard.attention.record import attention_names
from regard.attention.scores import ScoredAttention
from regard.errors import UsageError

HEADS = "heads"  # the place of the outputs of an attention's heads
ALL = "*"


class Call(NamedTuple):
    """A call of the module of a place; before the call its output is None."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    output: Any = None


NewValue = Callable[[Tensor, Call], Tensor]


class Change(ABC):
    """A change of the values of a place."""

    @property
    @abstractmethod
    def at(self) -> str:
        """The name of the place that is changed."""

    @abstractmethod
    def function(self, place: Place) -> NewValue:
        """The new value from the value and the call. It is made once for a context, and may remember earlier calls."""


@dataclass(frozen=True, eq=False)
class WithoutHead(Change):
    """A head switched off: its output is zero, or its mean over some data if that is given."""

    layer: str
    head: int
    mean: Float[Tensor, "K"] | None = None

    @property
    def at(self) -> str:
        return f"{self.layer}.{HEADS}*"  # of vectors of pairs too, in attention that reads them

    def __str__(self) -> str:
        return f"{self.layer}:{self.head}"

    def function(self, place: Place) -> NewValue:
        def change(value: Tensor, call: Call) -> Tensor:
            new = value.clone()
            mean = self.mean if place.name.endswith(f".{HEADS}") else None
            head_of(new, place, self.head)[:] = 0.0 if mean is None else mean.to(new)
            return new

        return change

    @classmethod
    def parse(cls, model: nn.Module, text: str) -> "list[WithoutHead]":
        """The heads of LAYER:HEAD, such as `decoder.1.cross:3`; LAYER may be a pattern, and HEAD may be `*`."""
        layer, _, number = text.rpartition(":")
        known = attention_names(model)
        if not known:
            raise UsageError(f"there is no head {text!r}: this model has no attention")
        if not layer or not (number == ALL or number.isdecimal()):
            raise UsageError(f"{text!r} names no head; write LAYER:HEAD, such as {known[0]}:0")
        layers, found = [name for name in known if fnmatchcase(name, layer)], list[WithoutHead]()
        if not layers:
            raise UsageError(f"no attention layer matches {layer!r}; this model has: {', '.join(known)}")
        for name in layers:
            count = head_count(model, name)
            if number != ALL and int(number) >= count:
                raise UsageError(f"{name} has heads 0 to {count - 1}; head {number} was asked for")
            found += [cls(name, head) for head in (range(count) if number == ALL else [int(number)])]
        return found


@dataclass(frozen=True, eq=False)
class ReplaceWeights(Change):
    """Other attention weights for a head, or, without a head, for all heads of a layer.

    `weights` are `uniform` over the keys that a query may look at; or those of another input, [Tq Tk] or [B Tq Tk]; or
    rows drawn by hand, by the number of the query, and divided by their sums. In a search of one hypothesis, rows are
    counted from its beginning.
    """

    layer: str
    head: int | None
    weights: Literal["uniform"] | Tensor | Mapping[int, Sequence[float]] = "uniform"
    drawn: set[int] = field(default_factory=set, init=False, repr=False)  # the queries whose rows were used

    @property
    def at(self) -> str:
        return f"{self.layer}.{HEADS}"

    @property
    def never_asked(self) -> list[int]:
        """The queries with a row drawn by hand that did not come."""
        return sorted(set(self.weights) - self.drawn) if isinstance(self.weights, Mapping) else []

    def function(self, place: Place) -> NewValue:
        first = _FirstRow()

        def change(value: Tensor, call: Call) -> Tensor:
            new, count = value.clone(), value.shape[1] if place.spot.headed else 1
            at = first.of(call)
            for head in range(count) if self.head is None else [self.head]:
                output = head_of(new, place, head)
                seen = _scored_head(call) if isinstance(place.called, ScoredAttention) else _attended_head(call, head)
                output[:] = (self._replaced(seen, at, place).to(seen.values.dtype) @ seen.values)[:, 0]
            return new

        return change

    def _replaced(self, seen: "_Head", first: int, place: Place) -> Float[Tensor, "B 1 Tq Tk"]:
        """The weights of a call, the first of whose queries has the number `first`."""
        queries, keys = seen.weights.shape[2:]
        if isinstance(self.weights, str):
            return seen.uniform
        if isinstance(self.weights, Tensor):
            given = self.weights[..., first : first + queries, :keys].to(seen.weights)
            if given.shape[-2:] != (queries, keys):
                raise UsageError(
                    f"{place.name}: weights of {list(self.weights.shape)} were given for {queries} queries from number "
                    f"{first} and {keys} keys; record them on an input of the same length"
                )
            return given[None, None] if given.dim() == 2 else given[:, None]
        rows = seen.weights.clone()
        for number, row in self.weights.items():
            if not first <= number < first + queries:
                continue
            drawn = torch.tensor(list(row)).to(rows)
            if len(drawn) > keys or not drawn.sum() > 0 or drawn.min() < 0:
                raise UsageError(
                    f"{place.name}: the row of query {number} has {len(drawn)} weights; expected at most {keys}, none "
                    "below 0 and some above"
                )
            rows[:, :, number - first] = functional.pad(drawn / drawn.sum(), (0, keys - len(drawn)))
            self.drawn.add(number)
        return rows


@dataclass(frozen=True, eq=False)
class PlaceChange(Change):
    """A change of one place, which it names."""

    place: str

    @property
    def at(self) -> str:
        return self.place


@dataclass(frozen=True, eq=False)
class Patch(PlaceChange):
    """The value of another input at a place: all of it, one head, or some positions of the tokens.

    With positions, the other input may have another number of tokens.
    """

    value: Tensor
    head: int | None = None
    positions: Sequence[int] | None = None

    def function(self, place: Place) -> NewValue:
        def change(value: Tensor, call: Call) -> Tensor:
            chosen = _chosen(value, place, self.head, self.positions)
            given = _fitting(self._laid_out(self.value.to(value), value, place), value, place)
            return torch.where(chosen, given, value)

        return change

    def _laid_out(self, given: Tensor, value: Tensor, place: Place) -> Tensor:
        """The chosen tokens of an input that has more or fewer of them, as a value of the length that is changed."""
        in_a_row = value.dim() == (4 if place.spot.headed else 3)  # maps of images have two axes of places
        if self.positions is None or not in_a_row or given.dim() != value.dim() or given.shape == value.shape:
            return given
        length, positions = given.shape[-2], list(self.positions)
        if any(not -length <= position < length for position in positions):
            raise UsageError(f"{place.name} has {length} positions on the other input; {positions} were asked for")
        if (*given.shape[:-2], given.shape[-1]) != (*value.shape[:-2], value.shape[-1]):
            return given
        laid_out = value.clone()
        laid_out[..., positions, :] = given[..., positions, :]
        return laid_out

    @classmethod
    def every(cls, recorded: Mapping[str, Tensor]) -> "list[Patch]":
        """A patch of every recorded place."""
        return [cls(name, value) for name, value in recorded.items()]


@dataclass(frozen=True, eq=False)
class AddDirection(PlaceChange):
    """A vector times a strength, added at a place: to all of it, to one head, or at some positions of the tokens."""

    direction: Float[Tensor, "D"]
    strength: float = 1.0
    head: int | None = None
    positions: Sequence[int] | None = None

    def function(self, place: Place) -> NewValue:
        def change(value: Tensor, call: Call) -> Tensor:
            given = _fitting(self.strength * self.direction.to(value), value, place)
            return torch.where(_chosen(value, place, self.head, self.positions), value + given, value)

        return change


@dataclass(frozen=True, eq=False)
class Apply(PlaceChange):
    """Any function of the value of a place, such as its reconstruction from a dictionary of features."""

    change: Callable[[Tensor], Tensor]

    def function(self, place: Place) -> NewValue:
        return lambda value, call: _fitting(self.change(value), value, place)


@contextmanager
def intervene(model: nn.Module, *changes: Change) -> Iterator[None]:
    """Run a model with changes while the context is open; several at one place are made in the order given."""
    handles: list[RemovableHandle] = []
    try:
        for change in changes:
            for place in find_places(model, change.at):
                handles.append(_register(place, change.function(place)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def head_count(model: nn.Module, layer: str) -> int:
    """The number of heads of an attention layer."""
    count = getattr(model.get_submodule(layer), "heads", 1)
    return count if isinstance(count, int) else 1


def head_of(value: Tensor, place: Place, head: int) -> Tensor:
    """The part of a value that belongs to a head; a value without heads is that of head 0."""
    count = value.shape[1] if place.spot.headed else 1
    if not 0 <= head < count:
        raise UsageError(f"{place.name} has heads 0 to {count - 1}; head {head} was asked for")
    return value[:, head] if place.spot.headed else value


# Hooks


class _Hook:
    """A hook that changes values; `places.are_changed` looks for its mark."""

    changes: ClassVar[bool] = True

    def __init__(self, place: Place, function: NewValue):
        self.place, self.function = place, function

    def new(self, value: Tensor, call: Call) -> Tensor:
        changed = self.function(value, call)
        return changed.movedim(-1, 1).contiguous() if self.place.spot.channels_first else changed


class _BeforeCall(_Hook):
    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        value, spot = value_of(self.place, args, options, None), self.place.spot
        assert isinstance(spot, Argument)
        if value is None:
            return args, options
        new = self.new(value, Call(args, options))
        return (*args[: spot.index], new, *args[spot.index + 1 :]), options


class _AfterCall(_Hook):
    def __call__(self, _: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        value, spot = value_of(self.place, args, options, output), self.place.spot
        assert value is not None and isinstance(spot, Result)
        new = self.new(value, Call(args, options, output))
        return new if spot.index is None else (*output[: spot.index], new, *output[spot.index + 1 :])


def _register(place: Place, function: NewValue) -> RemovableHandle:
    match place.spot:
        case Computed():
            raise UsageError(f"{place.name} is computed for the recorder alone and cannot be changed")
        case Argument():
            return place.called.register_forward_pre_hook(_BeforeCall(place, function), with_kwargs=True)
    return place.called.register_forward_hook(_AfterCall(place, function), with_kwargs=True)


def _chosen(value: Tensor, place: Place, head: int | None, positions: Sequence[int] | None) -> Tensor:
    """Which entries of a value are changed, as bool [B H T 1] or [B *T 1]."""
    chosen = torch.ones((*value.shape[:-1], 1), dtype=torch.bool, device=value.device)
    if head is not None:
        head_of(value, place, head)
        if place.spot.headed:
            chosen &= (torch.arange(value.shape[1], device=value.device) == head)[:, None, None]
    if positions is not None:
        places = value.shape[2:-1] if place.spot.headed else value.shape[1:-1]
        tokens = torch.zeros(places.numel(), dtype=torch.bool, device=value.device)
        if any(not -len(tokens) <= position < len(tokens) for position in positions):
            raise UsageError(f"{place.name} has {len(tokens)} positions; {list(positions)} were asked for")
        tokens[list(positions)] = True
        chosen &= tokens.view(*places, 1)
    return chosen


def _fitting(given: Tensor, value: Tensor, place: Place) -> Tensor:
    """The new value, if its shape fits that of the old one."""
    try:
        fits = torch.broadcast_shapes(given.shape, value.shape) == value.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise UsageError(
            f"{place.name} has the shape {list(value.shape)} here, and {list(given.shape)} was given; expected as many "
            f"tokens, chosen tokens alone, or one vector of {value.shape[-1]} numbers"
        )
    return given


# Attention weights


class _Head(NamedTuple):
    """What one head saw in a call."""

    weights: Float[Tensor, "B 1 Tq Tk"]
    uniform: Float[Tensor, "B 1 Tq Tk"]  # over the keys that may be looked at
    values: Float[Tensor, "B 1 Tk Kv"]


def _attended_head(call: Call, head: int) -> _Head:
    """A head of a call of `Attend`; several heads may share keys and values."""
    q, k, v = call.args[:3]
    group = head * k.shape[1] // q.shape[1]
    q, k, v = q[:, head : head + 1], k[:, group : group + 1], v[:, group : group + 1]
    mask, bias = (
        each if each is None or each.shape[1] == 1 else each[:, head : head + 1]
        for each in (call.options.get("mask"), call.options.get("bias"))
    )
    causal = call.options.get("causal", False)
    own = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=call.options.get("scale"))
    return _Head(own, attention_weights(torch.zeros_like(q), k, mask=mask, causal=causal), v)


def _scored_head(call: Call) -> _Head:
    """The only head of a call of `ScoredAttention`."""
    own, memory = call.output[1][:, None], call.args[1][:, None]
    mask = call.args[3] if len(call.args) > 3 else call.options.get("mask")
    real = torch.ones_like(own) if mask is None else mask[:, None, None].to(own).expand_as(own)
    return _Head(own, real / real.sum(dim=-1, keepdim=True), memory)


class _FirstRow:
    """The number of the first query of every call; calls with one query are counted while their keys are the same."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.read = 0

    def of(self, call: Call) -> int:
        queries, keys = call.args[0], call.args[1]
        if call.options.get("causal", False):
            return keys.shape[-2] - queries.shape[-2]
        if queries.shape[-2] > 1:
            return 0
        self.read = self.read + 1 if keys is self.keys else 0
        self.keys = keys
        return self.read
