"""Recording any place of a model: queries, keys, values, head outputs, residual streams, hidden activations, gates.

As `record` does for attention weights, `record_activations` only reads what passes: outputs stay bit-identical, and
without a recorder nothing runs at a place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UsageError

EVERY = "*"
LISTED = 12  # names of places in an error
Hooks = Mapping[int, Callable[..., Any]]
# of a module and a call (arguments, options, output); None if this call has no such value
Read = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], Tensor | None]


@dataclass(frozen=True)
class Spot:
    """Where in the calls of a module a value is: an argument, an output, or something computed from them.

    `part` is the part of the module whose calls count, by its path; by default those of the module itself. A value is
    [B *T D], or [B H T K] if it is `headed`; with `channels_first` the call has it as [B D *T]. With `whole`, every
    call also has what earlier ones had, as the calls with cached keys do.
    """

    part: str = ""
    headed: bool = False
    whole: bool = False
    channels_first: bool = False


@dataclass(frozen=True)
class Argument(Spot):
    """A positional argument of a call."""

    index: int = 0


@dataclass(frozen=True)
class Result(Spot):
    """What a call returns, or one part of it."""

    index: int | None = None


@dataclass(frozen=True)
class Computed(Spot):
    """A value that exists only inside a call and is computed again by `read`; it can be recorded but not changed."""

    read: Read = lambda module, args, options, output: output


class Place(NamedTuple):
    """A place by its full name: the module that has it, the module whose calls it is in, and where in them."""

    name: str
    owner: nn.Module
    called: nn.Module
    spot: Spot


def find_places(model: nn.Module, patterns: str | Sequence[str] = EVERY) -> list[Place]:
    """The places whose names match a pattern; a pattern other than `*` that matches none is an error."""
    every = list(_all_places(model))
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        if pattern != EVERY and not any(fnmatchcase(place.name, pattern) for place in every):
            raise UsageError(f"there is no place {pattern!r} in this model; {_known(pattern, [p.name for p in every])}")
    return [place for place in every if any(fnmatchcase(place.name, pattern) for pattern in wanted)]


def places(model: nn.Module, patterns: str | Sequence[str] = EVERY) -> list[str]:
    """The names of a model's places, as `record_activations` and `intervene` use them."""
    return [place.name for place in find_places(model, patterns)]


def _all_places(model: nn.Module) -> Iterator[Place]:
    for path, module in model.named_modules():
        spots: Mapping[str, Spot] = getattr(type(module), "PLACES", {})
        # Attention is named by the module around it, as `record` names it.
        path = path.removesuffix("attend").rstrip(".") if path.split(".")[-1] == "attend" else path
        for name, spot in spots.items():
            called = reduce(lambda found, part: getattr(found, part, None), filter(None, spot.part.split(".")), module)
            if isinstance(called, nn.Module):
                yield Place(f"{path}.{name}" if path else name, module, called, spot)


def _known(pattern: str, names: Sequence[str]) -> str:
    if not names:
        return "it has none"
    near = get_close_matches(pattern, names, n=LISTED, cutoff=0.5) or names[:LISTED]
    return f"it has {', '.join(near)}{' and others' if len(near) < len(names) else ''}"


# Hooks


def hook_tables(modules: Iterable[nn.Module]) -> list[Hooks]:
    """The tables of the hooks of modules: any of them is filled while something there is recorded or changed."""
    return [table for module in modules for table in (module._forward_pre_hooks, module._forward_hooks)]


def share_hooks(source: nn.Module, copy: nn.Module) -> None:
    """Let every hook of a module, present and future, also be one of its copy."""
    for table in (
        "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
    ):  # fmt: skip
        copy.__dict__[table] = source.__dict__[table]


def are_changed(tables: Iterable[Hooks]) -> bool:
    """Whether a hook in these tables changes values instead of only reading them."""
    return any(getattr(hook, "changes", False) for table in tables for hook in table.values())


class Calls(Mapping[str, Tensor]):
    """What was recorded in the calls of modules, by name; subclasses join the calls of one."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Tensor]] = {}

    def calls(self, name: str) -> list[Tensor]:
        """What was recorded in every call, one tensor each."""
        return list(self._calls[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


class Activations(Calls):
    """Recorded values by the names of their places: activations["decoder.0.cross.queries"] is [B H Tq K].

    A module called step by step yields its tokens in order. Keys and values of cached attention are those of the last
    step, which has all of them. `calls` gives every call separately.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spots: dict[str, Spot] = {}

    def add(self, name: str, spot: Spot, value: Tensor) -> None:
        calls = self._calls.setdefault(name, [])
        if spot.whole:
            calls.clear()
        calls.append(value)
        self._spots[name] = spot

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
