"""The portal in a real Chromium: what a person does, with and without scripts, alone and together."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.integration.browser.conftest import Visitors
from tests.integration.browser.people import Wire, log_in
from tests.support.running_service import RunningService, running_service

EVENTS = re.compile(r"Reboot of web-")
UNAUTHORIZED = "401 (Unauthorized)"


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(executor="simulated") as running:
        running.enable("shop")
        yield running


def plan_reboot(page: Page, scope: str = "shop") -> None:
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_label("Name of the scope").fill(scope)
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_role("heading", name="What would happen")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_a_rolling_reboot_from_plan_to_end(service: RunningService, visitors: Visitors, scripts: bool) -> None:
    """Planned, seen, approved, started and ended; with scripts nothing is ever reloaded."""
    page = visitors(java_script_enabled=scripts)
    log_in(page, service.url, service.token)

    def look() -> None:
        if not scripts:
            page.get_by_role("link", name="Reload").click()

    plan_reboot(page)
    expect(page.get_by_text("Planned. It appears to guests")).to_be_visible()
    expect(page.get_by_role("rowheader", name="Wave 2")).to_be_visible()
    page.get_by_role("link", name="Reboot of web-0").click()
    expect(page.locator("#state")).to_contain_text("no machine of shop has approved")
    if scripts:
        expect(page.locator("#live")).to_contain_text("Live")
        page.evaluate("window.still = 'the same page'")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("Approved. It starts as soon as")).to_be_visible()
    if scripts:
        expect(page.locator("#live")).to_contain_text("Live")
        page.evaluate("window.still = 'the same page'")
    service.service.ticker.advance(1)
    look()
    expect(page.locator("#state .status")).to_have_text("Started")
    service.service.ticker.advance(660)
    look()
    expect(page.locator("#state .status")).to_have_text("Completed")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    if scripts:
        assert page.evaluate("window.still") == "the same page"
    # The second wave, published by then, waits for its notice and ends by itself.
    service.service.ticker.advance(3_600)
    page.get_by_role("link", name="its maintenance").click()
    expect(page.locator("#state .status")).to_have_text("Completed")


def test_two_browsers_see_each_others_changes(service: RunningService, visitors: Visitors) -> None:
    """What one does appears at the other without a reload, on Now and on the event's page."""
    one, other = visitors(), visitors()
    log_in(one, service.url, service.token)
    log_in(other, service.url, service.token)
    expect(other.locator("#live")).to_contain_text("Live")
    expect(other.get_by_text("Nothing is open")).to_be_visible()
    plan_reboot(one)
    expect(other.locator(".what").get_by_role("link", name=EVENTS).first).to_be_visible()
    expect(other.locator("#counts")).to_contain_text("1 scheduled")
    other.get_by_role("link", name="Reboot of web-0").first.click()
    other.get_by_role("button", name="Cancel").click()
    other.get_by_role("button", name="Confirm: cancel").click()
    expect(one.locator("#waves")).to_contain_text("Cancelled")


