"""The Translate and Documents tabs: choice of languages, copying, links and files; nothing is computed twice."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

import regard
from regard.data.formats.pairs import Pair, read_pairs
from tiny_speech import save_recognizer, tiny_recognizer

PASSAGE = "We eat bread.She reads.\n\n  Lucas   sleeps. \n"


@pytest.fixture
def clipboard(context: BrowserContext, served) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=served.url)


@pytest.fixture
def there_and_back(open_lens, start_server, folders: list[Path], back_folder: Path) -> Iterator[Page]:
    """The page of a server with a model from English and one that claims to translate Spanish into English."""
    with open_lens(start_server([folders[0], back_folder]).url) as page:
        yield page


def translated(page: Page, text: str) -> None:
    page.fill("#translate-text", text)
    with page.expect_response("**/api/translate/stream") as answer:
        pass
    answer.value.finished()
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")


def copied(page: Page) -> str:
    page.click("#translate-copy")
    expect(page.locator("#translate-copy")).to_have_text("Copied")
    return page.evaluate("navigator.clipboard.readText()")


def test_the_copy_is_exactly_the_answer(page: Page, clipboard, served, translator_folder: Path):
    page.select_option("#translate-model", translator_folder.name)
    page.select_option("#translate-to", "es")
    translated(page, PASSAGE)
    asked = {"model": translator_folder.name, "text": PASSAGE, "to": "es", "n_best": 4}
    ways = served.client.post("/api/translate", json=asked).json()["translations"]
    first, second, third = (regard.load(translator_folder).translate(each, to="es").text
                            for each in ("We eat bread.", "She reads.", "Lucas   sleeps."))  # fmt: skip
    assert ways[0]["text"] == f"{first} {second}\n\n  {third} \n"
    assert copied(page) == ways[0]["text"] == page.locator("#translation").evaluate("place => place.textContent")
    page.wait_for_timeout(1700)  # until the button says Copy again
    page.locator("#n-best li").nth(1).locator("button").click()
    assert copied(page) == ways[1]["text"] != ways[0]["text"]


def test_a_text_is_asked_for_once_and_each_sentence_searched_once(page: Page, served, translator_folder, monkeypatch):
    translator, sentences, asked = served.registry.translator(translator_folder.name), [], []
    page.select_option("#translate-model", translator_folder.name)
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")  # the first example
    begin, decode = translator.begin, translator.decode
    monkeypatch.setattr(translator, "begin", lambda text, **more: sentences.append(text) or begin(text, **more))
    monkeypatch.setattr(translator, "decode", lambda some, *more: sentences.extend(some) or decode(some, *more))
    page.on("request", lambda request: asked.append(request.url) if "/api/translate" in request.url else None)
    text = [f"We eat {word}." for word in ("bread", "fish", "rice") * 7]
    translated(page, " ".join(text))
    assert page.locator("#beam-tree .node").count() > 1
    assert sorted(sentences) == sorted(text)
    assert [url.rpartition("/api/")[2] for url in asked] == ["translate/stream"]


def test_languages_come_first_and_the_server_picks_the_model(page: Page, folders: list[Path]):
    expect(page.locator("#translate-model")).to_have_value("")
    page.select_option("#translate-to", "pt")
    translated(page, "we eat bread")
    expect(page.locator("#translate-time")).to_contain_text(f"by {folders[0].name}")
    expect(page.locator("#translation")).to_have_attribute("lang", "pt")
    expect(page.locator("#translate-text")).to_have_attribute("lang", "en")
    page.select_option("#translate-model", "fixed")  # which translates into Spanish only
    assert page.locator("#translate-to option").all_inner_texts() == ["Spanish"]
    expect(page.locator("#translate-time")).to_contain_text("by fixed")
    swap = page.locator("#translate-swap")
    expect(swap).to_have_attribute("aria-disabled", "true")
    expect(swap).to_have_attribute("title", "No model here translates Spanish into English.")
    swap.click(force=True)  # Playwright refuses to click a disabled button without force
    expect(page.locator("#translate-error")).to_have_text("No model here translates Spanish into English.")


def test_detect_and_swap(there_and_back: Page):
    page = there_and_back
    expect(page.locator("#translate-from")).to_have_value("auto")  # two source languages can be detected
    page.select_option("#translate-to", "es")
    translated(page, "The children are reading a book in the garden.")
    expect(page.locator("#translate-time")).to_contain_text("English (detected)")
    said = page.locator("#translation").evaluate("place => place.textContent")
    page.click("#translate-swap")
    expect(page.locator("#translate-from")).to_have_value("es")
    expect(page.locator("#translate-to")).to_have_value("en")
    expect(page.locator("#translate-text")).to_have_value(said)
    expect(page.locator("#translate-time")).to_contain_text("by back")
    page.select_option("#translate-from", "auto")
    page.select_option("#translate-to", "en")
    text = "The children are reading a book in the garden."
    translated(page, text)  # the text is in English already
    expect(page.locator("#translation")).to_have_text(text)
    expect(page.locator("#translate-time")).to_contain_text("in English already")


def test_counted_and_cleared(page: Page):
    page.fill("#translate-text", "we 🍞")
    expect(page.locator("#translate-count")).to_have_text("4 / 10,000")
    page.click("#translate-clear")
    expect(page.locator("#translate-text")).to_have_value("")
    expect(page.locator("#translation")).to_have_attribute("data-state", "empty")
    page.fill("#translate-text", "x " * 5_001)
    expect(page.locator("#translate-count")).to_have_class("facts bad")


def test_a_link_brings_back_text_languages_and_model(page: Page, open_lens, served):
    page.select_option("#translate-model", "rnn")
    page.select_option("#translate-to", "pt")
    translated(page, "we eat & drink?\nbread #1")
    said = page.locator("#translation").inner_text()
    link = page.url
    assert link.startswith(f"{served.url}/#translate?")
    page.evaluate("sessionStorage.clear()")
    with open_lens(link) as other:
        expect(other.locator("#translate-text")).to_have_value("we eat & drink?\nbread #1")
        expect(other.locator("#translate-model")).to_have_value("rnn")
        expect(other.locator("#translate-to")).to_have_value("pt")
        expect(other.locator("#translation")).to_have_attribute("data-state", "done")
        assert other.locator("#translation").inner_text() == said
    with open_lens(f"{served.url}/#look?text=we+eat&model=rnn&to=pt") as other:
        expect(other.locator("#look-text")).to_have_value("we eat")
        expect(other.locator("#atlas button[data-drawn]").first).to_be_visible()


def test_html_stays_html(page: Page):
    page.check("#translate-html")
    translated(page, '<p class="a">we eat <b>bread</b></p>')
    said = page.locator("#translation").evaluate("place => place.textContent")
    assert said.startswith('<p class="a">') and said.endswith("</p>") and said.count("<b>") == said.count("</b>") == 1
    expect(page.locator("#findings")).to_be_hidden()


def test_a_model_is_loaded_in_plain_sight(context: BrowserContext, open_lens, start_server, folders: list[Path]):
    context.add_init_script("""
        window.states = [];
        new MutationObserver(() => {
            const place = document.getElementById("translation");
            if (place) states.push(place.dataset.state + " " + place.textContent);
        }).observe(document, { attributes: true, childList: true, subtree: true });
    """)
    with open_lens(start_server(folders[:1]).url) as page:  # the first example asks for the model
        expect(page.locator("#translation")).to_have_attribute("data-state", "done")
        assert any(each == f"loading Loading the model {folders[0].name}…" for each in page.evaluate("states"))


def test_words_that_the_model_does_not_know_are_marked(page: Page, served, monkeypatch):
    page.route("**/api/translate/stream", lambda route: route.fulfill(
        content_type="text/event-stream",
        body='data: {"done": true, "answer": {"model": "demo", "source": "my Zorp", "from": "en", "to": "es",'
        ' "detected": null, "milliseconds": 1, "source_words": ["my", "Zorp."], "source_tokens": [], "search": null,'
        ' "unknown": [{"word": "Zorp", "start": 3, "end": 7}], "unknown_at": [1], "memory": [],'
        ' "translations": [{"text": "mi Zorp", "score": -1, "tokens": [], "truncated": false,'
        ' "words": ["mi", "Zorp"], "alignment": [], "terms": [],'
        ' "attention": {"data": "////AA==", "shape": [2, 2]}}]}}\n\n',
    ))  # fmt: skip
    translated(page, "my Zorp")
    expect(page.locator("#source-words .unknown")).to_have_text("Zorp.")
    expect(page.locator("#translate-unknown")).to_contain_text("does not know Zorp. It is the small built-in one")


def test_a_document_is_translated_and_fetched(page: Page, tmp_path: Path):
    page.click("#tab-documents")
    page.select_option("#document-to", "es")
    text = "we eat bread.\n\n  She reads. \n"
    page.set_input_files("#document-file", {"name": "añejo.txt", "mimeType": "text/plain", "buffer": text.encode()})
    card = page.locator("#document-list li").first
    expect(card).to_have_attribute("data-state", "done")
    with page.expect_download() as download:
        card.locator("button").click()
    assert download.value.suggested_filename == "añejo.translated.txt"
    download.value.save_as(tmp_path / "done.txt")
    lines = (tmp_path / "done.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and not lines[1] and lines[2].startswith("  ") and lines[0] != "we eat bread."
    for name, content, words in (("a.pdf", b"x", ".po, .pot"), ("a.txt", b"", "empty"), ("a.xlf", b"<no", "XML|XLIFF")):
        page.set_input_files("#document-file", {"name": name, "mimeType": "text/plain", "buffer": content})
        card = page.locator("#document-list li").first
        expect(card).to_have_attribute("data-state", "error")
        assert any(word in card.inner_text() for word in words.split("|")), card.inner_text()


def test_compare_takes_two_different_models_and_marks_what_differs(page: Page, folders: list[Path]):
    page.click("#kinds-button")
    page.click("#tab-compare")
    selects = page.locator(".contender select")
    expect(selects.nth(0)).to_have_value(folders[0].name)
    expect(selects.nth(1)).not_to_have_value(folders[0].name)  # another one; some may have been trained here since
    selects.nth(1).select_option(folders[1].name)
    page.fill("#compare-text", "we are eating bread")
    expect(page.locator("#compare-verdict")).not_to_be_empty()
    said = [page.locator(f".contender[data-side='{side}'] .said [data-index]") for side in (0, 1)]
    kept = [
        each.evaluate_all("all => all.filter(e => !e.matches('.differs')).map(e => e.textContent)") for each in said
    ]
    assert kept[0] == kept[1]  # the unmarked words are common to both
    assert page.locator(".contender .differs").count() > 0
    selects.nth(0).select_option(folders[1].name)  # the sides swap their models
    expect(selects.nth(1)).to_have_value(folders[0].name)


def test_look_from_the_card_of_a_translator(page: Page, folders: list[Path]):
    page.click("#tab-models")
    page.get_by_role("button", name=f"Look into it: {folders[1].name}").click()
    expect(page.locator("#panel-look")).to_be_visible()
    expect(page.locator("#look-model")).to_have_value(folders[1].name)
    assert page.get_by_role("button", name="Look into it: fixed").count() == 0  # that model has no attention


def test_there_is_one_heading_and_the_tree_says_that_there_is_more(page: Page):
    assert page.locator("h1").all_inner_texts() == ["Regard"]
    page.set_viewport_size({"width": 390, "height": 844})
    translated(page, "we are eating bread")
    frame = page.locator("#tree-frame")
    expect(frame).to_have_class("tree-frame more-right")
    expect(page.locator("#tree-more")).to_be_visible()
    page.locator("#beam-tree").evaluate("tree => tree.scrollTo({ left: tree.scrollWidth, behavior: 'instant' })")
    expect(frame).to_have_class("tree-frame more-left")


def test_terms_are_marked_and_the_memory_is_shown(open_lens, start_server, translator_folder: Path, tmp_path: Path):
    memory = tmp_path / "memory.tsv"
    memory.write_text("we are eating bread now\testamos comiendo pan ahora\n", "utf-8")
    with open_lens(start_server([translator_folder], memories=[str(memory)]).url) as page:
        page.select_option("#translate-to", "es")
        page.click("#translate-terms summary")
        page.fill("#translate-glossary", "bread = tortilla")
        translated(page, "we are eating bread")
        expect(page.locator("#translation .term")).to_have_text(re.compile("tortilla", re.IGNORECASE))
        expect(page.locator("#translate-memory li")).to_contain_text("estamos comiendo pan ahora")
        expect(page.locator("#translate-memory del")).to_have_text("now")
        page.fill("#translate-glossary", "bread =")
        expect(page.locator("#translate-error")).to_contain_text("line 1: the target of the term is empty")


def test_a_pair_without_a_model_goes_through_a_third_language(
    open_lens, start_server, folders: list[Path], back_folder: Path
):
    with open_lens(start_server([folders[0], back_folder]).url) as page:
        page.select_option("#translate-from", "es")
        assert page.locator("#translate-to option").all_inner_texts() == ["English", "Portuguese"]
        page.select_option("#translate-to", "pt")
        translated(page, "we are eating bread")
        expect(page.locator("#translate-time")).to_contain_text("through English: “")
        expect(page.locator("#alignment-card")).to_be_hidden()


def test_doubtful_words_are_shaded_and_a_correction_is_kept_for_training(
    open_lens, start_server, translator_folder: Path
):
    server = start_server([translator_folder])
    known = regard.load(translator_folder).translate("we are eating bread", to="es")
    with open_lens(server.url) as page:
        page.select_option("#translate-to", "es")
        translated(page, "we are eating bread")
        expect(page.locator("#translation .doubtful")).to_have_count(sum(doubt >= 0.3 for doubt in known.doubts))
        expect(page.locator("#translate-time")).to_contain_text("quality ")
        page.click("#translate-correct summary")
        page.click("#correction button")
        expect(page.locator("#correction-status")).to_have_text("Change the translation first.")
        page.fill("#correction-text", "estamos comiendo pan")
        page.click("#correction button")
        expect(page.locator("#correction-status")).to_have_text("Kept for training.")
    kept = list(read_pairs(server.app.state.jobs.runs / "suggestions.jsonl", "en", "es"))
    assert kept == [Pair("we are eating bread", "estamos comiendo pan")]


def test_the_history_stays_in_the_browser_and_brings_texts_back(page: Page, served):
    for text in ("we are eating now", "they read today"):  # examples are not kept
        translated(page, text)
        expect(page.locator("#history-list button").first).to_contain_text(text)
    page.goto(served.url)  # another visit
    page.click("#translate-history summary")
    page.locator("#history-list button").filter(has_text="we are eating now").click()
    expect(page.locator("#translate-text")).to_have_value("we are eating now")
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")
    page.click("#history-forget")
    expect(page.locator("#translate-history")).to_be_hidden()
    assert page.evaluate("localStorage.getItem('regard-history')") == "[]"


def test_speaking_instead_of_typing(beeping_page: Page, start_server, translator_folder: Path, tmp_path: Path):
    server, page = (
        start_server([translator_folder, save_recognizer(tmp_path / "ears", tiny_recognizer())]),
        beeping_page,
    )
    page.goto(server.url)
    page.click("#translate-speak")
    expect(page.locator("#translate-speak")).to_have_text("Stop")
    page.wait_for_timeout(1500)
    with page.expect_response("**/v1/audio/transcriptions") as answer:
        page.click("#translate-speak")
    assert answer.value.ok
    expect(page.locator("#translate-speak")).to_have_text("Speak")
    expect(page.locator("#translate-text")).to_have_value(re.compile(re.escape(answer.value.json()["text"].strip())))


def test_what_strangers_store_is_text_and_never_markup(
    open_lens, start_server, translator_folder: Path, tmp_path: Path
):
    """A model's name, a correction, a memory and a glossary that would run a script if the page took them as HTML."""
    attack = "<img src=x onerror=document.title='stolen'>"
    folder = shutil.copytree(translator_folder, tmp_path / "<img src=x onerror=alert(1)>")
    memory = tmp_path / "memory.tsv"
    memory.write_text(f"we are eating bread now\t{attack}\n", "utf-8")
    server = start_server([folder], memories=[str(memory)])
    correction = {"q": "we are eating bread", "s": attack, "source": "en", "target": "es"}
    assert server.client.post("/suggest", json=correction).json() == {"success": True}
    with open_lens(server.url) as page:
        page.select_option("#translate-to", "es")
        page.click("#translate-terms summary")
        page.fill("#translate-glossary", f"{attack} =")  # the refusal quotes it
        page.fill("#translate-text", "we are eating bread today")
        expect(page.locator("#translate-error")).to_contain_text("document.title")
        page.fill("#translate-glossary", "")
        translated(page, "we are eating bread now and today")
        expect(page.locator("#translate-memory")).to_contain_text("onerror")
        for tab in ("models", "look", "compare", "train"):
            page.evaluate(f"location.hash = '#{tab}'")
            page.wait_for_timeout(300)
        assert page.locator("img[src=x]").count() == 0
        assert page.title() != "stolen"
