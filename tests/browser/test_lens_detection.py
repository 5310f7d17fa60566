"""Objects in the Image tab, and the offline page of boxes."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

import regard
from regard.checkpoints import save_model
from regard.families.catalog import MODELS
from regard.look.panels import Boxes, Panel, Tokens
from regard.look.report import AttentionReport
from regard.look.save import save


@pytest.fixture
def detector(tmp_path):
    torch.manual_seed(0)
    entry = MODELS["detector"]
    config = entry.config.parse({**entry.presets["tiny"], "classes": 2, "class_names": ("cat", "dog")})
    model = entry.model(config)
    model.regions.label.bias.data[1] = 2.0  # so that something is found
    save_model(tmp_path / "finder", "detector", model)
    return tmp_path / "finder"


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    return path


def painted(canvas):
    """Whether a canvas shows more than one colour."""
    script = "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data).size > 9"
    return canvas.evaluate(script)


def test_an_image_is_dropped_and_its_boxes_are_shown(open_lens, start_server, detector, picture, tmp_path):
    (found,) = regard.load(detector).detect(picture, score=0.5)
    server = start_server([detector])
    with open_lens(f"{server.url}/#picture") as page:
        expect(page.locator("#picture-content")).to_be_visible()
        page.set_input_files("#picture-file", picture)
        view = page.locator("#picture-view")
        expect(view).to_have_attribute("data-state", "done")
        expect(page.locator("#picture-answer-name")).to_have_text(re.compile(f"^{len(found.objects)} object"))
        expect(page.locator("#picture-answer li").first).to_have_text(re.compile(found.objects[0].label))
        page.wait_for_timeout(200)
        assert painted(page.locator("#picture-answer canvas"))
        stages = view.locator("[data-part=atlas] button")
        expect(stages).to_have_count(3)
        stages.nth(2).click()
        expect(view.locator("[data-part=name]")).to_have_text("proposals")
        assert painted(view.locator("[data-part=canvas]"))
        page.screenshot(path=tmp_path / "detection.png", full_page=True)


def test_words_light_the_boxes_they_look_at(context, tmp_path):
    words = Tokens(["the", "dog"])
    places = Boxes(np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.4, 0.9, 0.9]]), ["cat", "dog"])
    weights = np.array([[[0.7, 0.3], [0.1, 0.9]]])
    panels = [
        Panel("words to regions", "cross", weights, words, places),
        Panel("regions to words", "cross", weights.transpose(0, 2, 1) / weights.sum(1)[:, :, None], places, words),
    ]
    image = np.random.default_rng(0).integers(0, 256, (3, 60, 80), dtype=np.uint8)
    save(AttentionReport("t", "m", panels, image=image, shown_as="boxes"), tmp_path / "look.html")
    page, troubles = context.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto(f"file://{tmp_path / 'look.html'}")
    readout = page.locator("[data-part=readout]")
    page.locator("[data-part=queries] button").nth(1).hover()
    expect(readout).to_have_text(re.compile(r"“dog” looks most at “dog” \(90"))
    page.locator("[data-part=atlas] button").nth(1).click()
    box = page.locator("[data-part=canvas]").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.3 * box["height"])
    expect(readout).to_have_text(re.compile("“cat” looks most at “the”"))
    assert not troubles
