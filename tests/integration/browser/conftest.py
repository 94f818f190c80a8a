"""One Chromium for all of it, a fresh context for every test; whatever its console complains about fails the test."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from scripts.screenshots import FLAGS

from tests.support.waiting import PATIENCE_S

# Playwright's own limit, 5 s, is a claim about the machine's speed.
expect.set_options(timeout=PATIENCE_S * 1000)

Visitors = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium is not None, "there is no chromium on the PATH: scripts/test_tools installs it"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def visitors(browser: Browser) -> Iterator[Visitors]:
    """Makes visitors, each with a browser context of their own; `expect` names complaints that belong to the test."""
    complaints: list[str] = []
    contexts = []

    def make(*, expect: tuple[str, ...] = (), **options: Any) -> Page:
        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(each in message.text for each in expect):
                complaints.append(message.text)

        contexts.append(browser.new_context(**options))
        page: Page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield make
    for context in contexts:
        context.close()
    assert not complaints
