"""Panels: the recorded weights of one attention layer, with an axis for its queries and one for its keys.

An axis names the places of an input: the tokens of a text, the cells of an image, the boxes in it. Everything that
shows attention (the figures, the offline page, the lens, the JSON form) works on panels and asks their axes for labels
and for their JSON form, so a new modality needs no change here beyond its axis. To add one:

1. Write a subclass of `Axis` and list it in `AXES`.
2. If a labelled matrix is not the right view of it, write a script that registers a view (see `web/axes/grid.js`) and,
   for PNG and SVG files, a figure. The family names them in `views` and `figures`.
3. Write the family's function that turns recorded weights into panels, named in `view` of its pipeline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from jaxtyping import Float, Int

from regard.errors import UsageError
from regard.look.neurons import LayerNeurons

Kind = Literal["self", "cross", "causal"]
Point = tuple[float, float]  # x to the right and y down, as fractions of the image's width and height


class Axis(ABC):
    """The places along one side of a panel, in the order of its weights.

    `kind` is the name of the axis in JSON. Both JSON methods work on plain values, which are those of the fields if
    these are texts, numbers or sequences of them; `to_json` leaves out `kind`, which `axis_to_json` adds.
    """

    kind: ClassVar[str]
    view: ClassVar[str] = "tokens"  # what shows it; that of tokens is a labelled matrix

    @abstractmethod
    def __len__(self) -> int:
        """The number of places."""

    @abstractmethod
    def labels(self) -> list[str]:
        """A short text for every place, to be written beside a matrix."""

    def to_json(self) -> dict[str, Any]:
        """The axis as plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # a dataclass
        return {name: each if isinstance(each, str | int | float) else list(each) for name, each in values.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The axis that `to_json` wrote."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})  # type: ignore[arg-type]  # a dataclass


@dataclass(frozen=True)
class Tokens(Axis):
    """The tokens or words of a text."""

    kind: ClassVar[str] = "tokens"
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)

    def labels(self) -> list[str]:
        return list(self.texts)


