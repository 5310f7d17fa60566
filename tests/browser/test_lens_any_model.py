"""The Look tab with models that do not translate: a BERT and a GPT."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import regard

TEXT = "we are [MASK] the [MASK] ."
PROMPT = "the fox saw"


@pytest.fixture
def lens(
    start_server: Callable, open_lens: Callable[[str], AbstractContextManager[Page]], make_encoder, make_writer
) -> Iterator[Page]:
    """The page of a server without any translator."""
    folders = [make_encoder("masked"), make_encoder("none"), make_writer("gpt"), make_writer("t5")]
    with open_lens(f"{start_server(folders).url}/#look") as page:
        yield page


def look(page: Page, model: str, text: str) -> None:
    page.select_option("#look-model", model)
    page.fill("#look-text", text)
    page.click("#look-go")
    expect(page.locator("#look-views")).to_have_attribute("data-state", "done")
    expect(page.locator("#atlas button[data-drawn]").first).to_be_visible()
    expect(page.locator("#atlas button:not([data-drawn])")).to_have_count(0)


def odds(page: Page) -> list[str]:
    return page.locator("#odds .token").all_text_contents()


def test_hidden_words_are_guessed_and_every_head_is_drawn(lens: Page, make_encoder):
    lens.fill("#look-pair", "she reads")
    look(lens, "masked", TEXT)
    guesses = [
        [choice.token for choice in told.choices]
        for told in regard.load(make_encoder("masked")).predict_tokens(TEXT, "she reads", top=12)
    ]
    expect(lens.locator("#predictions-text .hidden-word")).to_have_count(2)
    assert odds(lens) == guesses[0]
    lens.click("#predictions-forward")
    assert odds(lens) == guesses[1]
    expect(lens.locator("#atlas button[data-head]")).to_have_count(4)
    lens.click("#atlas button[data-layer='encoder.1.attention'][data-head='1']")
    expect(lens.locator("#view-kind")).to_have_text("self-attention")
    lens.locator("#look-threads .queries-side [data-index='2']").hover()
    expect(lens.locator("#look-readout")).to_contain_text("looks at")
    expect(lens.locator("#scores li")).to_have_count(12)


def test_a_word_is_hidden_by_a_button(lens: Page):
    look(lens, "masked", "we are eating bread")
    expect(lens.locator("#predictions")).to_be_hidden()
    lens.locator("#look-text").evaluate("box => box.setSelectionRange(8, 8)")
    lens.click("#look-hide")
    expect(lens.locator("#look-text")).to_have_value("we are [MASK] bread")
    expect(lens.locator("#odds li").first).to_be_visible()


def test_an_encoder_that_guesses_nothing_shows_its_heads_alone(lens: Page):
    look(lens, "none", "we are [MASK] bread")
    expect(lens.locator("#predictions")).to_be_hidden()
    expect(lens.locator("#look-hide")).to_be_hidden()
    expect(lens.locator("#look-writing")).to_be_hidden()


def write(page: Page) -> None:
    page.select_option("#look-model", "gpt-writer")
    page.fill("#look-tokens", "9")
    page.fill("#look-seed", "3")
    look(page, "gpt-writer", PROMPT)


def test_a_text_is_written_and_stepped_through(lens: Page, gpt_folder: Path):
    write(lens)
    expect(lens.locator("#predictions")).to_have_attribute("data-state", "done")
    writer = regard.load(gpt_folder)
    answer = writer.generate(PROMPT, max_tokens=9, temperature=0.8, top_p=1.0, seed=3)
    told = [each for each in writer.predict_tokens(answer.prompt_ids, answer.ids, top=12) if each.generated]
    expect(lens.locator("#predictions-text .written")).to_have_count(len(answer.ids) + (answer.reason == "stop"))
    for each in told:  # in order, from the first generated token
        assert odds(lens)[:12] == [choice.token for choice in each.choices]
        expect(lens.locator("#odds [data-came] .token")).to_have_text(each.actual.token)
        row = lens.locator("#look-threads .queries-side .on")
        expect(row).to_have_attribute("data-index", str(each.place))  # with the attention of its place
        lens.click("#predictions-forward")
    lens.click("#predictions-first")
    first = odds(lens)
    lens.locator("#predictions-text [data-index='1']").focus()
    lens.keyboard.press("ArrowRight")
    expect(lens.locator("#predictions-text [data-index='2']")).to_be_focused()
    assert odds(lens) != first


def test_temperature_and_top_p_reshape_the_distribution(lens: Page):
    write(lens)
    text = lens.locator("#predictions-text").inner_text()
    own = lens.locator("#odds .share").all_text_contents()
    lens.locator("#look-temperature").fill("0")
    expect(lens.locator("#odds .drawn-share").first).to_have_text("drawn 100%")
    expect(lens.locator("#predictions-readout")).to_contain_text("always the best")
    lens.locator("#look-temperature").fill("1")
    lens.locator("#look-top-p").fill("0.1")
    expect(lens.locator("#odds .drawn-share").nth(11)).to_have_text("never drawn")
    assert lens.locator("#odds .share").all_text_contents() == own  # the model's own probabilities do not change
    assert lens.locator("#predictions-text").inner_text() == text


def test_a_t5_answers(lens: Page):
    look(lens, "t5-writer", PROMPT)
    kinds = lens.locator("#kinds button").evaluate_all("all => all.map(each => each.dataset.kind)")
    assert kinds == ["all", "self", "causal", "cross"]
    expect(lens.locator("#odds li").first).to_be_visible()


def test_what_is_wrong_is_said_in_words(lens: Page):
    lens.select_option("#look-model", "gpt-writer")
    lens.fill("#look-text", "fox " * 99)
    lens.click("#look-go")
    expect(lens.locator("#look-error")).to_contain_text("this model reads 64")
    lens.click("#tab-translate")
    expect(lens.locator("#page-error")).to_contain_text("No model here translates")
    lens.click("#kinds-button")
    lens.click("#tab-look")
    expect(lens.locator("#page-error")).to_be_hidden()


def test_a_card_of_a_model_leads_to_looking(lens: Page):
    lens.click("#tab-models")
    lens.click("article[data-model='gpt-writer'] button")
    expect(lens.locator("#panel-look")).to_be_visible()
    expect(lens.locator("#look-model")).to_have_value("gpt-writer")
    expect(lens.locator("#look-writing")).to_be_visible()


def test_a_phone_in_the_dark_shows_all_of_it(lens: Page):
    lens.emulate_media(color_scheme="dark")
    lens.set_viewport_size({"width": 360, "height": 740})
    write(lens)
    assert lens.evaluate("document.scrollingElement.scrollWidth") <= 360


def test_the_saved_page_says_what_was_predicted(lens: Page, tmp_path: Path):
    write(lens)
    lens.select_option("#export-scope", "all")
    for kind in ("json", "html"):
        with lens.expect_download() as download:
            lens.click(f"button[data-export='{kind}']")
        download.value.save_as(tmp_path / f"saved.{kind}")
    told = [each for each in json.loads((tmp_path / "saved.json").read_text("utf-8"))["predictions"] if each["written"]]
    page = lens.context.new_page()
    troubles = list[str]()
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto((tmp_path / "saved.html").as_uri())
    expect(page.locator("#predictions-text .written")).to_have_count(len(told))
    expect(page.locator("#odds [data-came] .token")).to_have_text(told[0]["came"]["token"])
    page.locator("#predictions-text .written").nth(1).focus()
    expect(page.locator("#odds [data-came] .token")).to_have_text(told[1]["came"]["token"])
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#predictions-readout")).to_contain_text(re.compile(rf"number {told[0]['rank']} of"))
    assert not troubles
    page.close()
