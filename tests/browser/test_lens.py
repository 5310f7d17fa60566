"""The web page in a real browser."""

import io
import json
import re
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect

import regard

SENTENCE = "we are eating bread"
TABS = ("translate", "documents", "look", "compare", "workbench", "train", "models")
OF_FILES = ("picture", "sound", "house", "scene", "protein")  # hidden where no model reads such files


def translate(page: Page, text: str = SENTENCE) -> str:
    page.fill("#translate-text", text)
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")
    return page.locator("#translation").inner_text()


def drawn(page: Page, canvas: str) -> int:
    """The number of colours that a canvas shows."""
    count = """canvas => { const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(new Uint32Array(data.buffer)).size }"""
    return page.locator(canvas).first.evaluate(count)


def test_every_tab_opens_by_mouse_and_by_keyboard(page: Page):
    for tab in ("translate", "documents", "train", "models"):
        page.click(f"#tab-{tab}")
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        expect(page.locator(".tabs [aria-current=page]")).to_have_id(f"tab-{tab}")
        assert page.url.split("#")[1].split("?")[0] == tab
    for tab in ("look", "compare", "workbench"):
        page.click("#kinds-button")
        page.click(f"#tab-{tab}")
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        expect(page.locator("#kinds-menu")).to_be_hidden()
        expect(page.locator("#kinds-button")).to_contain_text(page.locator(f"#tab-{tab}").text_content())
    page.focus("#tab-documents")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#tab-look")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#panel-compare")).to_be_visible()
    page.focus("#kinds-button")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#kinds-menu")).to_be_hidden()


def test_a_tab_of_files_that_no_model_reads_opens_by_its_address_alone(page: Page, served):
    for tab in OF_FILES:
        page.click("#kinds-button")
        expect(page.locator("#tab-workbench")).to_be_visible()
        expect(page.locator(f"#tab-{tab}")).to_be_hidden()
        page.keyboard.press("Escape")
        page.goto(f"{served.url}/#{tab}")
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        page.click("#kinds-button")
        expect(page.locator(f"#tab-{tab}")).to_be_visible()
        page.click("#tab-translate")


# Translate


def test_a_translation_and_what_else_it_could_have_said(page: Page, translator_folder: Path):
    best = regard.load(translator_folder).translate(SENTENCE, to="es")
    page.select_option("#translate-to", "es")
    assert translate(page) == best.text
    items = page.locator("#n-best li")
    assert items.count() > 1
    items.nth(1).locator("button").or_(items.nth(1)).first.click()
    expect(page.locator("#target-words")).to_have_text(re.compile(r"\w"))
    assert drawn(page, "#translate-matrix canvas") > 3


def test_pointing_at_a_word_lights_up_its_partners_both_ways(page: Page):
    page.select_option("#translate-to", "es")
    translate(page)
    for pointed, partners in (("#target-words", "#source-words"), ("#source-words", "#target-words")):
        page.locator(f"{pointed} [data-index='0']").hover()
        expect(page.locator(f"{pointed} [data-index='0']")).to_have_class(re.compile("on"))
        lit = page.locator(f"{partners} [data-index]").evaluate_all(
            "words => words.filter(word => word.style.backgroundColor).length"
        )
        assert lit >= 1
        expect(page.locator("#translate-readout")).to_contain_text("look")
    page.locator("#target-words [data-index='0']").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#translate-readout")).to_have_text("")


def test_the_beam_search_can_be_stepped_through(page: Page):
    page.select_option("#translate-to", "es")
    translate(page)
    nodes = page.locator("#beam-tree .node")
    everything = nodes.count()
    assert everything > 8

    def shown() -> int:
        return page.locator("#beam-tree .node:not(.away)").count()

    assert shown() == everything and page.locator("#beam-tree .node.best").count() > 1
    page.click("#tree-first")
    expect(page.locator("#tree-step")).to_contain_text("Step 1 of")
    first = shown()
    page.click("#tree-forward")
    expect(page.locator("#tree-step")).to_contain_text("Step 2 of")
    assert first < shown() <= everything
    page.focus("#beam-tree")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#tree-step")).to_contain_text("Step 1 of")
    page.click("#tree-last")
    assert shown() == everything


def test_what_is_wrong_is_said_in_words(page: Page):
    page.fill("#translate-text", "x " * 5_001)
    expect(page.locator("#translate-error")).to_contain_text("the limit is 10000", timeout=15_000)


# Look


