"""One Chromium for all tests of a session, a fresh context for every page; any error in a console fails the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, FloatRect, Locator, Page, expect, sync_playwright
from scripts.screenshots import FLAGS, chromium_path

from tests.support.waiting import PATIENCE_S, until

# Playwright's own limit, 5 s, is a claim about the machine's speed.
expect.set_options(timeout=PATIENCE_S * 1000)

NewPage = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = chromium_path()
    assert chromium is not None, "there is no chromium on the PATH: scripts/test_tools installs it"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=PATIENCE_S * 1000)
        yield launched
        launched.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Return a function that opens a page in a context of its own; `expect` names console errors that the test causes."""
    errors: list[str] = []
    contexts = []

    def make(*, expect: tuple[str, ...] = (), **options: Any) -> Page:
        def record(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(each in message.text for each in expect):
                errors.append(message.text)

        contexts.append(browser.new_context(**options))
        page: Page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("console", record)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert not errors


def box_of(locator: Locator) -> FloatRect:
    """Return where an element is. A live update may replace the element while it is measured: then measure it again."""
    boxes: list[FloatRect | None] = []

    def measured() -> bool:
        boxes.append(locator.bounding_box())
        return boxes[-1] is not None

    until(measured)
    assert boxes[-1] is not None
    return boxes[-1]


def log_in(page: Page, url: str, token: str) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Now", exact=True).wait_for()
