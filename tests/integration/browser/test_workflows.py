"""Whole workflows in a real Chromium, with and without scripts."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.integration.browser.conftest import NewPage, log_in
from tests.support.breakable_proxy import BreakableProxy
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
    page.get_by_label("Names of the scopes").fill(scope)
    page.get_by_role("button", name="Show preview").click()
    expect(page.get_by_role("heading", name="Plan preview")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_a_rolling_reboot_from_plan_to_end(service: RunningService, new_page: NewPage, scripts: bool) -> None:
    """Planned, approved, started and completed; with scripts the page is never reloaded."""
    page = new_page(java_script_enabled=scripts)
    log_in(page, service.url, service.token)

    def reload() -> None:
        if not scripts:
            page.get_by_role("link", name="Reload").click()

    plan_reboot(page)
    expect(page.get_by_text("Planned. Guests see")).to_be_visible()
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
    reload()
    expect(page.locator("#state .status")).to_have_text("Started")
    service.service.ticker.advance(660)
    reload()
    expect(page.locator("#state .status")).to_have_text("Completed")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    if scripts:
        assert page.evaluate("window.still") == "the same page"
    # The second wave is published by now; it starts when its notice is over.
    service.service.ticker.advance(3_600)
    page.get_by_role("link", name="maintenance", exact=True).click()
    expect(page.locator("#state .status")).to_have_text("Completed")


def test_two_browsers_see_each_others_changes(service: RunningService, new_page: NewPage) -> None:
    """A change made in one appears in the other without a reload, on the page Now and on the event's page."""
    one, other = new_page(), new_page()
    log_in(one, service.url, service.token)
    log_in(other, service.url, service.token)
    expect(other.locator("#live")).to_contain_text("Live")
    expect(other.get_by_text("There are no open events")).to_be_visible()
    plan_reboot(one)
    expect(other.locator(".what").get_by_role("link", name=EVENTS).first).to_be_visible()
    expect(other.locator("#counts")).to_contain_text("1 scheduled")
    other.get_by_role("link", name="Reboot of web-0").first.click()
    other.get_by_role("button", name="Cancel").click()
    other.get_by_role("button", name="Confirm: cancel").click()
    expect(one.locator("#waves")).to_contain_text("Cancelled")


def test_a_viewer_has_no_actions(service: RunningService, new_page: NewPage) -> None:
    """No buttons, no plan form, no tokens; and the pages for them refuse."""
    made = service.schedule("shop/web-0")
    page = new_page(expect=("403 (Forbidden)",))
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
        expect(
            page.locator("main button:not(.copy):not(search button):not(.search button):not(.inline button)")
        ).to_have_count(0)
        expect(page.get_by_role("link", name="Plan", exact=True)).to_have_count(0)
        expect(page.get_by_role("link", name=re.compile("Restart"))).to_have_count(0)
        expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    for path in ("/plan", "/tokens"):
        page.goto(service.url + path)
        expect(page.get_by_role("alert")).to_contain_text("viewer")


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_an_ended_login_keeps_the_form(service: RunningService, new_page: NewPage, scripts: bool) -> None:
    """If the token is revoked meanwhile, the form returns with its input after the next login and is not submitted by itself."""
    page = new_page(java_script_enabled=scripts, expect=(UNAUTHORIZED,))
    log_in(page, service.url, service.token_of("operator", name="to be revoked"))
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_label("Names of the scopes").fill("shop")
    page.get_by_label("Description").fill("<b>Kernel & friends</b>")
    (mine,) = [token["id"] for token in service.get("/v1/tokens")["items"] if token["name"] == "to be revoked"]
    assert service.request("DELETE", f"/v1/tokens/{mine}").status == 204
    page.get_by_role("button", name="Show preview").click()
    expect(page.get_by_text("Your input is kept")).to_be_visible()
    assert "Kernel" not in page.url
    page.get_by_label("Token").fill("not a token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Token").fill(service.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
    expect(page.get_by_label("Names of the scopes")).to_have_value("shop")
    expect(page.get_by_label("Description")).to_have_value("<b>Kernel & friends</b>")
    assert service.get("/v1/events")["items"] == []
    page.get_by_role("button", name="Show preview").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("Planned. Guests see")).to_be_visible()