def look(page: Page) -> None:
    page.click("#kinds-button")
    page.click("#tab-look")
    page.fill("#look-text", SENTENCE)
    page.select_option("#look-to", "es")
    page.click("#look-go")
    expect(page.locator("#look-views")).to_have_attribute("data-state", "done")
    expect(page.locator("#atlas button[data-drawn]").first).to_be_visible()


def test_every_layer_and_head_is_drawn_and_one_is_seen_closely(page: Page, translator_folder: Path):
    look(page)
    layers = page.locator("#atlas .layer").evaluate_all("all => all.map(each => each.dataset.layer)")
    assert len([layer for layer in layers if layer != "alignment"]) == 5  # one encoder and two decoder layers
    expect(page.locator("#atlas button[data-layer][data-head]:not([data-drawn])")).to_have_count(0)
    page.click("#atlas button[data-layer='decoder.1.cross'][data-head='1']")
    expect(page.locator("#view-name")).to_have_text("Decoder layer 2, cross-attention, head 2")
    assert drawn(page, "#look-matrix canvas") > 3
    page.locator("#look-threads .queries-side [data-index='1']").hover()
    expect(page.locator("#look-readout")).to_contain_text("looks at")
    expect(page.locator("#scores li")).to_have_count(page.locator("#look-threads .keys-side [data-index]").count())
    page.click("#kinds button[data-kind='cross']")
    kinds = page.locator("#atlas .layer:visible").evaluate_all("all => all.map(e => e.dataset.layer)")
    assert kinds and all("cross" in kind or kind == "alignment" for kind in kinds)


def test_a_view_is_saved_in_each_format(page: Page, tmp_path: Path):
    look(page)
    page.click("#atlas button[data-layer='decoder.0.cross'][data-head='0']")
    for kind in ("png", "svg", "html", "json"):
        with page.expect_download() as download:
            page.click(f"button[data-export='{kind}']")
        assert download.value.suggested_filename.endswith(f".{kind}")
        file = tmp_path / f"saved.{kind}"
        download.value.save_as(file)
        content = file.read_bytes()
        match kind:
            case "png":
                assert Image.open(io.BytesIO(content)).size[0] > 200
            case "svg":
                assert content.decode().rstrip().endswith("</svg>") and "bread" in content.decode()
            case "json":
                assert json.loads(content)["panels"][0]["name"].startswith("decoder.0.cross")
            case "html":
                saved = page.context.new_page()
                saved.goto(file.as_uri())
                expect(saved.locator("#view-name")).to_contain_text("Decoder layer 1, cross-attention")
                saved.close()


def test_a_given_translation_is_looked_at(page: Page):
    page.click("#kinds-button")
    page.click("#tab-look")
    page.fill("#look-text", SENTENCE)
    page.fill("#look-target", "el pan es rojo")
    page.click("#look-go")
    expect(page.locator("#look-said")).to_contain_text("el pan es rojo")


# Compare and models


def test_two_models_side_by_side(page: Page, folders: list[Path]):
    page.click("#kinds-button")
    page.click("#tab-compare")
    page.fill("#compare-text", SENTENCE)
    page.select_option("#compare-to", "es")
    for side, folder in enumerate(folders[:2]):
        contender = page.locator(f".contender[data-side='{side}']")
        contender.locator("select").first.select_option(folder.name)
    for side, folder in enumerate(folders[:2]):
        expected = regard.load(folder).translate(SENTENCE, to="es").text
        words = page.locator(f".contender[data-side='{side}'] .said [data-index]")
        expect(words).to_have_text(expected.split())


def test_models_say_what_they_are(page: Page, folders: list[Path]):
    page.click("#tab-models")
    for folder in folders:
        expect(page.locator(f"#model-cards article[data-model='{folder.name}']")).to_be_visible()
    card = page.locator(f"#model-cards article[data-model='{folders[0].name}']")
    expect(card).to_contain_text("English")
    card.locator("summary").first.click()
    expect(card).to_contain_text("decoder.0.cross")


# On any screen


def test_a_phone_shows_all_of_it_without_scrolling_sideways(page: Page, served):
    page.set_viewport_size({"width": 360, "height": 740})
    page.select_option("#translate-to", "es")
    translate(page)
    for tab in TABS + OF_FILES:
        page.goto(f"{served.url}/#{tab}")
        expect(page.locator(f"#panel-{tab}")).to_be_visible()
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, tab


def test_it_is_dark_where_people_want_it_dark(page: Page):
    def lightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    page.emulate_media(color_scheme="light")
    light = lightness()
    page.emulate_media(color_scheme="dark")
    assert lightness() < light / 3
