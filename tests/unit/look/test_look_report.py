"""Panels and reports: axes of every kind keep their JSON form, and files of the first version are read."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from regard.errors import UsageError
from regard.look.page import render_page
from regard.look.panels import (
    AXES,
    Agents,
    Axis,
    Boxes,
    Frames,
    Grid,
    Panel,
    Residues,
    Steps,
    Tokens,
    axis_from_json,
    axis_to_json,
)
from regard.look.predictions import TokenPrediction, TokenProbability
from regard.look.report import AttentionReport, from_json, to_json
from regard.look.save import save

WINDOWS = np.array([0, 0, 1, 1])
EXAMPLES: dict[str, Axis] = {
    "tokens": Tokens(["we", "</s>"]),
    "grid": Grid(2, 2, extra=1, windows=WINDOWS),
    "boxes": Boxes(np.array([[0.0, 0.25, 0.5, 1.0], [0.5, 0.0, 1.0, 0.5]]), ["cat", "dog"]),
    "steps": Steps((4, 2, 7)),
    "agents": Agents(["7", "9"], [-1, 0]),
    "frames": Frames(5, 0.04),
    "residues": Residues("MKTAY"),
}


def weights(heads: int, queries: Axis, keys: Axis) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(len(keys)), size=(heads, len(queries))).round(6)


def image_report() -> AttentionReport:
    grid, coarse = EXAMPLES["grid"], Grid(1, 2, extra=1)
    panels = [
        Panel("a", "self", weights(2, grid, grid), grid, grid),
        Panel("b", "self", weights(1, grid, coarse), grid, coarse),
    ]
    image = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
    return AttentionReport("noise", "m", panels, meta={"cat": "80.0%"}, image=image, rollout=np.full((2, 2), 0.25))


@pytest.mark.parametrize("kind", AXES)
def test_every_axis_survives_its_json_and_labels_its_places(kind: str) -> None:
    axis = EXAMPLES[kind]
    form = json.loads(json.dumps(axis_to_json(axis)))
    again = axis_from_json(form)
    assert form["kind"] == kind and type(again) is type(axis) and axis_to_json(again) == form
    assert len(axis.labels()) == len(axis) == len(again)


def test_an_axis_of_another_version_is_named() -> None:
    with pytest.raises(UsageError, match=r"'spheres'.*tokens, grid"):
        axis_from_json({"kind": "spheres"})
    with pytest.raises(UsageError, match="version 99"):
        from_json({"version": 99, "title": "", "model": "", "meta": {}, "panels": []})


def test_a_report_of_an_image_survives_its_json() -> None:
    report = image_report()
    written = json.loads(json.dumps(to_json(report)))
    read = from_json(written)
    assert to_json(read) == written
    assert read.image is not None and np.array_equal(read.image, report.image)
    assert [panel.weights.shape for panel in read.panels] == [(2, 5, 5), (1, 5, 3)]
    assert read.view == "grid" and written["axes"][written["panels"][1]["axes"][1]]["columns"] == 2


def test_files_of_the_first_version_are_read() -> None:
    new = to_json(image_report())
    old: dict[str, Any] = {name: new[name] for name in ("title", "model", "meta", "picture", "rollout", "layers")}
    read = from_json(old)
    assert [panel.name for panel in read.panels] == ["a", "b"] and to_json(read)["layers"] == new["layers"]
    words = Tokens(["a", "b"])
    report = AttentionReport(
        "t", "m", [Panel("l", "causal", weights(1, words, words), words, words)], tokens=["a", "b"]
    )
    text = to_json(report)
    old = {name: text[name] for name in ("title", "model", "meta", "source", "target", "alignment", "tokens")}
    old["panels"] = [{name: each[name] for name in each if name != "axes"} for each in text["panels"]]
    told = TokenPrediction(1, [TokenProbability("b", 0.5)], TokenProbability("a", 0.25), rank=2, generated=True)
    text = to_json(replace(report, predictions=[told]))
    old["foretold"] = text["predictions"]
    assert to_json(from_json(old)) == text


def test_axes_of_two_kinds_are_shown_by_their_labels(tmp_path) -> None:
    queries, keys = Tokens(["a", "cat"]), Grid(2, 2)
    report = AttentionReport("caption", "m", [Panel("cross", "cross", weights(2, queries, keys), queries, keys)])
    assert report.view == "tokens" and "1, 2" in render_page(report)
    assert save(report, tmp_path / "look.svg").stat().st_size > 1000
