"""Pressing a head and the neuron view on the Look tab."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from playwright.sync_api import Page, expect

import regard
from regard.inference.insight.interventions import without_heads

TEXT = "we are eating bread"


@pytest.fixture
def lens(
    start_server: Callable, open_lens: Callable[[str], AbstractContextManager[Page]], translator_folder
) -> Iterator[Page]:
    with open_lens(f"{start_server([translator_folder]).url}/#look") as page:
        page.fill("#look-text", TEXT)
        page.click("#look-go")
        expect(page.locator("#atlas button[data-drawn]").first).to_be_visible()
        yield page


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("REGARD_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_a_pressed_head_changes_the_translation_beside_the_original(lens: Page, translator_folder):
    whole, to = lens.locator("#look-said").inner_text(), lens.input_value("#look-to")
    pressed = []
    for layer in ("decoder.0.cross", "decoder.1.cross"):
        for head in (0, 1):
            lens.click(f'#atlas button[data-layer="{layer}"][data-head="{head}"]')
            expect(lens.locator("#look-switch")).to_have_text("Switch this head off")
            lens.click("#look-switch")
            pressed.append(f"{layer}:{head}")
            expect(lens.locator("#look-original")).to_contain_text(", ".join(pressed))
            expect(lens.locator("#look-switch")).to_have_attribute("aria-pressed", "true")
    translator = regard.load(translator_folder)
    with without_heads(translator, pressed):
        changed = translator.translate(TEXT, to=to).text
    assert whole == translator.translate(TEXT, to=to).text and changed != whole
    expect(lens.locator("#look-said")).to_have_text(changed)
    expect(lens.locator("#look-original")).to_contain_text(f"“{changed}”, with all heads “{whole}”")
    shot(lens, "pressed")
    for layer in ("decoder.0.cross", "decoder.1.cross"):
        for head in (0, 1):
            lens.click(f'#atlas button[data-layer="{layer}"][data-head="{head}"]')
            expect(lens.locator("#look-switch")).to_have_attribute("aria-pressed", "true")
            lens.click("#look-switch")
            expect(lens.locator("#look-switch")).to_have_attribute("aria-pressed", "false")
    expect(lens.locator("#look-original")).to_be_hidden()
    expect(lens.locator("#look-said")).to_have_text(whole)


def test_a_query_and_a_key_are_shown_by_dimension(lens: Page):
    lens.click('#atlas button[data-layer="decoder.1.cross"][data-head="1"]')
    canvas = lens.locator("#look-matrix canvas").first
    canvas.focus()
    for step in ("ArrowDown", "ArrowRight", "ArrowRight"):
        canvas.press(step)
    expect(lens.locator("#neurons")).to_be_visible()
    expect(lens.locator("#neurons .neuron-row")).to_have_count(3)
    expect(lens.locator('#neurons [data-row="q × k"] span')).to_have_count(32)
    expect(lens.locator("#neurons")).to_contain_text("the 32 dimensions add up to")
    shot(lens, "neurons")
