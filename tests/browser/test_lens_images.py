"""The Image tab, and the offline page of an image."""

import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import regard
from regard.families.images.view import inspect_image
from regard.look.save import save

PLACE = re.compile(r"The place at row (\d), column (\d) looks most at row (\d), column (\d) \((\S+)%\)")


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return path


def point(view, row, column):
    """Move the pointer over a cell of a map of 4 x 4."""
    box = view.locator("[data-part=canvas]").bounding_box()
    x, y = ((each + 0.5) / 4 for each in (column, row))
    view.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def check(view, classifier, picture):
    """The page shows the recorded weights of every cell that is pointed at."""
    weights = classifier.attention(picture).layers[-1].weights.mean(axis=0)
    readout = view.locator("[data-part=readout]")
    for row, column in ((0, 0), (2, 3)):
        point(view, row, column)
        expect(readout).to_have_text(re.compile(f"row {row + 1}, column {column + 1} looks"))
        *where, share = PLACE.search(readout.inner_text()).groups()
        best = weights[1 + 4 * row + column, 1:]
        assert float(share) == pytest.approx(100 * best.max(), abs=0.8)
        found = 4 * (int(where[2]) - 1) + int(where[3]) - 1
        assert best[found] == pytest.approx(best.max(), abs=0.01)
    view.locator("[data-part=class]").click()
    expect(readout).to_have_text(re.compile("The class token looks"))
    view.locator("[data-part=rollout]").click()
    expect(readout).to_have_text(re.compile("What reaches the answer"))
    view.locator("[data-part=atlas] button").first.click()
    expect(view.locator("[data-part=name]")).to_have_text(re.compile("Encoder layer 1, mean of heads"))


def test_a_picture_is_dropped_named_and_looked_into(open_lens, start_server, make_classifier, picture, tmp_path):
    server = start_server([make_classifier("vit")])
    classifier = regard.load(make_classifier("vit"))
    with open_lens(f"{server.url}/#picture") as page:
        expect(page.locator("#picture-content")).to_be_visible()
        page.set_input_files("#picture-file", picture)
        view = page.locator("#picture-view")
        expect(view).to_have_attribute("data-state", "done")
        expect(page.locator("#picture-answer li").first).to_have_text(re.compile(classifier.classify(picture)[0].label))
        check(view, classifier, picture)
        (tmp_path / "text.jpg").write_text("hello")
        page.set_input_files("#picture-file", tmp_path / "text.jpg")
        expect(page.locator("#picture-error")).to_have_text(re.compile("text.jpg is no image"))


def test_the_tab_says_when_no_model_looks_at_pictures(page, served):
    page.goto(f"{served.url}/#picture")
    expect(page.locator("#picture-none")).to_be_visible()
    expect(page.locator("#picture-content")).to_be_hidden()


def test_the_offline_page_needs_no_server(context, make_classifier, picture, tmp_path):
    classifier = regard.load(make_classifier("vit"))
    save(inspect_image(classifier, picture), tmp_path / "look.html")
    page, troubles = context.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto(f"file://{tmp_path / 'look.html'}")
    check(page.locator("body"), classifier, picture)
    assert not troubles
