"""The places of a model: the points of its computation that can be recorded and changed, by name.

A module class names its own places in `PLACES`. The full name of a place is the name of its module and that of the
place: `decoder.0.cross.queries`, `encoder.1.residual`, `encoder.1.feed_forward.hidden`. Nothing runs at a place unless
a recorder (`activations.py`) or an intervention (`intervene.py`) puts a hook there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, NamedTuple

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
