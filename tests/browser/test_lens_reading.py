"""Pressing a head and the neuron view, on the Look tab and on tabs that read files."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import regard
from regard.families.speech.manifest import utterances
from regard.look.inspection import inspect_text
from regard.look.interventions import without_heads
from regard.look.save import save
from tiny_speech import save_recognizer, tiny_recognizer, write_wav

TEXT = "we are eating bread"


@pytest.fixture
def lens(
    start_server: Callable, open_lens: Callable[[str], AbstractContextManager[Page]], translator_folder
) -> Iterator[Page]:
    with open_lens(f"{start_server([translator_folder]).url}/#look") as page:
        page.fill("#look-text", TEXT)
        page.click("#look-go")
        expect(page.locator("#look-views")).to_have_attribute("data-state", "done")
        expect(page.locator("#atlas button[data-drawn]").first).to_be_visible()
        yield page


def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("REGARD_SHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_a_pressed_head_changes_the_translation_beside_the_original(lens: Page, translator_folder):
    whole, to = lens.locator("#look-said").inner_text(), lens.input_value("#look-to")
    pressed, said = [], []
    for layer in ("decoder.0.cross", "decoder.1.cross"):
        for head in (0, 1):
            lens.click(f'#atlas button[data-layer="{layer}"][data-head="{head}"]')
            expect(lens.locator("#look-switch")).to_have_text("Switch this head off")
            lens.click("#look-switch")
            pressed.append(f"{layer}:{head}")
            said.append(f"Decoder layer {int(layer[8]) + 1}, cross-attention, head {head + 1}")
            expect(lens.locator("#look-original")).to_contain_text("; ".join(said))
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


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return path


def pressed_head(page: Page, tab: str, choose: str, head: str) -> None:
    """Choose a head in the view of a tab, and switch it off."""
    switch = page.locator(f"#panel-{tab} [data-part=switch]")
    expect(switch).to_be_hidden()
    page.locator(f"#{tab}-view").locator(choose).first.click()
    expect(switch).to_have_text(f"Switch off {head}")
    switch.click()
    expect(page.locator(f"#panel-{tab} [data-off]")).to_have_text(f"{head} ×")


def test_a_pressed_head_changes_the_class_of_a_picture_beside_the_first(
    open_lens, start_server, make_classifier, picture
):
    folder, head = make_classifier("vit"), "encoder.0.attention:1"
    said = "Encoder layer 1, head 2"
    server, classifier = start_server([folder]), regard.load(folder)
    with open_lens(f"{server.url}/#picture") as page:
        page.set_input_files("#picture-file", picture)
        expect(page.locator("#picture-view")).to_have_attribute("data-state", "done")
        pressed_head(page, "picture", '[data-part=atlas] button[title="head 2"]', said)
        (whole,) = classifier.classify(picture)
        with without_heads(classifier, [head]):
            (changed,) = classifier.classify(picture)
        assert changed.probability != whole.probability
        for side, answer in (("changed", changed), ("whole", whole)):
            expect(page.locator(f"#picture-answer [data-part={side}] li").first).to_contain_text(answer.label)
        shown = f" {changed.label} {changed.probability:.1%}; with all heads {whole.label} {whole.probability:.1%}"
        expect(page.locator("#panel-picture [data-part=original]")).to_have_text(f"Without {said}:{shown}")
        shot(page, "pressed-picture")
        page.click("#panel-picture [data-off]")
        expect(page.locator("#panel-picture [data-off]")).to_have_count(0)
        expect(page.locator("#picture-answer [data-part=whole]")).to_have_count(0)


def test_a_pressed_head_changes_a_caption_and_what_is_heard(open_lens, start_server, make_captioner, picture, tmp_path):
    captioner_folder, recognizer = make_captioner("soft"), tiny_recognizer(decoder_depth=1)
    server = start_server([captioner_folder, save_recognizer(tmp_path / "tiny", recognizer)])
    (said,) = utterances(part="test", count=1, seed=1, digits=(2, 2), rate=8000)
    write_wav(tmp_path / "digits.wav", said.samples, 8000)
    captioner = regard.load(captioner_folder)
    with open_lens(f"{server.url}/#picture") as page:
        page.set_input_files("#picture-file", picture)
        expect(page.locator("#picture-view")).to_have_attribute("data-state", "done")
        page.click("#panel-picture [data-part=switch]")  # its only head
        with without_heads(captioner, ["decoder.cross:0"]):
            (changed,) = captioner.caption(picture)
        expect(page.locator("#picture-answer [data-part=changed] .caption")).to_have_text(changed.text)
        expect(page.locator("#picture-answer [data-part=whole] .caption")).to_have_text(
            captioner.caption(picture)[0].text
        )
        page.goto(f"{server.url}/#sound")
        page.set_input_files("#sound-file", tmp_path / "digits.wav")
        expect(page.locator("#sound-view")).to_have_attribute("data-state", "done")
        page.locator("#sound-view [data-part=head]").select_option("0")
        page.click("#panel-sound [data-part=switch]")
        head = page.locator("#panel-sound [data-off]").get_attribute("data-off")
        with without_heads(recognizer, [head]):
            (heard,) = recognizer.transcribe(tmp_path / "digits.wav")
        expect(page.locator("#sound-answer [data-part=changed] .caption")).to_have_text(heard.text or "nothing")
        shot(page, "pressed-sound")


def test_the_offline_page_has_neurons_and_what_every_layer_would_have_said(open_lens, gpt_folder, tmp_path):
    inspection = inspect_text(regard.load(gpt_folder), "one two three")
    report = replace(inspection.report(), logit_lens=inspection.logit_lens())
    out = save(report, tmp_path / "look.html")
    panel, labels = report.panels[1], report.panels[1].queries.labels()
    with open_lens(f"{out.as_uri()}#1.2") as page:  # head 2 of the second layer
        canvas = page.locator("[data-part=matrix] canvas").first
        canvas.focus()
        for step in ("ArrowDown", "ArrowDown", "ArrowRight"):
            canvas.press(step)
        expect(page.locator(".neuron-card")).to_be_visible()
        told = page.locator(".neuron-card .hint").first.inner_text()
        places = [(row, column) for row in range(len(labels)) for column in range(len(labels))]
        asked = [each for each in places if told.startswith(f"{labels[each[0]]} asks {labels[each[1]]}:")]
        scores = [panel.neurons.at(2, *each).score for each in asked]
        assert min(abs(float(told.split()[-1]) - score) for score in scores) < 0.002
        last = page.locator(f'.lens-card td[data-layer="decoder.1"][data-place="{len(labels) - 1}"] span')
        assert last.text_content() == inspection.predict(top=1)[-1].choices[0].token