def test_a_viewer_cannot_act(service: RunningService, visitors: Visitors) -> None:
    """Nothing to press, nothing to plan, no tokens; and the pages for it refuse."""
    made = service.schedule("shop/web-0")
    page = visitors(expect=("403 (Forbidden)",))
    log_in(page, service.url, service.token_of("viewer"))
    event = made["waves"][0]["events"][0]["id"]
    for path in (
        "/",
        f"/events/{event}",
        f"/maintenances/{made['id']}",
        "/scopes/shop",
        "/machines",
        "/history",
        "/audit",
    ):
        page.goto(service.url + path)
        expect(page.locator("main button:not(search button):not(.search button):not(.inline button)")).to_have_count(0)
        expect(page.get_by_role("link", name="Plan", exact=True)).to_have_count(0)
        expect(page.get_by_role("link", name=re.compile("Restart"))).to_have_count(0)
        expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    for path in ("/plan", "/tokens"):
        page.goto(service.url + path)
        expect(page.get_by_role("alert")).to_contain_text("viewer")


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_an_ended_login_keeps_the_typed_form(service: RunningService, visitors: Visitors, scripts: bool) -> None:
    """Revoked while a form is typed: the form comes back filled after the next log-in, and is not sent by itself."""
    page = visitors(java_script_enabled=scripts, expect=(UNAUTHORIZED,))
    log_in(page, service.url, service.token_of("operator", name="soon gone"))
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_label("Name of the scope").fill("shop")
    page.get_by_label("Description").fill("<b>Kernel & friends</b>")
    (mine,) = [token["id"] for token in service.get("/v1/tokens")["items"] if token["name"] == "soon gone"]
    assert service.request("DELETE", f"/v1/tokens/{mine}").status == 204
    page.get_by_role("button", name="Show what would happen").click()
    expect(page.get_by_text("What you typed is kept")).to_be_visible()
    assert "Kernel" not in page.url
    page.get_by_label("Token").fill("not a token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Token").fill(service.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
    expect(page.get_by_label("Name of the scope")).to_have_value("shop")
    expect(page.get_by_label("Description")).to_have_value("<b>Kernel & friends</b>")
    assert service.get("/v1/events")["items"] == []
    page.get_by_role("button", name="Show what would happen").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Planned. It appears")).to_be_visible()


def test_a_live_page_says_that_the_login_has_ended_and_stays(service: RunningService, visitors: Visitors) -> None:
    """Nothing is thrown away behind the visitor's back."""
    service.schedule("shop/web-0")
    page = visitors(expect=(UNAUTHORIZED,))
    log_in(page, service.url, service.token_of("operator", name="soon gone"))
    expect(page.locator("#live")).to_contain_text("Live")
    (mine,) = [token["id"] for token in service.get("/v1/tokens")["items"] if token["name"] == "soon gone"]
    assert service.request("DELETE", f"/v1/tokens/{mine}").status == 204
    expect(page.locator("#live")).to_contain_text("Your log-in has ended")
    expect(page.get_by_role("link", name="Reboot of web-0").first).to_be_visible()


def test_a_stream_that_was_cut_off_comes_back(service: RunningService, visitors: Visitors) -> None:
    """It says so, tries again by itself, and shows what happened meanwhile."""
    with closing(Wire(service.url)) as wire:
        page = visitors(expect=("ERR_", "Failed to load resource"))
        log_in(page, wire.url, service.token)
        expect(page.locator("#live")).to_contain_text("Live")
        wire.cut()
        expect(page.locator("#live")).to_contain_text("Cut off. Trying again")
        service.schedule("shop/web-0")
        wire.mend()
        expect(page.locator("#live")).to_contain_text("Live")
        expect(page.get_by_role("link", name="Reboot of web-0").first).to_be_visible()


def test_news_leave_focus_and_typed_words_alone(service: RunningService, visitors: Visitors) -> None:
    """A button keeps the focus through a change, a search field its letters, an opened table stays open."""
    made = service.schedule("shop/web-0")
    page = visitors()
    log_in(page, service.url, service.token)
    page.get_by_text("The same as a table").click()
    expect(page.get_by_role("columnheader", name="NotBefore")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("Live")
    service.schedule("blog/db")
    expect(page.locator("#as-table tbody tr")).to_have_count(2)
    expect(page.get_by_role("columnheader", name="NotBefore")).to_be_visible()
    page.goto(f"{service.url}/events/{made['waves'][0]['events'][0]['id']}")
    expect(page.locator("#live")).to_contain_text("Live")
    page.get_by_role("button", name="Cancel").focus()
    service.post(f"/v1/maintenances/{made['id']}/pause")
    expect(page.locator("#state")).to_contain_text("the maintenance is paused")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    service.post(f"/v1/maintenances/{made['id']}/resume")
    service.service.ticker.advance(900)
    expect(page.locator("#state .status")).to_have_text("Started")
    page.goto(f"{service.url}/history")
    expect(page.locator("#live")).to_contain_text("Live")
    page.get_by_label("Machine").fill("web")
    service.service.ticker.advance(700)
    expect(page.get_by_role("link", name="Reboot of web-0")).to_be_visible()
    expect(page.get_by_label("Machine")).to_have_value("web")
    expect(page.get_by_label("Machine")).to_be_focused()


def test_a_double_click_plans_once(service: RunningService, visitors: Visitors) -> None:
    """Without a script that could hold the second click back; no answer replaces the page between the two clicks."""
    with closing(Wire(service.url)) as wire:
        page = visitors(java_script_enabled=False)
        log_in(page, wire.url, service.token)
        page.get_by_role("link", name="Plan", exact=True).click()
        page.get_by_label("Name of the scope").fill("shop")
        page.get_by_role("button", name="Show what would happen").click()
        page.get_by_role("button", name="Confirm").hover()
        with wire.answers_held():
            for clicks in (1, 2):
                with page.expect_request(lambda request: request.method == "POST"):
                    page.mouse.down(click_count=clicks)
                    page.mouse.up(click_count=clicks)
        expect(page.get_by_text("Planned. It appears")).to_be_visible()
        assert len(service.get("/v1/maintenances")["items"]) == 1


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_what_cannot_be_taken_back_asks_first(service: RunningService, visitors: Visitors, scripts: bool) -> None:
    """One click cancels nothing: a page that does not move says what would happen, and leads back too."""
    made = service.schedule("shop/web-0")
    page = visitors(java_script_enabled=scripts)
    log_in(page, service.url, service.token)
    for path, verb, left in (
        (f"/maintenances/{made['id']}", "Cancel the rest", "1 scheduled"),
        (f"/events/{made['waves'][0]['events'][0]['id']}", "Cancel", "web-0 in shop: Scheduled"),
    ):
        page.goto(service.url + path)
        page.get_by_role("button", name=verb).click()
        expect(page.get_by_text(left)).to_be_visible()
        if scripts:
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
        page.get_by_role("link", name="No, leave it as it is").click()
        expect(page).to_have_url(service.url + path)
        assert service.get("/v1/events")["items"][0]["status"] == "Scheduled"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Confirm: cancel").click()
    expect(page.get_by_text("Cancelled: what had not started ends")).to_be_visible()
    assert service.get("/v1/events")["items"][0]["status"] == "Cancelled"


def test_with_the_keyboard_alone(service: RunningService, visitors: Visitors) -> None:
    """Skip link first, then on to the event and its verb: Tab and Enter are enough."""
    service.schedule("shop/web-0")
    page = visitors()
    page.goto(f"{service.url}/login")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(service.token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Now", exact=True).wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("Reboot of web-0"):
            break
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Reboot of web-0").wait_for()
    page.get_by_role("button", name="Approve").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Approved. It starts")).to_be_visible()


def test_a_token_is_shown_once_and_works_until_it_is_revoked(service: RunningService, visitors: Visitors) -> None:
    """Made in the portal, used to log in, revoked: out at once."""
    page, other = visitors(), visitors(expect=(UNAUTHORIZED,))
    log_in(page, service.url, service.token)
    page.get_by_role("link", name="Tokens").click()
    page.get_by_label("Whose it is").fill("the wall screen")
    page.get_by_role("button", name="Make it").click()
    secret = page.locator(".secret").inner_text().strip()
    page.get_by_role("link", name="I have it").click()
    expect(page.locator("body")).not_to_contain_text(secret)
    log_in(other, service.url, secret)
    page.get_by_role("button", name="Revoke the wall screen").click()
    expect(page.get_by_text("The token of the wall screen")).to_be_visible()
    page.get_by_role("button", name="Confirm: revoke").click()
    expect(page.get_by_text("Revoked: whoever used it is out")).to_be_visible()
    other.goto(f"{service.url}/machines")
    expect(other.get_by_label("Token")).to_be_visible()
