"""The Image tab with a captioner: the caption, and where each of its words looked; the same on the offline page."""

import re

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

import regard
from regard.families.captions.view import caption_report
from regard.look.save import save

LOOKED = re.compile(r"“(.+)” looked most at row (\d), column (\d) \((\S+)%\); gate β (\S+)")

PIXEL = """(canvas, [x, y]) => {
  const { width, height } = canvas;
  return [...canvas.getContext("2d").getImageData(x * width, y * height, 1, 1).data];
}"""


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return path


def check(view, captioner, picture):
    """The page shows the recorded weights, gates and draws of the word that is pointed at."""
    (found,) = captioner.caption(picture)
    seen = captioner.attention(picture, found.ids)
    soft, drawn = seen.weights.values()
    readout, words = view.locator("[data-part=readout]"), view.locator("[data-part=said] button")
    expect(words).to_have_count(len(found.ids))
    expect(view.locator("[data-part=stack] canvas")).to_have_count(2)  # soft above hard
    expect(view.locator("[data-part=strip] canvas")).to_have_count(2 * len(found.ids))
    for number in (2, 0):
        words.nth(number).hover()
        expect(readout).to_have_text(re.compile(f"^“{seen.tokens[number]}”.*β {seen.gates[number]:.2f}"))
        _, row, column, share, _ = LOOKED.search(readout.inner_text()).groups()
        best = soft[0, number]
        assert float(share) == pytest.approx(100 * best.max(), abs=0.8)
        assert best[8 * (int(row) - 1) + int(column) - 1] == pytest.approx(best.max(), abs=0.01)
    words.nth(1).click()  # held: pointing elsewhere changes nothing
    words.nth(3).hover()
    expect(words.nth(1)).to_have_attribute("aria-pressed", "true")
    assert drawn.shape == soft.shape
    # the draw of the second word is an orange dot in the lower image
    place = int(drawn[0, 1].argmax())
    lower, middle = view.locator("[data-part=stack] canvas").nth(1), [(place % 8 + 0.5) / 8, (place // 8 + 0.5) / 8]
    colour = lower.evaluate(PIXEL, middle)
    assert colour[:3] == [255, 122, 26]


def test_an_image_is_dropped_and_described_word_by_word(open_lens, start_server, make_captioner, picture):
    folder = make_captioner("hard")
    server, captioner = start_server([folder]), regard.load(folder)
    with open_lens(f"{server.url}/#picture") as page:
        expect(page.locator("#picture-content")).to_be_visible()
        page.set_input_files("#picture-file", picture)
        view = page.locator("#picture-view")
        expect(view).to_have_attribute("data-state", "done")
        expect(page.locator("#picture-answer .caption")).to_have_text(captioner.caption(picture)[0].text)
        check(view, captioner, picture)


def test_the_offline_page_shows_the_same(open_lens, make_captioner, picture, tmp_path):
    captioner = regard.load(make_captioner("hard"))
    (found,) = captioner.caption(picture)
    out = save(caption_report(captioner, picture, found, "noise"), tmp_path / "look.html")
    with open_lens(out.as_uri()) as page:
        check(page.locator("main"), captioner, picture)


def test_a_captioner_without_attention_only_speaks(open_lens, start_server, make_captioner, picture):
    server = start_server([make_captioner("blind")])
    with open_lens(f"{server.url}/#picture") as page:
        expect(page.locator("#picture-content")).to_be_visible()
        page.set_input_files("#picture-file", picture)
        expect(page.locator("#picture-answer .caption")).not_to_be_empty()
        expect(page.locator("#picture-view")).to_be_hidden()
