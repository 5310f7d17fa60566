"""Training a translator from the page."""

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

import regard
from regard.data.synthetic.phrasebook import phrases


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pairs = phrases("es", part="train", count=120, seed=5, max_words=6)
    file = tmp_path / "mine.tsv"
    file.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
    return file


def empty_form(page: Page) -> None:
    page.click("#tab-train")
    expect(page.locator("#job:visible, #train-form:visible")).to_have_count(1)
    if page.locator("#job-forget").is_visible():  # left by another test
        page.click("#job-forget")


def fill(page: Page, name: str, *files: Path, steps: int = 30) -> None:
    empty_form(page)
    page.select_option("#train-base", "")
    page.fill("#train-source", "en")
    page.fill("#train-target", "es")
    fill_form(page, name, *files, steps=steps)


def fill_form(page: Page, name: str, *files: Path, steps: int) -> None:
    page.set_input_files("#train-files", [str(file) for file in files])
    page.fill("#train-name", name)
    page.locator("#panel-train details summary").click()
    page.fill("#train-steps", str(steps))
    page.click("#train-start")


def test_from_a_table_to_a_translator(page: Page, table: Path):
    fill(page, "mine", table)
    job = page.locator("#job")
    expect(job).to_be_visible()
    page.reload()  # the state of a job is on the server
    expect(job).to_have_attribute("data-state", "finished", timeout=120_000)
    expect(job.locator("figure")).to_have_count(2)  # loss and BLEU
    assert job.locator("tbody tr").count() >= 5  # samples
    held_out = job.locator("tbody tr td:first-child").all_inner_texts()
    page.click("#job-use")
    expect(page.locator("#panel-translate")).to_be_visible()
    expect(page.locator("#translate-model")).to_have_value("mine")
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")
    assert page.locator("#translate-text").input_value() in held_out  # not one of the demo's sentences
    page.click("#tab-models")
    expect(page.locator("#model-cards article[data-model='mine']")).to_be_visible()


def test_a_chosen_model_is_improved_with_a_dropped_file(page: Page, table: Path):
    empty_form(page)
    base = page.locator("#train-base")
    chosen = base.locator("option").nth(1).get_attribute("value")
    page.fill("#train-source", "de")
    base.select_option(chosen)
    expect(page.locator("#train-recipe")).to_be_hidden()
    expect(page.locator("#train-source")).to_have_value("en")  # the languages are the model's
    fill_form(page, "better", table, steps=4)
    job = page.locator("#job")
    expect(job).to_contain_text("adapt")
    expect(job).to_have_attribute("data-state", "finished", timeout=120_000)
    expect(job).to_contain_text("on your held-out pairs")  # what it was before, and is now
    compared = page.locator("#improvement [data-set='held_out']")
    expect(compared.locator("table").first).to_contain_text("better (new)")
    expect(compared).to_contain_text("p = ")
    expect(page.locator("#job-use")).to_be_hidden()
    page.click("#improvement-keep")
    expect(page.locator("#translate-model")).to_have_value(chosen)
    assert first_model(page) == chosen
    page.click("#tab-train")
    page.click("#improvement-use")
    expect(page.locator("#translate-model")).to_have_value("better")
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")
    assert first_model(page) == "better"  # clients that name no model have the new one
    page.click("#tab-train")
    page.click("#improvement-keep")
    expect(page.locator("#translate-model")).to_have_value(chosen)
    assert first_model(page) == chosen


def first_model(page: Page) -> str:
    return page.request.get(f"{page.url.partition('#')[0]}api/models").json()["default"]


def test_a_stopped_training_is_no_dead_end(page: Page, table: Path, tmp_path: Path):
    fill(page, "longer", table, steps=100_000)
    job, run = page.locator("#job"), page.locator("#run-list [data-run='longer']")
    expect(job).to_have_attribute("data-state", "running", timeout=60_000)
    expect(run.locator("button")).to_have_count(0)  # an active run can be neither renamed nor deleted
    page.locator(".job-left", has_text=re.compile(r"step [1-9]")).wait_for(timeout=60_000)
    page.click("#job-stop")
    expect(job).to_have_attribute("data-state", "stopped", timeout=60_000)
    page.click("#job-forget")
    expect(page.locator("#train-form")).to_be_visible()

    run.locator("[data-order='resume']").click()  # from the list, although a new run could be started
    expect(job).to_have_attribute("data-state", "running", timeout=60_000)
    page.click("#job-stop")
    expect(job).to_have_attribute("data-state", "stopped", timeout=60_000)
    expect(page.locator("#job-use")).to_have_text("Use what is there")
    page.click("#job-use")
    expect(page.locator("#translate-model")).to_have_value("longer")
    expect(page.locator("#translation")).to_have_attribute("data-state", "done")

    page.click("#tab-train")
    run.locator("[data-order='rename']").click()
    page.fill("#ask-input", "shorter")
    page.click("#ask-yes")
    run = page.locator("#run-list [data-run='shorter']")
    with page.expect_download() as download:
        run.locator("[data-order='download']").click()
    assert download.value.suggested_filename == "shorter.zip"
    download.value.save_as(tmp_path / "shorter.zip")
    shutil.unpack_archive(tmp_path / "shorter.zip", tmp_path)
    assert regard.load(tmp_path / "shorter").translate("we eat bread", to="es").target_words

    run.locator("[data-order='delete']").click()
    page.click("#ask-dialog button:not(#ask-yes)")
    expect(run).to_be_visible()  # deleting needs a confirmation
    run.locator("[data-order='delete']").click()
    page.click("#ask-yes")
    expect(run).to_have_count(0)
    page.click("#tab-models")
    expect(page.locator("#model-cards article[data-model='shorter']")).to_have_count(0)


