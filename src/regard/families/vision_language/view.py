"""What a model of texts and images looks at: attention between words and regions, and its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from regard.families.vision_language.model import Head
from regard.families.vision_language.pipeline import RegionAttention, VisionLanguageModel
from regard.look.inspection import GivenInput, Inspected
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
