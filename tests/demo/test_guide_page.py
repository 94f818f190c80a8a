"""The guide on the first page of the demo's portal, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, expect, sync_playwright
from scripts.screenshots import FLAGS, SCHEMES, chromium_path

from tests.demo.demo_process import DemoProcess
from tests.support.waiting import PATIENCE_S

PATIENCE_MS = 1_000 * PATIENCE_S
PHONE = {"width": 390, "height": 820}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoProcess]:
    """A demo in real time: its first events stay Scheduled, and started ones Started, for longer than the tests take."""
    running = DemoProcess(tmp_path_factory.mktemp("demo"), speed="1x")
    yield running
    running.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = chromium_path()
    assert chromium is not None, "chromium is not on the PATH: scripts/test_tools installs it"
    home: Path = tmp_path_factory.mktemp("home")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS, env={"HOME": str(home)})
        yield launched
        launched.close()


def test_the_guide_leads_to_a_started_event(demo: DemoProcess, browser: Browser) -> None:
    """From the first page a user restarts web-0, sees the plan, confirms, approves, and sees the start, without typing.

    The preview warns that web-0 has a scheduled event already, and has a box that accepts this."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(demo.operator)
    page.get_by_role("link", name="restart web-0").click()
    page.get_by_role("button", name="Show preview").click()
    page.get_by_role("checkbox", name="I have read the warnings").check()
    page.get_by_role("button", name="Confirm").click()
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("main")).to_contain_text("its order is being carried out", timeout=PATIENCE_MS)
    event_id = page.url.rpartition("/")[2].partition("?")[0]
    event = demo.get(f"/v1/events/{event_id}")
    assert (event["source"], event["resources"], event["approved_by"][0]["who"]) == ("User", ["web-0"], "operator")
    page.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_guide_is_accessible_on_a_phone(demo: DemoProcess, browser: Browser, scheme: str) -> None:
    """axe-core finds no violation, and the page does not scroll sideways."""
    context = browser.new_context(viewport=PHONE, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(demo.operator)
    page.get_by_text("The machines", exact=True).click()
    result = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    context.close()
