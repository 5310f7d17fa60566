"""The offline page is one file that loads nothing, runs only its own script, and contains the recorded weights."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from regard.look.page import quantise, render_page
from regard.look.panels import Panel, Tokens
from regard.look.report import AttentionReport
from regard.look.save import save

NASTY = [
    "</script><script>alert(1)</script>",
    "<!--",
    "{{style}}",
    "<img src=x onerror=alert(1)>",
    "&lt;",
    "\u2028",
    "'\"",
]


class Page(HTMLParser):
    """Elements with their attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.elements[-1]
            self.elements[-1] = (tag, attributes, text + data)

    def all(self, wanted: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for tag, attributes, text in self.elements if tag == wanted]


def make_report(words: list[str], heads: int = 3) -> AttentionReport:
    raw = np.random.default_rng(0).random((heads, len(words), len(words))) ** 6
    weights = raw / raw.sum(axis=-1, keepdims=True)
    panels = [Panel(f"decoder.{layer}.cross", "cross", weights, Tokens(words), Tokens(words)) for layer in range(2)]
    return AttentionReport(
        " ".join(words), "tiny", panels, Panel("alignment", "cross", weights[:1], Tokens(words), Tokens(words))
    )


def test_nothing_is_loaded_from_outside() -> None:
    text = render_page(make_report(["we", "are"]))
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    for tag, attributes, _ in Page(text).elements:
        assert not {"src", "href", "action", "srcset", "style", "onclick"} & set(attributes), tag


def test_only_the_scripts_and_styles_of_the_page_may_run() -> None:
    page = Page(render_page(make_report(NASTY)))
    policy = next(a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'") and "unsafe" not in policy
    running = [text for attributes, text in page.all("script") if "type" not in attributes]
    assert len(running) == len(page.all("style")) == 1
    for text, directive in ((running[0], "script-src"), (page.all("style")[0][1], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_words_are_data_and_never_markup() -> None:
    page = Page(render_page(make_report(NASTY)))
    assert not page.all("img")
    assert page.all("title")[0][1] == " ".join(NASTY)
    data = next(text for attributes, text in page.all("script") if attributes.get("id") == "report")
    assert [axis["texts"] for axis in json.loads(data)["axes"]] == [NASTY]


def test_weights_survive_packing() -> None:
    report = make_report([f"w{index}" for index in range(20)])
    page = Page(render_page(report))
    packed = {attributes["id"]: text for attributes, text in page.all("script") if "id" in attributes}
    described = json.loads(packed["report"])
    assert described["alignment"]["heads"] == 1
    assert [panel["name"] for panel in described["panels"]] == ["decoder.0.cross", "decoder.1.cross"]
    raw = np.frombuffer(zlib.decompress(base64.b64decode(packed["weights-1"])), np.uint8)
    weights = (raw.reshape(3, 20, 20) / 255.0) ** 2
    np.testing.assert_allclose(weights, report.panels[0].weights, atol=1 / 255)


def test_small_weights_stay_apart_from_nothing() -> None:
    assert quantise(np.array([0.0, 1 / 4096, 1.0])).tolist() == [0, 4, 255]


def test_a_large_model_makes_a_small_page(tmp_path: Path) -> None:
    words = [f"w{index}" for index in range(60)]
    weights = np.random.default_rng(0).dirichlet(np.full(60, 0.1), size=(12, 60))
    panels = [Panel(f"decoder.{layer}.cross", "cross", weights, Tokens(words), Tokens(words)) for layer in range(12)]
    assert save(AttentionReport("t", "m", panels), tmp_path / "page.html").stat().st_size < 1_000_000


def test_a_page_without_panels_is_still_a_page() -> None:
    assert Page(render_page(AttentionReport("", "m"))).all("title")[0][1] == "Attention"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_is_valid_javascript(tmp_path: Path) -> None:
    page = Page(render_page(make_report(["a"])))
    script = next(text for attributes, text in page.all("script") if "type" not in attributes)
    path = tmp_path / "page.js"
    path.write_text(script, encoding="utf-8")
    checked = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