def test_an_axis_without_data_has_no_numbers(page: Page):
    page.evaluate("""async () => {
        const { drawChart } = await import("/lens/chart.js");
        document.body.append(Object.assign(document.createElement("div"), { id: "empty-chart" }));
        drawChart(document.getElementById("empty-chart"), { points: [], title: "Loss", unit: "loss", lastStep: 100 });
    }""")
    assert page.locator("#empty-chart text").all_text_contents() == [
        "0",
        "50",
        "100",
        "step",
        "loss",
        "nothing measured yet",
    ]


def test_a_wrong_file_is_explained(page: Page, tmp_path: Path):
    wrong = tmp_path / "picture.tsv"
    wrong.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)
    fill(page, "wrong", wrong)
    expect(page.locator("#files-error")).to_contain_text(re.compile("UTF-8|binary|pairs"))


def test_a_quick_reader_does_not_outrun_the_recipes(page: Page, tmp_path: Path):
    """If the form is sent before the list of recipes arrived, or after the list failed to load, the page loads it
    again."""
    asked = []

    def late(route: Route) -> None:
        asked.append(route)
        page.wait_for_timeout(1000)
        route.abort() if len(asked) == 1 else route.continue_()

    page.route("**/api/recipes", late)
    wrong = tmp_path / "picture.tsv"
    wrong.write_bytes(b"\x89PNG\r\n\x1a\n")
    fill(page, "quick", wrong)
    expect(page.locator("#files-error")).to_contain_text(re.compile("UTF-8|binary|pairs"))
    assert len(asked) == 2
    expect(page.locator("#train-error")).to_be_hidden()  # the first failure is no longer shown


def test_the_form_waits_for_news_of_the_job(page: Page):
    """The form appears only after the page knows whether there is a job; otherwise a job could replace a filled-in
    form."""
    asked = list[Route]()
    page.route("**/api/train", lambda route: asked.append(route))
    page.reload()
    page.click("#tab-train")
    expect(page.locator("#tab-train")).to_have_attribute("aria-current", "page")
    while not asked:
        page.wait_for_timeout(50)
    page.wait_for_timeout(500)  # a form that does not wait would appear
    shown = page.locator("#job:visible, #train-form:visible")
    expect(shown).to_have_count(0)
    for route in asked:
        route.continue_()
    expect(shown).to_have_count(1)


def test_without_news_of_the_job_the_form_is_there(page: Page):
    page.route("**/api/train", lambda route: route.abort())
    page.reload()
    page.click("#tab-train")
    expect(page.locator("#train-form")).to_be_visible()
    expect(page.locator("#job")).to_be_hidden()


def test_old_news_of_the_job_is_no_news(page: Page, table: Path):
    """The page polls the job every second. A reply that was sent before the job was stopped must not show it as
    running."""
    asked = list[Route]()

    def hold_the_first(route: Route) -> None:
        if route.request.method == "GET" and not asked:
            asked.append(route)
        else:
            route.continue_()

    fill(page, "early", table, steps=100_000)
    job = page.locator("#job")
    expect(job).to_have_attribute("data-state", "running", timeout=60_000)
    page.route("**/api/train", hold_the_first)
    while not asked:
        page.wait_for_timeout(50)
    old = page.request.get(f"{page.url.partition('#')[0]}api/train").json()
    page.click("#job-stop")
    expect(job).to_have_attribute("data-state", "stopped", timeout=60_000)
    with page.expect_response(lambda answer: answer.request == asked[0].request):
        asked[0].fulfill(json=old)
    page.wait_for_timeout(200)  # less than the polling interval
    assert job.get_attribute("data-state") == "stopped"


def test_a_server_that_does_not_train_has_no_tab_for_it(context, open_lens, served) -> None:
    models = context.request.get(f"{served.url}/api/models").json() | {"training": False}
    context.route("**/api/models", lambda route: route.fulfill(json=models))
    with open_lens(f"{served.url}/#train") as page:
        expect(page.get_by_role("link", name="Translate")).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("link", name="Train", exact=True)).to_have_count(0)
