"""Attention between words and regions as PNG and SVG: the image once for every word, bright where its boxes are."""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.errors import UsageError
from regard.families.vision_language.model import Head
from regard.families.vision_language.pipeline import RegionAttention, VisionLanguageModel
from regard.look.figures import INK, MUTED
from regard.look.given import GivenInput, Inspected
from regard.look.image_figures import CELL, POINT_COLOURS, facts, show_image
from regard.look.panels import Axis, Boxes, Kind, Panel, Tokens
from regard.look.report import AttentionReport

WHOLE = "whole image"
USUAL = "a large red circle"  # read where no text is given


def inspect_regions(reader: VisionLanguageModel, given: GivenInput) -> Inspected:
    """Every layer and head while a model reads a text and an image, and its answer."""
    text = given.text.strip() or USUAL
    recorded, answer = reader.attention(given.file, text), _answer(reader, given, text)
    names = [WHOLE, *(f"region {number}" for number in range(1, len(recorded.boxes)))]
    axes: dict[str, Axis] = {"words": Tokens(recorded.tokens), "regions": Boxes(recorded.boxes, names)}
    panels = [
        replace(_panel(name, weights, axes), neurons=recorded.neurons.get(name))
        for name, weights in _ordered(recorded, reader.config.head)
    ]
    title = f"{given.title} · {text}" if given.title else text
    shown = {str(key): str(value) for key, value in answer["summary"].items()}
    report = AttentionReport(
        title, reader.name, panels, meta=shown, tokens=recorded.tokens, image=recorded.pixels, shown_as=Boxes.view
    )
    return Inspected(report, answer)


def _answer(reader: VisionLanguageModel, given: GivenInput, text: str) -> dict[str, Any]:
    match reader.config.head:
        case "point":
            (found,) = reader.point(given.file, text)
            return {
                "text": text, "region": found.region, "probabilities": found.probabilities, "box": list(found.box),
                "summary": {"region": f"{found.region} ({found.probabilities[found.region]:.1%})"},
            }  # fmt: skip
        case "answer":
            (answer,) = reader.answer(given.file, text)
            return {"text": text, "labels": answer.labels, "summary": {answer.label: f"{answer.probability:.1%}"}}
        case "none":
            return {"text": text, "summary": {}}
    (match,) = reader.match(given.file, text)
    summary = {"score": f"{match.score:.2f}"}
    if match.probability is not None:
        summary["match"] = f"{match.probability:.1%}"
    return {"text": text, "score": match.score, "probability": match.probability, "summary": summary}


def _ordered(recorded: RegionAttention, head: Head) -> list[tuple[str, np.ndarray[Any, Any]]]:
    """The layers between the streams first, the last of them at the front, each from words to regions and back.

    A head that points reads the regions alone, and what the words see last does not reach them. So regions come first.
    """
    between = [item for item in recorded.weights.items() if item[0].endswith(".cross")]
    within = [item for item in recorded.weights.items() if not item[0].endswith(".cross")]
    backward = [each for first in range(len(between) - 2, -1, -2) for each in between[first : first + 2]]
    if head == "point":
        backward.sort(key=lambda item: ".words." in f".{item[0]}")
    return [*backward, *within]


def _panel(name: str, weights: np.ndarray[Any, Any], axes: dict[str, Axis]) -> Panel:
    kind: Kind = "cross" if name.endswith(".cross") else "self"
    queries = "words" if ".words." in f".{name}" else "regions"
    keys = queries if kind == "self" else "regions" if queries == "words" else "words"
    return Panel(name, kind, weights, axes[queries], axes[keys])


COLUMNS = 8  # images of a row
PANELS = 2  # layers that are drawn: the first ones of the report, which are those between words and regions
WORDS = 3  # the words that a region looks at most, written beside it
LETTERS = 16  # of the title, for each column
WHOLE_SIDE = 0.999  # sides of a box that is taken for the whole image
DETAIL = 96  # cells of a side of the map of what is looked at


def draw_regions(report: AttentionReport) -> Figure:
    """What every word and every region of the first layers looks at (the mean of the heads).

    Boxes that are looked at are bright; what falls on a box of the whole image is written beside the word. A region has
    a frame, and the words that it looks at most beside it.
    """
    panels = [panel for panel in report.panels if isinstance(panel.queries, Boxes) or isinstance(panel.keys, Boxes)]
    if report.image is None or not panels:
        raise UsageError("there is no attention between words and regions to draw: nothing was recorded")
    lines = [
        (panel, range(first, min(first + COLUMNS, len(panel.queries))))
        for panel in panels[:PANELS]
        for first in range(0, len(panel.queries), COLUMNS)
    ]
    figure = Figure(figsize=(CELL * (COLUMNS + 1) + 0.2, (CELL + 0.45) * len(lines) + 0.5))
    axes = figure.subplots(len(lines), COLUMNS + 1, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    show_image(axes[0][0], report.image)
    for number, (row, (panel, places)) in enumerate(zip(axes, lines, strict=True)):
        if places.start == 0:
            row[0].set_title(panel.name, fontsize=6, color=MUTED, loc="left")
            if number:
                row[0].text(0.02, 0.5, f"what {panel.queries.kind} look at", fontsize=6, color=MUTED)
        for axis, place in zip(row[1:], places, strict=False):
            _draw_place(axis, report, panel, place)
    title = wrap(f"{report.title}  {facts(report)}", LETTERS * (COLUMNS + 1))
    figure.suptitle("\n".join(title), fontsize=9, color=INK)
    figure.tight_layout(pad=0.3, rect=(0, 0, 1, 1 - (0.2 + 0.15 * len(title)) / figure.get_figheight()))
    return figure


def _draw_place(axis: Axes, report: AttentionReport, panel: Panel, place: int) -> None:
    """The image as one query sees it."""
    assert report.image is not None
    weights, said = panel.weights[:, place].mean(axis=0), panel.queries.labels()[place]
    if isinstance(panel.keys, Boxes):
        boxes = panel.keys.boxes
        whole = (boxes[:, 2:] - boxes[:, :2] >= WHOLE_SIDE).all(axis=1)
        seen = None if whole.all() else brightness(boxes[~whole], weights[~whole])
        show_image(axis, report.image, seen)
        said += f"\nwhole image {weights[whole].sum():.2f}" if whole.any() else ""
    else:
        show_image(axis, report.image)
        words = panel.keys.labels()
        said += "\n" + " ".join(words[each] for each in np.argsort(-weights, kind="stable")[:WORDS])
    if isinstance(panel.queries, Boxes):
        left, top, right, bottom = panel.queries.boxes[place]
        height, width = report.image.shape[1:]
        corner = left * width - 0.5, top * height - 0.5
        size = (right - left) * width, (bottom - top) * height
        axis.add_patch(Rectangle(corner, *size, fill=False, edgecolor=POINT_COLOURS[0], linewidth=1.2))
    axis.set_title(said, fontsize=6, color=INK, loc="left")


def brightness(boxes: Float[np.ndarray, "N 4"], weights: Float[np.ndarray, " N"]) -> Float[np.ndarray, "S S"]:
    """At every place of the image, the largest weight of a box that covers it."""
    middles = (np.arange(DETAIL) + 0.5) / DETAIL
    x, y = middles[None, None, :], middles[None, :, None]
    left, top, right, bottom = (edge[:, None, None] for edge in boxes.T)
    inside = (left <= x) & (x <= right) & (top <= y) & (y <= bottom)
    return np.where(inside, weights[:, None, None], 0.0).max(axis=0)
