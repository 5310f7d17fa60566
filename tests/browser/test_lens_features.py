"""The Features tab: features listed, searched, named, switched off and turned up; the features of a text."""

import base64
import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from PIL import Image
from playwright.sync_api import Page, expect

import regard
from regard.cli.main import run
from regard.families.dictionaries.page import render_features
from regard.families.dictionaries.pipeline import Context


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("REGARD_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_a_feature_is_opened_changed_and_named(start_server: Callable, open_lens: Callable, make_dictionary):
    folder = make_dictionary("gpt")
    dictionary = regard.load(folder)
    with open_lens(f"{start_server([folder]).url}/#features") as page:
        expect(page.locator("#features-view")).to_have_attribute("data-state", "done")
        known = [each for each in dictionary.contexts.features if each.contexts]
        expect(page.locator(".features button")).to_have_count(len(known))
        number = known[-1].number
        page.click(f'.features button[data-feature="{number}"]')
        expect(page.locator("#features-view h2")).to_have_text(f"Feature {number}")
        expect(page.locator("#features-view .contexts li")).to_have_count(len(known[-1].contexts))
        for button, value in (("#feature-off", 0.0), ("#feature-up", float(f"{2 * known[-1].largest:.4g}"))):
            page.click(button)
            expect(page.locator("#feature-answers")).to_have_attribute("data-state", "done")
            expect(page.locator("#feature-answers th").last).to_contain_text(f"at {value:.3g}"[:7])
            _, changed = dictionary.answers_in(number, 0, value)
            expect(page.locator("#feature-answers td").last).to_have_text(changed.strip())
        shot(page, "features")
        page.fill("#feature-name", "night bird")
        page.press("#feature-name", "Enter")
        expect(page.locator("#features-view h2")).to_have_text(f"Feature {number}: night bird")
        assert json.loads((folder / "names.json").read_text()) == {str(number): "night bird"}
        page.fill("#features-view input[type=search]", "NIGHT")
        expect(page.locator(".features button")).to_have_count(1)
        page.fill("#features-text", "the fox saw the owl")
        page.click("#features-go")
        _, active = dictionary.active("the fox saw the owl", 40)
        expect(page.locator("#features-active li")).to_have_count(len(active))
        page.locator("#features-active button").first.click()
        expect(page.locator("#features-view h2")).to_contain_text(f"Feature {active[0].number}")
        assert f"feature={active[0].number}" in page.url
        dictionary.rename({number: ""})


def test_the_offline_page_shows_images_and_what_the_model_says(open_lens: Callable, make_dictionary, tmp_path):
    file = tmp_path / "features.html"
    assert run(["features", "-m", str(make_dictionary("vit")), "--top", "3", "-o", str(file)]) == 0
    with open_lens(f"file://{file}") as page:
        expect(page.locator(".features button")).to_have_count(3)
        expect(page.locator(".contexts.images canvas").first).to_be_visible()
        page.locator(".features button").last.click()
        expect(page.locator(".features button").last).to_have_attribute("aria-current", "true")
        expect(page.locator(".effects tbody tr").first).to_be_visible()
        shot(page, "features-offline")


def test_features_of_regions_are_drawn_as_boxes(open_lens: Callable, tmp_path):
    white = io.BytesIO()
    Image.fromarray(np.full((50, 50, 3), 255, np.uint8)).save(white, "PNG")
    context = Context(
        "0", [2.0, 0.0, 1.0], 0, 0, boxes=[[0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.4, 0.4]]
    )
    feature = {"number": 3, "name": "", "share": 0.1, "largest": 2.0, "words": [], "outputs": None, "effects": []}
    report = {
        "dictionary": "d", "model": "m", "place": "regions.0.residual", "vectors": 9,
        "images": {"0": base64.b64encode(white.getvalue()).decode()},
        "features": [{**feature, "contexts": [asdict(context)]}],
    }  # fmt: skip
    (tmp_path / "page.html").write_text(render_features(report))
    with open_lens(f"file://{tmp_path / 'page.html'}") as page:
        canvas = page.locator(".contexts.images canvas")
        expect(canvas).to_be_visible()
        page.wait_for_function("document.querySelector('.contexts canvas').style.width === '150px'")
        # shares of the sides: in the heaviest box, beside the boxes, in the other box, and twice at the edge of a box
        points = [[0.75, 0.75], [0.7, 0.2], [0.2, 0.2], [0.503, 0.75], [0.398, 0.2]]
        drawn = canvas.evaluate(
            """(canvas) => {
            const { width, height } = canvas;
            return [width, height, [...canvas.getContext("2d").getImageData(0, 0, width, height).data]];
            }"""
        )
        pixels = np.array(drawn[2]).reshape(drawn[1], drawn[0], 4)
        light = [int(pixels[int(y * drawn[1]), int(x * drawn[0]), :3].min()) for x, y in points]
        assert light[0] == 255 and light[1] < 50 and 90 < light[2] < 200 and max(light[3:]) < 140
        shot(page, "features-boxes")
