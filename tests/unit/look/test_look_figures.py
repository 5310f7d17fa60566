"""Figures and JSON: the files open, contain the words, and no part of a word is interpreted as markup."""

import errno
import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.errors import DataError, UsageError
from regard.look.figures import MIN_WIDTH, draw, heat_map
from regard.look.panels import Panel, Tokens
from regard.look.report import AttentionReport, from_json, to_json
from regard.look.save import save

AWKWARD = ["$x_1$", "a_b^c", "<script>alert(1)</script>", "&amp;", "面包", "نحن", "\x00\x1b[31m", "w" * 300, ""]


def rows(heads: int, queries: int, keys: int) -> np.ndarray:
    raw = np.random.default_rng(queries * keys).random((heads, queries, keys)) + 1e-3
    return raw / raw.sum(axis=-1, keepdims=True)


def report_of(source: list[str], target: list[str], heads: int = 2) -> AttentionReport:
    return AttentionReport(
        title=f"{' '.join(source)} → {' '.join(target)}",
        model="tiny",
        panels=[
            Panel("encoder.0.attention", "self", rows(heads, len(source), len(source)), Tokens(source), Tokens(source)),
            Panel("decoder.0.cross", "cross", rows(heads, len(target), len(source)), Tokens(target), Tokens(source)),
            Panel("decoder.1.cross", "cross", rows(heads, len(target), len(source)), Tokens(target), Tokens(source)),
        ],
        alignment=Panel("alignment", "cross", rows(1, len(target), len(source)), Tokens(target), Tokens(source)),
        meta={"score": "-0.3"},
    )


@pytest.fixture
def bread() -> AttentionReport:
    return report_of(["we", "are", "eating", "bread"], ["estamos", "comiendo", "pan"])


def words_in_svg(path: Path) -> list[str]:
    return [
        "".join(node.itertext()).strip() for node in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.parametrize("count", [1, 3, 60, 220])
def test_png_opens_with_a_sane_size(tmp_path: Path, count: int) -> None:
    words = [f"word{index}" for index in range(count)]
    with Image.open(save(report_of(words, words, heads=1), tmp_path / "map.png")) as image:
        image.verify()
        assert image.format == "PNG"
        assert 300 < image.width < 7000 and 150 < image.height < 7000


def test_svg_holds_every_word_as_text(tmp_path: Path, bread: AttentionReport) -> None:
    texts = words_in_svg(save(bread, tmp_path / "map.svg"))
    for word in ["we", "are", "eating", "bread", "estamos", "comiendo", "pan"]:
        assert word in texts


def test_words_are_never_interpreted_in_pictures(tmp_path: Path) -> None:
    awkward = report_of(AWKWARD, AWKWARD)
    path = save(awkward, tmp_path / "map.svg")
    texts = words_in_svg(path)
    assert "$x_1$" in texts and "a_b^c" in texts and "&amp;" in texts
    assert "<script" not in path.read_text(encoding="utf-8")
    save(awkward, tmp_path / "map.png")
    save(awkward, tmp_path / "heads.png", view="heads")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_equal_reports_give_equal_files(tmp_path: Path, bread: AttentionReport, suffix: str) -> None:
    first, second = (save(bread, tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
    assert first == second


@pytest.mark.parametrize("count", [3, 14, 30, 60])
def test_labels_stay_inside_the_figure_and_apart(count: int) -> None:
    words = [f"{'long' * (index % 4)}word{index}" for index in range(count)]
    figure = heat_map(Panel("map", "cross", rows(1, count, count), Tokens(words), Tokens(words)), title="t")
    axes = figure.axes[0]
    renderer = figure.canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]]
    width, height = figure.bbox.width, figure.bbox.height
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    # Labels at 45 degrees are apart when their distance across the slope exceeds the height of a line.
    cell = axes.get_window_extent(renderer).width / count
    line = axes.get_xticklabels()[0].get_fontsize() * figure.dpi / 72
    assert cell * np.sqrt(0.5) > line
    tops = sorted(box.y0 for box in boxes[count:])
    assert np.diff(tops).min() > line * 0.99


def test_a_short_sentence_carries_numbers_and_a_long_one_does_not() -> None:
    few, many = ["a", "b"], [str(index) for index in range(40)]
    weights = np.array([[[0.25, 0.75], [1.0, 0.0]]])
    written = heat_map(Panel("m", "cross", weights, Tokens(few), Tokens(few))).axes[0].texts
    assert [text.get_text() for text in written] == [".25", ".75", "1.00"]
    assert not heat_map(Panel("m", "cross", rows(1, 40, 40), Tokens(many), Tokens(many))).axes[0].texts


def test_every_layer_and_head_has_its_map(bread: AttentionReport) -> None:
    figure = draw(bread, "heads")
    assert len(figure.axes) == 3 * 2
    np.testing.assert_allclose(figure.axes[2].images[0].get_array(), bread.panels[1].weights[0])
    assert figure.get_size_inches()[0] >= MIN_WIDTH


def test_layers_and_heads_can_be_chosen(tmp_path: Path, bread: AttentionReport) -> None:
    path = save(bread, tmp_path / "cross.json", panels="decoder.*.cross", head=1)
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    assert [panel["name"] for panel in panels] == ["decoder.0.cross head 1", "decoder.1.cross head 1"]
    np.testing.assert_allclose(panels[0]["weights"], bread.panels[1].weights[1:], atol=1e-6)
    with pytest.raises(UsageError, match=r"decoder\.1\.cross"):
        save(bread, tmp_path / "x.png", panels="nothing")
    with pytest.raises(UsageError, match="heads 0 to 1"):
        save(bread, tmp_path / "x.png", head=2)


def test_other_suffixes_are_refused_with_the_four_that_work(tmp_path: Path, bread: AttentionReport) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.html or \.json"):
        save(bread, tmp_path / "map.pdf")


def test_what_is_not_there_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no word alignment"):
        save(AttentionReport("t", "m"), tmp_path / "x.png", view="alignment")
    with pytest.raises(UsageError, match="nothing was recorded"):
        save(AttentionReport("t", "m"), tmp_path / "x.png")


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    report = report_of(AWKWARD, AWKWARD[:4])
    read = from_json(json.loads(save(report, tmp_path / "deep" / "report.json").read_text(encoding="utf-8")))
    assert to_json(read) == to_json(report)
    assert (read.source, read.target) == (AWKWARD, AWKWARD[:4])
    for before, after in zip(report.panels, read.panels, strict=True):
        np.testing.assert_allclose(after.weights, before.weights, atol=5e-7)


def test_panels_refuse_weights_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match=r"2 queries and 3 keys"):
        Panel("p", "self", np.zeros((1, 2, 2)), Tokens(["a", "b"]), Tokens(["a", "b", "c"]))
    with pytest.raises(UsageError, match="not finite"):
        Panel("p", "self", np.full((1, 1, 1), np.nan), Tokens(["a"]), Tokens(["a"]))


def test_a_model_without_cross_attention_has_a_source_only() -> None:
    report = AttentionReport(
        "t", "m", [Panel("encoder.0", "self", rows(1, 2, 2), Tokens(["a", "b"]), Tokens(["a", "b"]))]
    )
    assert (report.source, report.target) == (["a", "b"], [])


@pytest.mark.parametrize("suffix", ["png", "svg", "html", "json"])
def test_a_full_disk_leaves_the_file_of_before_and_names_it(
    bread: AttentionReport, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = save(bread, tmp_path / f"map.{suffix}")
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=rf"map\.{suffix}: not written \(No space left on device\)"):
        save(bread, path, panels="decoder.*.cross", head=1)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
