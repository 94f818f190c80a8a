"""Windows and no-go times in a real Chromium: on a phone without scripts, and on a wide screen."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.integration.browser.conftest import NewPage, log_in
from tests.support.running_service import RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def check(page: Page, width: int, scripts: bool) -> None:
    """Assert that the page fits its width and, where axe can run, that it finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if scripts:
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(("width", "scripts"), [(390, False), (1600, True)], ids=["phone without scripts", "wide"])
def test_rules_are_added_extended_and_removed(
    service: RunningService, new_page: NewPage, width: int, scripts: bool
) -> None:
    """From the week: a refused form keeps its text, the corrected one is saved, and a removal asks first."""
    page = new_page(
        java_script_enabled=scripts, viewport={"width": width, "height": 800}, expect=("400 (Bad Request)",)
    )
    log_in(page, service.url, service.token)
    page.get_by_role("link", name="Week", exact=True).click()
    page.get_by_role("link", name="Change windows and no-go times").click()
    window = page.get_by_role("region", name="Add or change a window")
    window.get_by_label("Name").fill("nights")
    window.get_by_label("Times of the week").fill("every night")
    window.get_by_role("button", name="Save the window").click()
    expect(window.get_by_role("alert")).to_contain_text("is not a time of the week")
    expect(window.get_by_label("Name")).to_have_value("nights")
    check(page, width, scripts)
    window.get_by_label("Times of the week").fill("Tue 00:00-06:00")
    window.get_by_role("button", name="Save the window").click()
    expect(page.get_by_text("Scopes and maintenances can use the window")).to_be_visible()
    page.get_by_label("Open until (UTC)").fill("2030-01-01T08:00")
    page.get_by_role("button", name="Extend window nights").click()
    expect(page.get_by_text("The window closes at the new time")).to_be_visible()
    no_go = page.get_by_role("region", name="Add or change a no-go time")
    no_go.get_by_label("Name").fill("fair")
    no_go.get_by_label("Reason").fill("the fair")
    no_go.get_by_label("From").fill("2030-01-03T10:00")
    no_go.get_by_label("To", exact=True).fill("2030-01-04T12:30")
    no_go.get_by_role("button", name="Save the no-go time").click()
    expect(page.get_by_role("rowheader", name="fair")).to_be_visible()
    check(page, width, scripts)
    page.get_by_role("button", name="Remove no-go time fair").click()
    expect(page.get_by_role("button", name="Confirm")).to_be_visible()
    check(page, width, scripts)
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("There are no no-go times")).to_be_visible()
    page.get_by_role("link", name="The week").click()
    expect(page.get_by_text("nights").first).to_be_visible()