def test_a_live_page_stays_when_its_login_ends(service: RunningService, new_page: NewPage) -> None:
    """It shows a message and keeps its content."""
    service.schedule("shop/web-0")
    page = new_page(expect=(UNAUTHORIZED,))
    log_in(page, service.url, service.token_of("operator", name="to be revoked"))
    expect(page.locator("#live")).to_contain_text("Live")
    (mine,) = [token["id"] for token in service.get("/v1/tokens")["items"] if token["name"] == "to be revoked"]
    assert service.request("DELETE", f"/v1/tokens/{mine}").status == 204
    expect(page.locator("#live")).to_contain_text("Your login has ended")
    expect(page.get_by_role("link", name="Reboot of web-0").first).to_be_visible()


def test_a_page_reconnects_after_a_lost_connection(service: RunningService, new_page: NewPage) -> None:
    """It shows a message, tries again by itself, and then shows the changes."""
    with closing(BreakableProxy(service.url)) as proxy:
        page = new_page(expect=("ERR_", "Failed to load resource"))
        log_in(page, proxy.url, service.token)
        expect(page.locator("#live")).to_contain_text("Live")
        proxy.break_connections()
        expect(page.locator("#live")).to_contain_text("Connection lost. Trying again")
        service.schedule("shop/web-0")
        proxy.repair()
        expect(page.locator("#live")).to_contain_text("Live")
        expect(page.get_by_role("link", name="Reboot of web-0").first).to_be_visible()


def test_an_update_keeps_focus_input_and_open_tables(service: RunningService, new_page: NewPage) -> None:
    """A button keeps the focus, a search field its text, and an open table stays open."""
    made = service.schedule("shop/web-0")
    page = new_page()
    log_in(page, service.url, service.token)
    page.get_by_text("Show as a table").click()
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


def test_a_double_click_plans_once(service: RunningService, new_page: NewPage) -> None:
    """Without scripts, and with no response between the two clicks."""
    with closing(BreakableProxy(service.url)) as proxy:
        page = new_page(java_script_enabled=False)
        log_in(page, proxy.url, service.token)
        page.get_by_role("link", name="Plan", exact=True).click()
        page.get_by_label("Names of the scopes").fill("shop")
        page.get_by_role("button", name="Show preview").click()
        page.get_by_role("button", name="Confirm").hover()
        with proxy.responses_held():
            for clicks in (1, 2):
                with page.expect_request(lambda request: request.method == "POST"):
                    page.mouse.down(click_count=clicks)
                    page.mouse.up(click_count=clicks)
        expect(page.get_by_text("Planned. Guests see")).to_be_visible()
        assert len(service.get("/v1/maintenances")["items"]) == 1


@pytest.mark.parametrize("scripts", [True, False], ids=["live", "without scripts"])
def test_an_irreversible_action_asks_first(service: RunningService, new_page: NewPage, scripts: bool) -> None:
    """One click cancels nothing: a page without live parts states the effect and also leads back."""
    made = service.schedule("shop/web-0")
    page = new_page(java_script_enabled=scripts)
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
        page.get_by_role("link", name="No, go back").click()
        expect(page).to_have_url(service.url + path)
        assert service.get("/v1/events")["items"][0]["status"] == "Scheduled"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Confirm: cancel").click()
    expect(page.get_by_text("Cancelled. What had not started will not start")).to_be_visible()
    assert service.get("/v1/events")["items"][0]["status"] == "Cancelled"


def test_the_keyboard_is_enough(service: RunningService, new_page: NewPage) -> None:
    """Tab and Enter lead from the login over the skip link to an event and its approval."""
    service.schedule("shop/web-0")
    page = new_page()
    page.goto(f"{service.url}/login")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(service.token)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Now", exact=True).wait_for()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
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


def test_a_token_is_shown_once_and_works_until_it_is_revoked(service: RunningService, new_page: NewPage) -> None:
    """Its login stops working at once."""
    page, other = new_page(), new_page(expect=(UNAUTHORIZED,))
    log_in(page, service.url, service.token)
    page.get_by_role("link", name="Tokens").click()
    page.get_by_label("Name").fill("the wall screen")
    page.get_by_role("button", name="Create").click()
    secret = page.locator(".secret").inner_text().strip()
    page.get_by_role("link", name="Back to the tokens").click()
    expect(page.locator("body")).not_to_contain_text(secret)
    log_in(other, service.url, secret)
    page.get_by_role("button", name="Revoke the wall screen").click()
    expect(page.get_by_text("The token of the wall screen")).to_be_visible()
    page.get_by_role("button", name="Confirm: revoke").click()
    expect(page.get_by_text("Revoked. The token no longer works")).to_be_visible()
    other.goto(f"{service.url}/machines")
    expect(other.get_by_label("Token")).to_be_visible()
