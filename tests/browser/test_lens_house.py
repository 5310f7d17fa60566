"""The House tab, and the offline page of a house."""

import math
import re

import pytest
from playwright.sync_api import expect

import regard
from regard.families.navigation.view import navigation_report
from regard.look.save import save

LOOKS = re.compile(r"“(.+)” looks most at step (\d+) \((\S+)%\)")


def check(view, navigator, answer):
    """A word that is pointed at names the step that it looks at most in the last layer of words."""
    seen = navigator.attention(answer.instruction, answer.house, answer.best.numbers, answer.heading)
    weights = seen.weights["links.1.words.cross"].mean(axis=0)[:, 1:]
    expect(view.locator("[data-part=words] span")).to_have_count(len(seen.pieces))
    for word in (1, 3):
        view.locator("[data-part=words] span").nth(word).hover()
        expect(view.locator("[data-part=readout]")).to_have_text(re.compile(f"“{re.escape(seen.pieces[word])}” looks"))
        _, step, share = LOOKS.search(view.locator("[data-part=readout]").inner_text()).groups()
        assert float(share) == pytest.approx(100 * weights[word].max(), abs=0.8)
        assert weights[word, int(step)] == pytest.approx(weights[word].max(), abs=0.01)
    view.locator("[data-part=canvas]").focus()
    view.page.keyboard.press("ArrowRight")
    expect(view.locator("[data-part=readout]")).to_have_text(re.compile("Step 0 is looked at most by “"))
    lit = view.locator("[data-part=words] span").evaluate_all("all => all.filter(each => each.style.background).length")
    assert lit == len(seen.pieces)
    expect(view.locator("[data-part=paths] li").first).to_have_text(re.compile(r"\d% \d+\.\d m, \d viewpoints"))


def test_an_instruction_is_followed_through_a_built_in_house(open_lens, start_server, make_navigator):
    server, navigator = start_server([make_navigator("vlnbert")]), regard.load(make_navigator("vlnbert"))
    with open_lens(f"{server.url}/#house") as page:
        expect(page.locator("#house-content")).to_be_visible()
        view = page.locator("#house-view")
        expect(view).to_have_attribute("data-state", "done")
        start, heading = page.locator("#house-start").input_value(), float(page.locator("#house-heading").input_value())
        house = f"builtin:houses#{page.locator('#house-examples button').first.get_attribute('data-house')}"
        (answer,) = navigator.navigate(
            page.locator("#house-text").input_value(), house, start, heading=math.radians(heading)
        )
        check(view, navigator, answer)
        view.locator("[data-part=paths] li").nth(1).click()
        expect(view.locator("[data-part=paths] li").nth(1)).to_have_attribute("aria-current", "true")
        box = view.locator("[data-part=canvas]").bounding_box()
        view.locator("[data-part=canvas]").click(position={"x": box["width"] - 40, "y": 40})
        expect(page.locator("#house-start")).not_to_have_value(start)
        page.fill("#house-text", "turn left " * 100)
        page.click("#house-go")
        expect(page.locator("#house-error")).to_have_text(re.compile("reads at most 128"))


def test_the_tab_refuses_other_files_and_says_when_no_model_finds_paths(
    page, served, open_lens, start_server, make_navigator, tmp_path
):
    page.goto(f"{served.url}/#house")
    expect(page.locator("#house-none")).to_be_visible()
    (tmp_path / "notes.json").write_text("{}")
    with open_lens(f"{start_server([make_navigator('vlnbert')]).url}/#house") as other:
        other.set_input_files("#house-file", tmp_path / "notes.json")
        expect(other.locator("#house-error")).to_have_text("notes.json is no connectivity file.")


def test_the_offline_page_needs_no_server(context, make_navigator, tmp_path):
    navigator = regard.load(make_navigator("vlnbert"))
    (answer,) = navigator.navigate("Turn left and walk 5 metres.", "builtin:houses#0", "house-1-000-003")
    save(navigation_report(navigator, answer), tmp_path / "look.html")
    page, troubles = context.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto(f"file://{tmp_path / 'look.html'}")
    check(page.locator("body"), navigator, answer)
    assert not troubles


def test_what_scrolls_under_a_resting_pointer_does_not_replace_the_choice_of_a_key(context, make_navigator, tmp_path):
    navigator = regard.load(make_navigator("vlnbert"))
    (answer,) = navigator.navigate("Turn left and walk 5 metres.", "builtin:houses#0", "house-1-000-003")
    save(navigation_report(navigator, answer), tmp_path / "look.html")
    page = context.new_page()
    page.goto(f"file://{tmp_path / 'look.html'}")
    page.evaluate("document.body.style.paddingBottom = '2000px'")
    words, readout = page.locator("[data-part=words] span"), page.locator("[data-part=readout]")
    words.evaluate_all("all => all.forEach(each => Object.assign(each.style, { display: 'block', height: '60px' }))")
    pieces = navigator.attention(answer.instruction, answer.house, answer.best.numbers, answer.heading).pieces
    words.nth(1).hover()
    page.locator("[data-part=canvas]").focus()
    page.keyboard.press("ArrowRight")
    chosen = re.compile("^Step 0 ")
    expect(readout).to_have_text(chosen)
    page.evaluate("scrollBy({ top: 60, behavior: 'instant' })")
    page.evaluate("() => new Promise((done) => setTimeout(done, 500))")
    expect(readout).to_have_text(chosen)
    words.nth(4).hover()
    expect(readout).to_have_text(re.compile(f"^“{re.escape(pieces[4])}” looks"))
