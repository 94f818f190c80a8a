"""An owner at work in a real Chromium: on a phone without scripts, and on a wide screen, with the keyboard alone."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.integration.browser.conftest import NewPage
from tests.support.running_service import RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        running.schedule("shop/web-0", description="new kernel")
        running.schedule("blog/db")
        yield running


def press(page: Page, role: str, name: str) -> None:
    """Go to a button or link with the Tab key, and press it."""
    wanted = page.get_by_role(role, name=name).first  # type: ignore[arg-type]
    for _ in range(60):
        if wanted.evaluate("each => each === document.activeElement"):
            break
        page.keyboard.press("Tab")
    expect(wanted).to_be_focused()
    page.keyboard.press("Enter")


@pytest.mark.parametrize("width, scope", [(390, "shop"), (1600, "blog")], ids=["phone without scripts", "wide"])
def test_an_owner_approves_and_subscribes_to_a_calendar(
    service: RunningService, new_page: NewPage, width: int, scope: str
) -> None:
    """What is coming is on top with its button; the address of the new calendar works in a calendar program."""
    phone = width < 1000
    page = new_page(viewport={"width": width, "height": 800}, java_script_enabled=True)
    plain = new_page(viewport={"width": width, "height": 800}, java_script_enabled=False) if phone else page
    token = service.token_of("owner", scope, name=f"owner of {scope}")
    for each in {page, plain}:
        each.goto(f"{service.url}/login")
        each.get_by_label("Token").fill(token)
        each.keyboard.press("Enter")
        expect(each.get_by_role("heading", name="Your machines")).to_be_visible()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    press(plain, "button", "Approve")
    expect(plain.get_by_text("Approved. It starts as soon as")).to_be_visible()
    plain.goto(service.url)
    press(plain, "link", "See coming events in your calendar")
    plain.get_by_label("Name").fill(f"calendar of {scope}")
    plain.keyboard.press("Enter")
    address = urlsplit(plain.get_by_label("The address of the calendar").locator("code").inner_text())
    assert f"{address.scheme}://{address.netloc}" == service.url
    calendar = service.request("GET", f"{address.path}?{address.query}", token="")
    assert (calendar.status, scope.encode() + b"/" in calendar.raw) == (200, True)


def test_an_owner_schedules_a_drill_on_a_phone(service: RunningService, new_page: NewPage) -> None:
    """The form shows the fields of the chosen kind only, and the report of the drill follows the confirmation."""
    for made in service.get("/v1/maintenances")["items"]:
        service.post(f"/v1/maintenances/{made['id']}/cancel")
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto(f"{service.url}/login")
    page.get_by_label("Token").fill(service.token_of("owner", "shop"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Your machines")).to_be_visible()
    page.goto(f"{service.url}/drills")
    page.get_by_role("link", name="Schedule one").click()
    expect(page.get_by_label("Machine", exact=True)).to_be_hidden()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_label("Restart a machine").check()
    expect(page.get_by_label("All machines of these scopes")).to_be_hidden()
    page.get_by_label("Drill: machines prepare").check()
    page.get_by_label("All machines of these scopes").fill("shop")
    page.get_by_role("button", name="Show preview").click()
    expect(page.get_by_text("These machines really drain and fail over. Nothing touches them.")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Planned. Guests see")).to_be_visible()
    (drill,) = service.get("/v1/drills")["items"]
    assert page.url.startswith(f"{service.url}/drills/{drill['id']}")
