"""The story of the failures in a real Chromium: found on the first page, retried together, completed."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from tests.integration.browser.conftest import NewPage, box_of, log_in
from tests.support import forty_hosts
from tests.support.running_service import RunningService


@pytest.fixture
def service() -> Iterator[RunningService]:
    with forty_hosts.running() as running:
        yield running


@pytest.mark.parametrize(("width", "scripts"), [(1600, True), (390, False)], ids=["desktop", "phone without scripts"])
def test_forty_hosts_in_the_portal(service: RunningService, new_page: NewPage, width: int, scripts: bool) -> None:
    """Three failures come on top, live where there are scripts; by keyboard, Retry all lets the maintenance complete.

    On the phone, one of them is selected in the list of its failed orders and retried after a confirmation.
    """
    page = new_page(viewport={"width": width, "height": 900}, java_script_enabled=scripts)
    log_in(page, service.url, service.token)
    if scripts:
        expect(page.locator("#live")).to_contain_text("Live")
    made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": forty_hosts.HOSTS}}, 201)
    service.service.ticker.advance(4 * forty_hosts.WORK_S)
    if not scripts:
        page.get_by_role("link", name="Reload").click()
    failures = page.get_by_role("region", name="3 orders failed")
    expect(failures.locator("li")).to_have_count(3)
    expect(failures.locator(".failure-head .status")).to_have_text("Held: 3 orders failed")
    for machine in forty_hosts.FAILING:
        expect(failures.get_by_role("link", name=f"Reboot of {machine}")).to_be_visible()
        expect(failures.get_by_role("button", name=f"Abandon: Reboot of {machine}")).to_be_visible()
    assert box_of(failures)["y"] < box_of(page.locator("#counts"))["y"]
    if scripts:
        # A wide screen has room for the whole header in one line.
        buttons = [box_of(page.get_by_role("button", name=name)) for name in ("Find", "Log out")]
        assert len({round(each["y"] + each["height"] / 2) for each in buttons}) == 1
        violations = Axe().run(page).response["violations"]
        assert [(each["id"], each["nodes"][0]["html"]) for each in violations] == []
    else:
        assert page.locator("html").evaluate("e => e.scrollWidth") <= width
    failures.get_by_role("link", name=f"Maintenance {made['id'][:8]}").click()
    expect(page.locator("#state .status")).to_have_text("Held: 3 orders failed")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.get_by_role("button", name="Retry: Reboot of s1/vm-1").press("Enter")
    expect(page.get_by_role("region", name="2 orders failed")).to_be_visible()
    if not scripts:
        page.goto(f"{service.url}/orders?state=failed&maintenance={made['id']}")
        expect(page.locator("#list").get_by_role("checkbox")).to_have_count(2)
        page.locator("#list").get_by_role("checkbox").first.check()
        assert page.locator("html").evaluate("e => e.scrollWidth") <= width
        page.get_by_role("button", name="Retry").click()
        expect(page.get_by_role("heading", name="Retry 1 event?")).to_be_visible()
        assert page.locator("html").evaluate("e => e.scrollWidth") <= width
        page.get_by_role("button", name="Confirm: retry 1 event").click()
        expect(page.get_by_text("Done for 1 of 1 event.")).to_be_visible()
        assert page.locator("html").evaluate("e => e.scrollWidth") <= width
        page.goto(f"{service.url}/maintenances/{made['id']}")
        expect(page.get_by_role("region", name="1 order failed")).to_be_visible()
    page.get_by_role("button", name="Retry all").press("Enter")
    expect(page.get_by_text("All its failed orders can be taken again.")).to_be_visible()
    expect(page.locator(".failures")).to_have_count(0)
    service.service.ticker.advance(4 * forty_hosts.WORK_S)
    if not scripts:
        page.get_by_role("link", name="Reload").click()
    expect(page.locator("#state .status")).to_have_text("Completed")
