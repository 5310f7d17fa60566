"""The Sound tab: a recording is dropped, heard and played along; the same on the offline page."""

import re

import pytest
from playwright.sync_api import expect

from regard.families.speech.manifest import utterances
from regard.families.speech.view import inspect_speech
from regard.look.inspection import GivenInput
from regard.look.save import save
from tiny_speech import save_recognizer, tiny_recognizer, write_wav

LOOKED = re.compile(r"“(.+)”, said at (\S+) s, looked most at (\S+) s \((\S+)%\)")


@pytest.fixture
def recording(tmp_path):
    (said,) = utterances(part="test", count=1, seed=1, digits=(2, 2), rate=8000)
    write_wav(tmp_path / "digits.wav", said.samples, 8000)
    return tmp_path / "digits.wav"


def check(view, recognizer, recording):
    """The page shows the recorded weights of the token that is pointed at or being said."""
    report, _ = inspect_speech(recognizer, GivenInput(recording))
    panel = next(each for each in reversed(report.panels) if each.kind == "cross")
    tokens, readout = view.locator("[data-part=said] button"), view.locator("[data-part=readout]")
    expect(tokens).to_have_count(len(panel.queries))
    for number in (1, 0):
        tokens.nth(number).hover()
        expect(readout).to_have_text(re.compile(f"^“{panel.queries.texts[number]}”"))
        found = LOOKED.search(readout.inner_text())
        weights = panel.weights[:, number].mean(axis=0)
        best = round(float(found[3]) / panel.keys.seconds)
        assert float(found[3]) == pytest.approx(best * panel.keys.seconds, abs=0.006)  # where that frame begins
        assert weights[best] == pytest.approx(weights.max(), abs=0.01)
        assert float(found[4]) == pytest.approx(100 * weights.max(), abs=0.8)
        assert float(found[2]) == pytest.approx(report.details["path"][number][1], abs=0.006)
    sound = view.locator("audio")
    expect(sound).to_have_js_property("readyState", 4)  # the browser can play it
    assert sound.evaluate("(each) => each.duration") == pytest.approx(report.details["seconds"], abs=0.02)
    label, start, end, _ = report.details["path"][-1]
    sound.evaluate("(each, time) => { each.currentTime = time; }", (start + end) / 2)
    expect(tokens.last).to_have_attribute("aria-pressed", "true")  # the token that is said there
    expect(readout).to_have_text(re.compile(f"^“{label}”"))
    view.locator("[data-part=layer]").select_option(index=0)  # the first layer of the encoder
    expect(view.locator("[data-part=head] option")).to_have_count(1 + report.panels[0].heads)


def test_a_recording_is_dropped_heard_and_played_along(open_lens, start_server, recording, tmp_path):
    recognizer = tiny_recognizer(decoder_depth=1)
    server = start_server([save_recognizer(tmp_path / "tiny", recognizer)])
    with open_lens(f"{server.url}/#sound") as page:
        expect(page.locator("#sound-content")).to_be_visible()
        page.set_input_files("#sound-file", recording)
        expect(page.locator("#sound-view")).to_have_attribute("data-state", "done")
        expect(page.locator("#sound-answer .caption")).to_have_text(recognizer.transcribe(recording)[0].text)
        check(page.locator("#sound-view"), recognizer, recording)
        expect(page.locator("#sound-examples button")).to_have_count(4)
        page.locator("#sound-examples button").first.click()
        expect(page.locator("#sound-examples button").first).to_have_attribute("aria-pressed", "true")
        (tmp_path / "text.wav").write_text("hello")
        page.set_input_files("#sound-file", tmp_path / "text.wav")
        expect(page.locator("#sound-error")).to_have_text(re.compile(r"text\.wav is no audio"))


def test_the_offline_page_plays_it_too(open_lens, recording, tmp_path):
    recognizer = tiny_recognizer(decoder_depth=1)
    out = save(inspect_speech(recognizer, GivenInput(recording, "digits")).report, tmp_path / "look.html")
    with open_lens(out.as_uri()) as page:
        check(page.locator("main"), recognizer, recording)
