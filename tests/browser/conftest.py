"""A page in the distribution's Chromium; the fixture records every error and every request of the page."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, expect, sync_playwright

from forked import fork_jobs

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120_000  # milliseconds, long enough for a busy machine
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")  # not longer: Playwright's event loop keeps running in this thread
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; install the package chromium to test the page")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def beeping_page(browser: Browser) -> Iterator[Page]:
    """A page of a browser whose microphone beeps, and may be listened to."""
    microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    other = browser.browser_type.launch(executable_path=CHROMIUM, args=[*QUIET, *microphone])
    yield other.new_page()
    other.close()


@pytest.fixture(scope="module", autouse=True)
def forked_jobs() -> Iterator[None]:
    """Trainings that the page asks for start at once."""
    with pytest.MonkeyPatch.context() as patch:
        fork_jobs(patch)
        yield


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield context
    context.close()


@pytest.fixture
def open_lens(context: BrowserContext) -> Callable[[str], AbstractContextManager[Page]]:
    """Open a page. At the end it must have logged no error and contacted no other host."""

    @contextmanager
    def opened(url: str) -> Iterator[Page]:
        page, troubles = context.new_page(), list[str]()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text) if _is_trouble(message) else None)
        page.on("response", lambda answer: troubles.append(answer.url) if _is_missing(answer) else None)
        page.on("request", lambda request: troubles.append(request.url) if not _is_own(request.url, url) else None)
        page.goto(url)
        yield page
        assert not troubles

    return opened


@pytest.fixture
def page(open_lens: Callable[[str], AbstractContextManager[Page]], served) -> Iterator[Page]:
    """The web page of the shared server."""
    with open_lens(served.url) as page:
        yield page


def _is_trouble(message: ConsoleMessage) -> bool:
    """Whether a console message is an error or warning, except the browser's note of a refused request."""
    return message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")


def _is_missing(answer: Response) -> bool:
    return answer.status >= 400 and "/api/" not in answer.url


def _is_own(asked: str, url: str) -> bool:
    return urlsplit(asked).netloc == urlsplit(url).netloc or asked.startswith(("data:", f"blob:{url}"))
