"""A maintenance that fills more than a page, in a real Chromium: on a phone, on a wide screen, by keyboard, without scripts."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, ViewportSize, expect

from tests.integration.browser.conftest import NewPage, box_of, log_in
from tests.support.running_service import RunningService, running_service

SCOPES = 45
FLEET = "".join(
    f'[[scopes]]\nname = "team-{n:02d}"\nkind = "availability-set"\n'
    + "".join(
        f'[[machines]]\nscope = "team-{n:02d}"\nname = "web-{m}"\nupdate_domain = {m}\nhost = "rack-{n % 5}-{m}"\n'
        for m in range(2)
    )
    for n in range(SCOPES)
)
PHONE: ViewportSize = {"width": 390, "height": 820}
WIDE: ViewportSize = {"width": 1600, "height": 1000}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(FLEET, store="memory:") as running:
        running.enable(*(f"team-{n:02d}" for n in range(SCOPES)))
        yield running


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def check_accessibility(page: Page) -> None:
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_a_plan_by_hosts_lists_every_event(service: RunningService, new_page: NewPage, scripts: bool) -> None:
    """Typing hosts selects Hosts; the preview has pages, and the plan is confirmed on the last one."""
    page = new_page(viewport=PHONE, java_script_enabled=scripts)
    log_in(page, service.url, service.token)
    page.goto(f"{service.url}/plan")
    page.get_by_label("Names or patterns of the hosts").fill(
        " ".join(f"rack-{n}-{m}" for n in range(5) for m in range(2))
    )
    if scripts:
        expect(page.get_by_label("Hosts", exact=True)).to_be_checked()
    page.get_by_role("button", name="Show preview").click()
    expect(page.get_by_text("Events 1 to 40 of 90.")).to_be_visible()
    expect(page.get_by_text("Page 1 of 3")).to_be_visible()
    assert fits(page)
    for number in (2, 3):
        page.get_by_role("button", name="Next page").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_text(f"Page {number} of 3")).to_be_visible()
    page.set_viewport_size(WIDE)
    expect(page.get_by_role("cell", name="rack-4-1").first).to_be_visible()
    if scripts:
        check_accessibility(page)
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_label("Hosts", exact=True)).to_be_checked()
    page.get_by_role("button", name="Show preview").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Planned. Guests see")).to_be_visible()


def test_local_time_and_copy_buttons(service: RunningService, new_page: NewPage) -> None:
    """The browser's zone stands beside UTC, the choice is remembered, and a click copies an id or a new token."""
    event = service.schedule("team-00/web-0")["waves"][0]["events"][0]["id"]
    page = new_page(timezone_id="Asia/Kolkata", permissions=["clipboard-read", "clipboard-write"], viewport=PHONE)
    log_in(page, service.url, service.token)
    page.goto(f"{service.url}/events/{event}")
    expect(page.locator("#clock .local")).to_have_text("(05:30:00 GMT+5:30)")
    expect(page.locator("#times .local").first).to_be_visible()
    assert fits(page)
    service.post(f"/v1/events/{event}/approve")
    expect(page.locator("#times")).to_contain_text("by operator")
    expect(page.locator("#times .local").first).to_be_visible()
    page.get_by_role("button", name="Copy the id").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == event
    check_accessibility(page)
    page.get_by_label("Also show times in Asia").uncheck()
    expect(page.locator(".local")).to_have_count(0)
    page.goto(f"{service.url}/tokens")
    expect(page.get_by_label("Also show times in Asia")).not_to_be_checked()
    page.get_by_label("Name").fill("the wall screen")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("button", name="Copy the token").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator(".secret").inner_text().strip()


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_now_groups_filters_and_acts_on_many(service: RunningService, new_page: NewPage, scripts: bool) -> None:
    """A wave of 45 scopes is one group with one line per page; a filter finds some, and one confirmation approves them."""
    hosts = [f"rack-{n}-{m}" for n in range(5) for m in range(2)]
    body = {"type": "Reboot", "targets": {"hosts": hosts}, "description": "Kernel update"}
    service.post("/v1/maintenances", body, 201)
    page = new_page(viewport=WIDE, java_script_enabled=scripts)
    log_in(page, service.url, service.token)
    expect(page.get_by_text("20 of 45 started or scheduled events")).to_be_visible()
    expect(page.locator("#open .group")).to_have_count(1)
    expect(page.get_by_text("20 events that are the same")).to_be_visible()
    expect(page.get_by_text("wave 2, 45 events")).to_be_visible()
    assert box_of(page.locator("#open .line .chart").first)["width"] > 500
    page.get_by_label("Host", exact=True).fill("rack-3-0")
    page.get_by_label("Contains").press("Enter")
    expect(page.get_by_text("9 of 9 started or scheduled events")).to_be_visible()
    page.set_viewport_size(PHONE)
    page.get_by_text("9 events that are the same").focus()
    page.keyboard.press("Enter")
    boxes = page.locator("#open").get_by_role("checkbox")
    expect(boxes).to_have_count(9)
    for number in range(3):
        boxes.nth(number).focus()
        page.keyboard.press("Space")
    assert fits(page)
    if scripts:
        service.post("/v1/maintenances", {"type": "Freeze", "targets": {"machines": ["team-13/web-1"]}}, 201)
        check_accessibility(page)
    page.get_by_role("button", name="Approve").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Approve 3 events?")).to_be_visible()
    assert fits(page)
    page.get_by_role("button", name="Confirm: approve 3 events").press("Enter")
    expect(page.get_by_text("Done for 3 of 3 events.")).to_be_visible()
    approved = [event for event in service.get("/v1/events?limit=100")["items"] if event["approved_by"]]
    assert len(approved) == 3
