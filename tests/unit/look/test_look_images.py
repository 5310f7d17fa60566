"""Reports of images as files: they contain the recorded attention."""

import base64
import io
import json
import re
import zlib

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import regard
from regard.errors import UsageError
from regard.families.captions.view import draw_strip
from regard.families.images.view import inspect_image
from regard.look.image_figures import brightness
from regard.look.page import quantise, render_page
from regard.look.panels import Boxes, Grid, Panel, Tokens
from regard.look.report import AttentionReport, to_json
from regard.look.save import save


@pytest.fixture
def report(make_classifier):
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return inspect_image(regard.load(make_classifier("vit")), Image.fromarray(noise), title="noise </script>")


def test_json_holds_the_image_and_every_weight(report):
    told = json.loads(json.dumps(to_json(report)))
    image = Image.open(io.BytesIO(base64.b64decode(told["picture"].partition(",")[2])))
    assert np.array_equal(np.asarray(image).transpose(2, 0, 1), report.image)
    for layer, written in zip(report.panels, told["layers"], strict=True):
        np.testing.assert_allclose(written["weights"], layer.weights, atol=1e-6)
        assert (written["queries"], written["extra"]) == ([4, 4], 1)
    np.testing.assert_allclose(np.reshape(told["rollout"]["weights"], (4, 4)), report.rollout, atol=1e-6)
    assert set(told["meta"]) <= {"a", "b", "c"}


def test_the_page_carries_its_weights_and_lets_nothing_else_in(report):
    page = render_page(report)
    packed = re.findall(r'id="weights-\d+">([^<]*)<', page)
    assert len(packed) == len(report.panels)
    for layer, each in zip(report.panels, packed, strict=True):
        assert zlib.decompress(base64.b64decode(each)) == quantise(layer.weights).tobytes()
    assert "noise </script>" not in page
    assert "default-src 'none'" in page and "http" not in re.sub(r"http-equiv|</?script[^>]*>", "", page)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html", ".json"])
@pytest.mark.parametrize("kind", ["vit", "swin", "mvit", "resnet-local"])
def test_files_of_every_kind_are_written(make_classifier, tmp_path, suffix, kind):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    seen = inspect_image(regard.load(make_classifier(kind)), image, title="noise")
    path = tmp_path / "new" / f"look{suffix}"
    save(seen, path, head=0, points=[(0.1, 0.2), (0.9, 0.5)])
    assert path.stat().st_size > 1000
    if suffix == ".png":
        assert len(np.unique(np.asarray(Image.open(path)))) > 20


def test_only_what_is_chosen_is_kept(report):
    chosen = report.select("encoder.1.*", head=1)
    assert [layer.name for layer in chosen.panels] == ["encoder.1.attention head 1"]
    np.testing.assert_array_equal(chosen.panels[0].weights[0], report.panels[1].weights[1])
    with pytest.raises(UsageError, match="the layers are: encoder"):
        report.select("decoder.*")
    with pytest.raises(UsageError, match="heads 0 to 1"):
        report.select("*", head=2)


def test_other_endings_are_refused(report, tmp_path):
    with pytest.raises(UsageError, match=r"ending in \.png"):
        save(report, tmp_path / "look.gif")


@pytest.mark.parametrize(
    ("point", "place"), [((0, 0), 0), ((1, 1), 11), ((0.99, 0), 3), ((0.5, 0.5), 6), ((0, 0.7), 8)]
)
def test_a_point_is_a_place_of_the_map(point, place):
    assert Grid(3, 4).place_at(point) == place and Grid(3, 4, extra=1).place_at(point) == place + 1


def region_report(heads=2):
    words, boxes = Tokens(["[CLS]", "red", "circle"]), np.array([[0, 0, 1, 1], [0.25, 0, 0.5, 0.5], [0.4, 0.4, 1, 1]])
    regions, rng = Boxes(boxes, ["whole image", "region 1", "region 2"]), np.random.default_rng(0)
    panels = [
        Panel(name, "cross", rng.dirichlet(np.ones(3), (heads, 3)).astype(np.float32), queries, keys)
        for name, queries, keys in (("words.cross", words, regions), ("regions.cross", regions, words))
    ]
    pixels = rng.integers(0, 256, (3, 20, 30), dtype=np.uint8)
    return AttentionReport("a red circle", "m", panels, image=pixels, shown_as="boxes")


def test_a_figure_of_regions_shows_the_image_for_every_word_and_region(tmp_path):
    report = region_report()
    svg = save(report, tmp_path / "look.svg").read_text(encoding="utf-8")
    assert svg.count("<image") == 1 + 3 + 3  # the image; for each word with its veil; for each region
    shown = re.findall(r"<text[^>]*>(.*?)</text>", svg)
    assert {"[CLS]", "red", "circle", "whole image", "region 2"} <= set(shown)
    assert f"whole image {report.panels[0].weights[:, 1, 0].mean():.2f}" in shown
    order = np.argsort(-report.panels[1].weights[:, 2].mean(axis=0))
    assert " ".join(report.panels[0].queries.labels()[each] for each in order) in shown
    with pytest.raises(UsageError, match=r"\.png"):
        save(report, tmp_path / "look.gif")


def test_a_place_is_as_bright_as_the_most_looked_at_box_that_covers_it():
    boxes, weights = np.array([[0, 0, 1, 1], [0.25, 0, 0.5, 0.5], [0.4, 0.4, 1, 1]]), np.array([0.2, 0.3, 0.5])
    found = brightness(boxes, weights)
    side = len(found)
    for row, column in np.random.default_rng(0).integers(0, side, (60, 2)):
        x, y = (column + 0.5) / side, (row + 0.5) / side
        covering = [w for w, (x1, y1, x2, y2) in zip(weights, boxes, strict=True) if x1 <= x <= x2 and y1 <= y <= y2]
        assert found[row, column] == max(covering)


@pytest.mark.parametrize("words", [5, 10, 20])
def test_words_above_a_row_of_images_do_not_reach_into_the_row_before(words):
    layer = Panel(
        "decoder.cross", "cross", np.full((1, words, 4), 0.25), Tokens([f"word{n}" for n in range(words)]), Grid(2, 2)
    )
    report = AttentionReport("a title", "model", [layer], image=np.zeros((3, 8, 8), dtype=np.uint8))
    canvas = FigureCanvasAgg(draw_strip(report))
    canvas.draw()
    images = [axis.get_window_extent() for axis in canvas.figure.axes if axis.images]
    titles = [axis.get_title(loc="left") and axis._left_title.get_window_extent() for axis in canvas.figure.axes]
    assert sum(bool(title) for title in titles) == words
    assert not any(title.overlaps(image) for title in titles if title for image in images)
