"""The pages of a machine and a host, and the search, in a real Chromium without scripts, on a phone and on a wide screen."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.integration.browser.conftest import NewPage, log_in
from tests.support.running_service import RunningService, running_service

WIDTHS = (390, 1_600)


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def check(page: Page, width: int) -> None:
    """Assert that the page fits its width."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_an_operator_finds_a_machine_its_host_and_plans_for_it(
    service: RunningService, new_page: NewPage, width: int
) -> None:
    """From the search box, by keyboard alone, to a plan for the host and its progress, without scripts."""
    service.schedule("shop/web-0", description="new kernel", duration_s=60)
    page = new_page(java_script_enabled=False, viewport={"width": width, "height": 900})
    log_in(page, service.url, service.token)
    page.get_by_label("Search everything").focus()
    page.keyboard.type("web-0")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Search")).to_be_visible()
    expect(page.get_by_role("heading", name="Maintenances")).to_be_visible()
    check(page, width)
    page.get_by_role("link", name="shop/web-0", exact=True).press("Enter")
    expect(page.get_by_role("heading", name="shop/web-0")).to_be_visible()
    expect(page.locator("#coming")).to_contain_text("Reboot of web-0")
    expect(page.locator("#approval")).to_contain_text("any machine of the scope may approve an event")
    check(page, width)
    page.get_by_role("main").get_by_role("link", name="rack1-a").first.press("Enter")
    expect(page.locator("#machines")).to_contain_text("blog / db")
    expect(page.locator("#coming")).to_contain_text("Reboot of web-0")
    check(page, width)
    page.get_by_role("link", name="Plan for this host").press("Enter")
    page.get_by_role("button", name="Show preview").press("Enter")
    expect(page.get_by_role("heading", name="Plan preview")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("web-0")
    page.get_by_role("checkbox").check()  # web-0 has another open event
    page.get_by_role("button", name="Confirm").press("Enter")
    expect(page.locator("#state")).to_contain_text("host rack1-a")
    expect(page.locator("#state")).to_contain_text("0 of 2 done, 2 left")
    check(page, width)


def test_axe_finds_nothing_at_any_width(service: RunningService, new_page: NewPage) -> None:
    """On the pages of a machine and a host, the search, and a maintenance with its targets and progress."""
    made = service.schedule("shop/web-0", "shop/web-1", duration_s=60)
    page = new_page()
    log_in(page, service.url, service.token)
    for path in ("/machines/shop/web-0", "/hosts/rack1-a", "/search?q=web", f"/maintenances/{made['id']}"):
        page.goto(service.url + path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
