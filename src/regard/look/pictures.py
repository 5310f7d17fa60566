"""Where a model of pictures looks: every layer and head over the picture, as PNG, SVG, an offline page or JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.data.images.reading import Pixels, png
from regard.errors import UsageError
from regard.inference.pipelines.images import MapAttention, Picture, PictureAttention, PictureReader
from regard.layers.vision import Grid
from regard.look.figures import INK, MUTED, check_suffix, save_figure
from regard.look.page import assemble

Point = tuple[float, float]  # x to the right, y down, in sides of the picture
SCRIPTS = ("data.js", "picture_view.js", "picture.js")
POINT_COLOURS = ("#ff7a1a", "#19c37d", "#3f8cff", "#e0409f", "#f5d400")
VEIL, CONTRAST = 0.86, 0.8  # how dark a place becomes that is not looked at, and how soon
CELL = 1.25  # inches of one small picture


@dataclass(frozen=True, eq=False)
class PictureSight:
    """Everything a model looked at in one picture; `rollout` is what reaches its answer through all layers."""

    title: str
    model: str
    pixels: Pixels
    layers: Sequence[MapAttention]
    rollout: np.ndarray | None = None
    meta: dict[str, str] = field(default_factory=dict)

    def select(self, layers: str = "*", head: int | None = None) -> PictureSight:
        """Only the layers whose name matches a pattern, and of them one head if given."""
        chosen = [layer for layer in self.layers if fnmatchcase(layer.name, layers)]
        if not chosen:
            raise UsageError(
                f"no attention layer matches {layers!r}; the layers are: {', '.join(each.name for each in self.layers)}"
            )
        if head is None:
            return replace(self, layers=chosen)
        if most := next((len(each.weights) for each in chosen if not 0 <= head < len(each.weights)), 0):
            raise UsageError(f"there are heads 0 to {most - 1}; head {head} was asked for")
        one = [replace(each, name=f"{each.name} head {head}", weights=each.weights[head : head + 1]) for each in chosen]
        return replace(self, layers=one)


def picture_sight(reader: PictureReader, picture: Picture, title: str = "") -> PictureSight:
    """Every layer and head while the model looks at a picture, and what it takes it for."""
    seen = reader.attention(picture)
    return sight_of(seen, title=title or str(picture), model=reader.name, meta=reader.said(picture))


def sight_of(seen: PictureAttention, *, title: str, model: str, meta: dict[str, str]) -> PictureSight:
    """Recorded attention, to be drawn."""
    return PictureSight(title, model, seen.pixels, seen.layers, seen.rollout(), meta)


def save_picture(
    sight: PictureSight, path: Path, *, layers: str = "*", head: int | None = None, points: Sequence[Point] = ()
) -> Path:
    """Write a sight as .png, .svg, .html or .json; `points` are the places whose looks are drawn."""
    suffix = check_suffix(path)
    if layers != "*" or head is not None:
        sight = sight.select(layers, head)
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".html":
        path.write_text(picture_page(sight), encoding="utf-8")
    elif suffix == ".json":
        path.write_text(json.dumps(to_json(sight), ensure_ascii=False), encoding="utf-8")
    else:
        save_figure(lambda: draw(sight, points), path)
    return path


def to_json(sight: PictureSight) -> dict[str, Any]:
    """The sight as plain lists; weights[head][query][key], places counted row by row after `extra` tokens."""
    return {
        **described(sight),
        "layers": [
            {**each, "weights": layer.weights.astype(np.float64).round(6).tolist()}
            for each, layer in zip(described(sight)["layers"], sight.layers, strict=True)
        ],
    }


def picture_page(sight: PictureSight) -> str:
    """The whole page as text."""
    data, weights = described(sight), [layer.weights for layer in sight.layers]
    return assemble("picture", SCRIPTS, title=sight.title, data=data, weights=weights)


def described(sight: PictureSight) -> dict[str, Any]:
    """Everything but the weights."""
    rollout = None
    if sight.rollout is not None:
        rollout = {"grid": list(sight.rollout.shape), "weights": sight.rollout.round(6).flatten().tolist()}
    return {
        "title": sight.title,
        "model": sight.model,
        "meta": sight.meta,
        "picture": f"data:image/png;base64,{base64.b64encode(png(sight.pixels)).decode()}",
        "rollout": rollout,
        "layers": [
            {
                "name": layer.name,
                "heads": len(layer.weights),
                "queries": list(layer.queries),
                "keys": list(layer.keys),
                "extra": layer.extra,
                "windows": None if layer.windows is None else layer.windows.tolist(),
            }
            for layer in sight.layers
        ],
    }


# Figures


def draw(sight: PictureSight, points: Sequence[Point] = ()) -> Figure:
    """The picture and its rollout, then for each layer and point a row of heads.

    Without points it is the class token that looks, or the middle of the picture where there is none.
    """
    chosen: Sequence[Point | None] = points
    rows = [(layer, point) for layer in sight.layers for point in (chosen or [_usual_point(layer)])]
    columns = max(2, *(len(layer.weights) for layer in sight.layers))
    figure = Figure(figsize=(CELL * columns + 0.2, (CELL + 0.2) * (len(rows) + 1) + 0.4))
    axes = figure.subplots(len(rows) + 1, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    _show(axes[0][0], sight.pixels)
    for number, each in enumerate(points):
        _mark(axes[0][0], sight.pixels, each, number)
    if sight.rollout is not None:
        _show(axes[0][1], sight.pixels, sight.rollout)
        axes[0][1].set_title("all layers (rollout)", fontsize=6, color=MUTED, loc="left")
    for line, (layer, point) in zip(axes[1:], rows, strict=True):
        row = 0 if point is None else layer.extra + place_at(point, layer.queries)
        for head, (axis, weights) in enumerate(zip(line, layer.weights[:, row, layer.extra :], strict=False)):
            _show(axis, sight.pixels, weights.reshape(layer.keys))
            _outline(axis, sight.pixels, layer)
            if point is not None:
                _mark(axis, sight.pixels, point, points.index(point) if points else 0)
            axis.set_title(f"{layer.name} · {head}" if head == 0 else str(head), fontsize=6, color=MUTED, loc="left")
    figure.suptitle(f"{sight.title}  {_facts(sight)}", fontsize=9, color=INK)
    figure.tight_layout(pad=0.3, rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    return figure


def place_at(point: Point, grid: Grid) -> int:
    """The place of a map that lies at a point, counted row by row."""
    column, row = (min(int(share * side), side - 1) for share, side in zip(point, grid[::-1], strict=True))
    return row * grid[1] + column


def _usual_point(layer: MapAttention) -> Point | None:
    return None if layer.extra else (0.5, 0.5)


def _facts(sight: PictureSight) -> str:
    return "  ".join([sight.model, *(f"{name} {value}" for name, value in sight.meta.items())])


def _show(axis: Axes, pixels: Pixels, weights: np.ndarray | None = None) -> None:
    """The picture, dark where it is not looked at."""
    height, width = pixels.shape[1:]
    axis.imshow(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=255)
    if weights is not None:
        veil = np.zeros((*weights.shape, 4))
        veil[..., 3] = VEIL * (1 - (weights / max(weights.max(), 1e-12)) ** CONTRAST)
        axis.imshow(veil, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")


def _mark(axis: Axes, pixels: Pixels, point: Point, number: int) -> None:
    height, width = pixels.shape[1:]
    colour = POINT_COLOURS[number % len(POINT_COLOURS)]
    axis.plot(point[0] * width - 0.5, point[1] * height - 0.5, "o", color=colour, markersize=4, markeredgecolor="white")


def _outline(axis: Axes, pixels: Pixels, layer: MapAttention) -> None:
    """The borders of windows, where attention stays within them."""
    if layer.windows is None:
        return
    (rows, columns), (height, width) = layer.queries, pixels.shape[1:]
    windows = layer.windows.reshape(layer.queries)
    for row, column in zip(*np.nonzero(windows[:, 1:] != windows[:, :-1]), strict=True):
        x = (column + 1) * width / columns - 0.5
        axis.plot(
            [x, x], [row * height / rows - 0.5, (row + 1) * height / rows - 0.5], color="white", lw=0.4, alpha=0.6
        )
    for row, column in zip(*np.nonzero(windows[1:] != windows[:-1]), strict=True):
        y = (row + 1) * height / rows - 0.5
        axis.plot(
            [column * width / columns - 0.5, (column + 1) * width / columns - 0.5],
            [y, y],
            color="white",
            lw=0.4,
            alpha=0.6,
        )