@dataclass(frozen=True, eq=False)
class Grid(Axis):
    """The cells of an image, row by row, after `extra` tokens that are no cells (the class token).

    `windows` numbers the window of every cell where attention stays within windows.
    """

    kind: ClassVar[str] = "grid"
    view: ClassVar[str] = "grid"
    rows: int
    columns: int
    extra: int = 0
    windows: Int[np.ndarray, " cells"] | None = None

    def __len__(self) -> int:
        return self.extra + self.rows * self.columns

    def labels(self) -> list[str]:
        extra = ["class token"] if self.extra == 1 else [f"token {number}" for number in range(self.extra)]
        return [*extra, *(f"{row + 1}, {column + 1}" for row, column in np.ndindex(self.rows, self.columns))]

    def to_json(self) -> dict[str, Any]:
        windows = None if self.windows is None else self.windows.tolist()
        return {"rows": self.rows, "columns": self.columns, "extra": self.extra, "windows": windows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        windows = None if data["windows"] is None else np.asarray(data["windows"], dtype=np.int64)
        return cls(data["rows"], data["columns"], data["extra"], windows)

    def place_at(self, point: Point) -> int:
        """The index, along this axis, of the cell that contains a point of the image."""
        column, row = (
            min(int(share * side), side - 1) for share, side in zip(point, (self.columns, self.rows), strict=True)
        )
        return self.extra + row * self.columns + column


@dataclass(frozen=True, eq=False)
class Boxes(Axis):
    """Regions of an image: x1, y1, x2, y2 as fractions of its width and height, and a name for each."""

    kind: ClassVar[str] = "boxes"
    view: ClassVar[str] = "boxes"
    boxes: Float[np.ndarray, "N 4"]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def labels(self) -> list[str]:
        return list(self.names)

    def to_json(self) -> dict[str, Any]:
        return {"boxes": self.boxes.astype(np.float64).round(5).tolist(), "names": list(self.names)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(np.asarray(data["boxes"], dtype=np.float64).reshape(-1, 4), data["names"])


@dataclass(frozen=True)
class Steps(Axis):
    """The rows of a path through a house: the path as a whole, and then its viewpoints by number in the house."""

    kind: ClassVar[str] = "steps"
    view: ClassVar[str] = "house"
    viewpoints: Sequence[int]

    def __len__(self) -> int:
        return 1 + len(self.viewpoints)

    def labels(self) -> list[str]:
        return ["path", *(f"step {number}" for number in range(len(self.viewpoints)))]


@dataclass(frozen=True)
class Frames(Axis):
    """Stretches of time of a recording, all equally long."""

    kind: ClassVar[str] = "frames"
    view: ClassVar[str] = "spectrogram"
    count: int
    seconds: float  # of one of them

    def __len__(self) -> int:
        return self.count

    def labels(self) -> list[str]:
        return [f"{number * self.seconds:.2f} s" for number in range(self.count)]


@dataclass(frozen=True)
class Residues(Axis):
    """The residues of a protein, by their letters."""

    kind: ClassVar[str] = "residues"
    view: ClassVar[str] = "structure"
    sequence: str

    def __len__(self) -> int:
        return len(self.sequence)

    def labels(self) -> list[str]:
        return [f"{letter}{number}" for number, letter in enumerate(self.sequence, 1)]


@dataclass(frozen=True)
class Agents(Axis):
    """Agents at steps of time, agent by agent; step 0 is now."""

    kind: ClassVar[str] = "agents"
    view: ClassVar[str] = "agents"
    names: Sequence[str]
    steps: Sequence[int]

    def __len__(self) -> int:
        return len(self.names) * len(self.steps)

    def labels(self) -> list[str]:
        return [f"{name} at {step:+d}" if step else f"{name} now" for name in self.names for step in self.steps]


AXES: dict[str, type[Axis]] = {axis.kind: axis for axis in (Tokens, Grid, Boxes, Steps, Frames, Residues, Agents)}


def axis_to_json(axis: Axis) -> dict[str, Any]:
    """An axis as plain values, with its kind."""
    return {"kind": axis.kind, **axis.to_json()}


def axis_from_json(data: dict[str, Any]) -> Axis:
    """The axis that `axis_to_json` wrote."""
    kind = data["kind"]
    if kind not in AXES:
        raise UsageError(f"there is no axis of kind {kind!r}; this version of Regard knows {', '.join(AXES)}")
    return AXES[kind].from_json(data)


@dataclass(frozen=True, eq=False)
class Panel:
    """One attention layer on one input: `weights[head, query, key]`, with the axes of its queries and keys.

    `neurons` are what its scores are made of, if they were recorded.
    """

    name: str
    kind: Kind
    weights: Float[np.ndarray, "H Tq Tk"]
    queries: Axis
    keys: Axis
    neurons: LayerNeurons | None = None

    def __post_init__(self) -> None:
        expected = (len(self.queries), len(self.keys))
        if self.weights.ndim != 3 or self.weights.shape[1:] != expected or not self.weights.shape[0]:
            raise UsageError(
                f"panel {self.name!r} has weights of shape {self.weights.shape}; "
                f"its {expected[0]} queries and {expected[1]} keys need (heads, {expected[0]}, {expected[1]})"
            )
        if not np.isfinite(self.weights).all():
            raise UsageError(f"panel {self.name!r} has weights that are not finite; attention weights lie in 0..1")

    @property
    def heads(self) -> int:
        return self.weights.shape[0]

    def head(self, index: int) -> Self:
        """The panel of one head alone, counted from 0."""
        if not 0 <= index < self.heads:
            raise UsageError(f"{self.name!r} has heads 0 to {self.heads - 1}; head {index} was asked for")
        name = f"{self.name} head {index}" if self.heads > 1 else self.name
        neurons = None if self.neurons is None else self.neurons.head(index)
        return replace(self, name=name, weights=self.weights[index : index + 1], neurons=neurons)
