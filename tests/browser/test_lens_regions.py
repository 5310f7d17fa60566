"""A text beside an image: words light up regions, and regions words."""

import re

import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.checkpoints import save_model
from regard.data.images.reading import png
from regard.data.synthetic.shapes import scenes
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.families.catalog import MODELS
from regard.families.vision_language.regions import FinderConfig

TEXT = "a large ring"
ANSWERS = ("yes", "no", "3", "0")
LOOKS = re.compile(r"“(.+)” looks most at “(.+)” \((\S+)%\)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with random weights that answers questions."""
    tokenizer = train_vocabulary([TEXT] * 2, VocabularyConfig(kind="word"), "enclosed")
    entry, finder = MODELS["vilbert"], FinderConfig(most=4)
    values = {
        **entry.presets["tiny"],
        "vocab": tokenizer.size,
        "head": "answer",
        "labels": len(ANSWERS),
        "label_names": ANSWERS,
    }
    place = tmp_path_factory.mktemp("regions") / "vilbert"

    def extras(folder):
        tokenizer.save(folder)
        finder.save(folder)

    model = entry.model(entry.config.parse(values))
    model.output.down.bias.data = torch.tensor([4.0, 3.0, 2.0, 1.0])  # the first answer is the most probable
    save_model(place, "vilbert", model, extras)
    return place


def test_words_light_up_regions_and_regions_words(open_lens, start_server, folder, tmp_path):
    scene = next(each for each in scenes(part="test", count=9, seed=1, size=96) if len(each.things) == 4)
    path = tmp_path / "scene.png"
    path.write_bytes(png(scene.pixels))
    recorded = regard.load(folder).attention(path, TEXT).weights
    with open_lens(f"{start_server([folder]).url}/#picture") as page:
        expect(page.locator("#picture-text-label")).to_have_text("Text or question")
        page.fill("#picture-text", TEXT)
        page.locator("#picture-text").blur()  # a later change would ask again
        page.set_input_files("#picture-file", path)
        view = page.locator("#picture-view")
        expect(view).to_have_attribute("data-state", "done")
        expect(page.locator("#picture-answer .key")).to_have_text(ANSWERS)  # most probable first, numbers too
        readout = view.locator("[data-part=readout]")
        for name, query, number in (
            ("links.1.words.cross", "ring", 3),
            ("links.1.regions.cross", "region 2", 2),
        ):
            title = f"Link 2, {name.split('.')[2]} cross-attention"
            view.locator(".map-row", has=page.get_by_role("heading", name=title)).locator("button").first.click()
            expect(view.locator("[data-part=name]")).to_contain_text(title)
            view.locator("[data-part=queries] button", has_text=re.compile(f"^{query}$")).hover()
            expect(readout).to_contain_text(f"“{query}” looks most at")
            looking, _, share = LOOKS.search(readout.inner_text()).groups()
            weights = recorded[name].mean(axis=0)[number]
            assert looking == query and float(share) == pytest.approx(100 * weights.max(), abs=1.0)
