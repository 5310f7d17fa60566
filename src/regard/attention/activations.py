"""Recording any place of a model: queries, keys, values, head outputs, residual streams, hidden activations, gates.

As `record` does for attention weights, `record_activations` only reads what passes: outputs stay bit-identical, and
without a recorder nothing runs at a place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.places import Argument, Computed, Place, Result, Spot, find_places
from regard.errors import UsageError


class Activations(Mapping[str, Tensor]):
    """Recorded values by the names of their places: activations["decoder.0.cross.queries"] is [B H Tq K].

    A module called step by step yields its tokens in order. Keys and values of cached attention are those of the last
    step, which has all of them. `calls` gives every call separately.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[Tensor]] = {}
        self._spots: dict[str, Spot] = {}

    def add(self, name: str, spot: Spot, value: Tensor) -> None:
        calls = self._calls.setdefault(name, [])
        if spot.whole:
            calls.clear()
        calls.append(value)
        self._spots[name] = spot

    def calls(self, name: str) -> list[Tensor]:
        """The values of the calls of a place, one tensor each."""
        return list(self._calls[name])

    def __getitem__(self, name: str) -> Tensor:
        calls = self._calls[name]
        if len(calls) == 1:
            return calls[0]
        tokens = 2 if self._spots[name].headed else 1
        if len({(*call.shape[:tokens], *call.shape[tokens + 1 :]) for call in calls}) > 1:
            shapes = ", ".join(str(list(call.shape)) for call in calls[:4])
            raise UsageError(
                f"the calls of {name} have the shapes {shapes} ... and are not steps of the same sequences; "
                "take them one by one with calls()"
            )
        return torch.cat(calls, dim=tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


@contextmanager
def record_activations(
    model: nn.Module, patterns: str | Sequence[str] = "*", *, gradients: bool = False
) -> Iterator[Activations]:
    """Record every place whose name matches a pattern while the context is open; `places(model)` lists them.

    Inside of `intervene`, the changed values are recorded. With `gradients` the values stay in the autograd graph.
    """
    recorded = Activations()
    handles = [
        place.called.register_forward_hook(_hook(recorded, place, gradients), with_kwargs=True)
        for place in find_places(model, patterns)
    ]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def value_of(place: Place, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> Tensor | None:
    """The value of a place in one call; None if the call does not have it."""
    match place.spot:
        case Argument(index=index):
            found = args[index] if index < len(args) else None
        case Result(index=index):
            found = output if index is None else output[index]
        case Computed(read=read):
            found = read(place.owner, args, options, output)
        case _:
            raise TypeError(f"{place.name}: {type(place.spot).__name__} is no kind of spot")
    return found.movedim(1, -1) if found is not None and place.spot.channels_first else found


def _hook(recorded: Activations, place: Place, gradients: bool) -> Callable[..., None]:
    def hook(_: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
            value = value_of(place, args, options, output)
            if value is not None:  # copied, because caches write into their storage later
                recorded.add(place.name, place.spot, value if gradients else value.detach().clone())

    return hook
