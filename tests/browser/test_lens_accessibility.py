"""axe-core on every tab, in light and in dark; and the first screen of each tab, which has an answer to look at."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tiny_speech import save_recognizer, tiny_recognizer

AXE = "axe-core@4.14.0"
WITH_ANSWERS = {  # tab: what shows that its first example is answered
    "translate": "#translation[data-state=done]",
    "documents": "#document-example [data-state=done]",
    "look": "#look-views[data-state=done]",
    "compare": "#compare-verdict:not(:empty)",
    "picture": "#picture-view[data-state=done]",
    "sound": "#sound-view[data-state=done]",
    "house": "#house-view[data-state=done]",
    "scene": "#scene-view[data-state=done]",
    "features": "#features-view[data-state=done]",
    "workbench": "#workbench-view[data-state=done]",
    "train": "#train-recipe label",
    "models": "#model-cards article",
}


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm."""
    if shutil.which("npm") is None:
        pytest.skip(f"no npm on this machine; install it to test the page with {AXE}")
    folder = tmp_path_factory.mktemp("axe")
    try:
        subprocess.run(["npm", "pack", AXE], cwd=folder, check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip(f"npm does not reach a registry with {AXE}")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


@pytest.fixture
def page(
    open_lens, start_server, folders, make_classifier, make_navigator, make_forecaster, make_dictionary, tmp_path: Path
):
    models = [
        *folders,
        make_classifier("vit"),
        save_recognizer(tmp_path / "recognizer", tiny_recognizer()),
        make_navigator("vlnbert"),
        make_forecaster(),
        make_dictionary("gpt"),
    ]
    with open_lens(start_server(models).url) as page:
        yield page


def open_tab(page: Page, tab: str) -> None:
    page.evaluate("tab => { location.hash = tab; }", tab)
    expect(page.locator(WITH_ANSWERS[tab]).first).to_be_visible()


def test_every_tab_opens_with_an_answer_in_words_and_axe_finds_nothing(page: Page, axe: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(axe)
    rules = {"label-content-name-mismatch": {"enabled": True}}  # an experiment of axe, and off without this
    for tab in WITH_ANSWERS:
        open_tab(page, tab)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate("rules => axe.run(document, { rules })", rules)["violations"]
            told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
            assert not told, (tab, scheme)
        buttons = page.locator("button:visible").all_inner_texts()
        assert not [words for words in buttons if "-7-00" in words or ".attention" in words or "data." in words], tab


def test_the_navigation_is_one_row_on_a_phone_too(page: Page) -> None:
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 740})
        tops = page.locator(".tabs > :is(a, button)").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
        assert len(set(tops)) == 1, width
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
