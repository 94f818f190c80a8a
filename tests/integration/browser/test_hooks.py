"""The pages of hooks in a real Chromium: on a phone without scripts, and on a wide screen by keyboard."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Locator, Page, expect

from tests.integration.browser.conftest import NewPage, log_in
from tests.support.running_service import RunningService, running_service

URL = f"https://receiver.invalid/{'in' * 60}"


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(hook_targets="receiver.invalid") as running:
        yield running


def check(page: Page, width: int, scripts: bool) -> None:
    """Assert that the page fits its width and, where axe can run, that it finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if scripts:
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(("width", "scripts"), [(390, False), (1600, True)], ids=["phone without scripts", "keyboard"])
def test_a_hook_is_created_shown_and_deleted(
    service: RunningService, new_page: NewPage, width: int, scripts: bool
) -> None:
    """The secret is shown once, then the hook's page and the list; a confirmation comes before the end."""

    def press(target: Locator) -> None:
        if scripts:
            target.press("Enter")
        else:
            target.click()

    page = new_page(viewport={"width": width, "height": 900}, java_script_enabled=scripts)
    log_in(page, service.url, service.token)
    page.goto(f"{service.url}/hooks")
    expect(page.get_by_text("There are no hooks.")).to_be_visible()
    check(page, width, scripts)
    page.get_by_label("URL of the receiver").fill(URL)
    press(page.get_by_role("button", name="Create"))
    expect(page.get_by_role("region", name="The secret")).to_contain_text("whsec_")
    check(page, width, scripts)
    press(page.get_by_role("link", name="To the hook"))
    expect(page.locator("#hook")).to_contain_text(URL)
    expect(page.get_by_text("whsec_")).to_have_count(0)
    check(page, width, scripts)
    press(page.get_by_role("link", name="Back to the hooks"))
    expect(page.get_by_role("button", name="Create")).to_be_visible()
    (hook,) = service.get("/v1/hooks")["items"]
    check(page, width, scripts)
    press(page.get_by_role("link", name=hook["id"][:8]))
    press(page.get_by_role("button", name="Delete"))
    expect(page.get_by_text(f"The hook {hook['id'][:8]} of the whole fleet")).to_be_visible()
    assert len(service.get("/v1/hooks")["items"]) == 1
    check(page, width, scripts)
    press(page.get_by_role("button", name="Confirm"))
    expect(page.get_by_text("There are no hooks.")).to_be_visible()
    assert service.get("/v1/hooks")["items"] == []
