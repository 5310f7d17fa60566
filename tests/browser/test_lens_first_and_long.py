"""The page without a model, with an API key, and with a very long text."""

import os
import random
import string
import time
from pathlib import Path

import pytest
import torch
from playwright.sync_api import BrowserContext, expect

from regard.checkpoints import save_model
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.families.translation.transformer import Transformer, TransformerConfig

LETTERS = string.ascii_lowercase[:20]
WORDS = [first + second for first in LETTERS for second in LETTERS]
WIDTH = 768 if "REGARD_FAULT_COUNT" in os.environ else 96


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of twelve layers with twelve heads each."""
    pairs = [Pair(" ".join(WORDS), "a b c")] * 2
    kind = TokenizerConfig.parse({"kind": "word", "size": 500, "min_frequency": 1})
    tokenizer = train_pair_tokenizer(pairs, kind, "en", ["es"])
    torch.manual_seed(1)
    config = TransformerConfig(
        source_vocab=tokenizer.source.size, target_vocab=tokenizer.target.size, width=WIDTH, heads=12,
        encoder_depth=12, decoder_depth=12, ffn_width=4 * WIDTH,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("large") / "large"
    save_model(folder, "transformer", Transformer(config), tokenizer.save)
    return folder


def test_a_thousand_tokens_by_twelve_layers_by_twelve_heads(open_lens, start_server, large_model: Path):
    served = start_server([large_model], characters=20_000)
    served.registry.translator("large")
    draw = random.Random(1)
    text = " ".join(draw.choice(WORDS) for _ in range(1023))  # and the end token
    with open_lens(f"{served.url}/#look") as page:
        page.fill("#look-text", text)
        page.fill("#look-target", "a b c")
        began = time.monotonic()
        page.click("#look-go")
        expect(page.locator("#look-views")).to_have_attribute("data-state", "done")
        page.locator("#look-threads .keys-side [data-index='0']").first.wait_for()
        words = time.monotonic() - began
        page.locator("#atlas button[data-layer='encoder.0.attention'][data-drawn]").first.wait_for(timeout=120_000)
        heads = time.monotonic() - began
        print(f"\n1,024 x 12 x 12, {WIDTH} wide: words after {words:.2f} s, first heads after {heads:.2f} s")
        page.locator("#atlas .layer[data-layer='encoder.11.attention']").scroll_into_view_if_needed()
        last = "#atlas button[data-layer='encoder.11.attention'][data-head='11']"
        page.locator(f"{last}[data-drawn]").wait_for(timeout=240_000)
        page.click(last)
        expect(page.locator("#view-name")).to_contain_text("Encoder layer 12, head 12", timeout=60_000)
        page.locator("#look-matrix .zoom button").first.click()
        assert page.locator("#atlas button[data-head]").count() == 36 * 12 + 1


def test_the_first_visit_trains_the_demo(open_lens, start_server, tmp_path: Path, monkeypatch):
    served = start_server([])
    jobs = served.app.state.jobs
    asked = []

    def small_demo():
        asked.append("demo")
        pairs = "".join(f"{word} {word}\t{word}\n" for word in WORDS[:60])
        (tmp_path / "demo.tsv").write_text(pairs, encoding="utf-8")
        return jobs.start(
            [tmp_path / "demo.tsv"], name="first", recipe="pairs-transformer", source="en", target="es", steps=12
        )

    monkeypatch.setattr(jobs, "start_demo", small_demo)
    with open_lens(served.url) as page:
        expect(page.locator("#greeting")).to_be_visible()
        expect(page.locator("#panel-translate")).to_be_visible(timeout=120_000)
        expect(page.locator("#translate-model")).to_have_value("first", timeout=60_000)
    assert asked == ["demo"]


def test_a_key_is_asked_for_once(open_lens, locked):
    with open_lens(locked.url) as page:
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key-input", "sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.select_option("#translate-to", "es")
        page.fill("#translate-text", "we eat")
        expect(page.locator("#translation")).to_have_attribute("data-state", "done")


def test_a_server_that_has_gone_is_told_in_words(context: BrowserContext, start_server, folders: list[Path]):
    served = start_server(folders[:1])
    page = context.new_page()
    page.goto(served.url)
    expect(page.locator("#translate-from")).to_have_value("en")
    context.set_offline(True)
    page.fill("#translate-text", "we eat")
    expect(page.locator("#translate-error")).to_contain_text("server")
