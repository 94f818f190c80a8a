"""Updates of live pages in a real Chromium do not disturb the reader: focus, selected text, the button under the pointer."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.integration.browser.conftest import NewPage, box_of, log_in
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import until

CHECK_EVERY_MS = 20

# Marks the page when its code has done all that it does with a body: that code runs before the timer.
MARK_A_HANDLED_BODY = """() => {
  const text = Response.prototype.text;
  Response.prototype.text = async function () {
    const body = await text.call(this);
    setTimeout(() => (document.documentElement.dataset.handled = "a body"));
    return body;
  };
}"""


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def open_live(page: Page, service: RunningService, path: str = "/") -> None:
    log_in(page, service.url, service.token)
    page.goto(service.url + path)
    expect(page.locator("#live")).to_contain_text("Live")


def first_event(maintenance: dict[str, list[dict[str, list[dict[str, str]]]]]) -> str:
    return maintenance["waves"][0]["events"][0]["id"]


def test_an_element_without_id_keeps_the_focus(service: RunningService, new_page: NewPage) -> None:
    """A link, the second of two equal links, and the summary of a table keep it when their part changes."""
    event = first_event(service.schedule("shop/web-0"))
    page = new_page()
    open_live(page, service)
    links = page.locator(f'#open a[href="/events/{event}"]')
    page.get_by_text("Show as a table").click()
    for one in (links.nth(0), links.nth(1), page.locator("#as-table summary")):
        one.focus()
        before = page.locator("#as-table tbody tr").count()
        service.schedule("blog/db" if before % 2 else "shop/web-1")
        expect(page.locator("#as-table tbody tr")).to_have_count(before + 1)
        expect(one).to_be_focused()


def test_the_focus_moves_to_the_part_when_its_element_is_gone(service: RunningService, new_page: NewPage) -> None:
    """Tab then continues there, not at the top of the page."""
    event = first_event(service.schedule("shop/web-0"))
    page = new_page()
    open_live(page, service, f"/events/{event}")
    page.get_by_role("button", name="Approve").focus()
    service.post(f"/v1/events/{event}/cancel")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(page.locator("#state")).to_be_focused()


def test_selected_text_stays_selected(service: RunningService, new_page: NewPage) -> None:
    """Its part is updated when the selection is gone, and a message says so; the other parts are updated at once."""
    service.schedule("shop/web-0")
    page = new_page()
    open_live(page, service)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('open-title'))")
    service.schedule("blog/db")
    expect(page.locator("#counts")).to_contain_text("2 scheduled")
    expect(page.locator("#live")).to_contain_text("has changed")
    expect(page.locator("#open.changed .what")).to_have_count(1)
    assert page.evaluate("String(getSelection())") == "Open events"
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#open:not(.changed) .what")).to_have_count(2)
    expect(page.locator("#live")).to_contain_text("Live")


def test_nothing_moves_while_the_pointer_is_over_a_button(service: RunningService, new_page: NewPage) -> None:
    """The page is updated when the pointer has left the button."""
    made = service.schedule("shop/web-0")
    page = new_page()
    open_live(page, service, f"/events/{first_event(made)}")
    page.get_by_role("button", name="Cancel").hover()
    position = box_of(page.get_by_role("button", name="Cancel"))
    service.post(f"/v1/maintenances/{made['id']}/pause")
    expect(page.locator("#live")).to_contain_text("has changed")
    expect(page.locator("#state")).not_to_contain_text("the maintenance is paused")
    assert box_of(page.get_by_role("button", name="Cancel")) == position
    page.mouse.move(1, 1)
    expect(page.locator("#state")).to_contain_text("the maintenance is paused")


def test_a_link_that_is_being_clicked_is_not_replaced(service: RunningService, new_page: NewPage) -> None:
    """A browser drops a click whose element is another one when the mouse button is released."""
    event = first_event(service.schedule("shop/web-0"))
    page = new_page()
    open_live(page, service)
    link = page.locator(f'#open a[href="/events/{event}"]').first
    updates: list[Route] = []

    def held() -> bool:
        """Whether a request for an update is held. The first may be the one that the page sends when its stream is open."""
        page.wait_for_timeout(CHECK_EVERY_MS)  # meanwhile Playwright calls what is routed
        return bool(updates)

    page.route(service.url + "/", lambda route: updates.append(route))
    service.schedule("blog/db")
    until(held)
    page.evaluate(MARK_A_HANDLED_BODY)
    link.hover()
    page.mouse.down()
    updates[0].continue_()
    page.locator("html[data-handled]").wait_for(state="attached")
    page.mouse.up()
    expect(page).to_have_url(f"{service.url}/events/{event}")


def test_a_field_in_use_keeps_its_text(service: RunningService, new_page: NewPage) -> None:
    """The page says that the part has changed."""
    event = first_event(service.schedule("shop/web-0"))
    service.post(f"/v1/events/{event}/approve")
    service.service.ticker.advance(1)
    service.post(f"/v1/orders/{event}/start")
    page = new_page()
    open_live(page, service, f"/events/{event}")
    page.get_by_label("Reason").fill("the fan")
    service.post(f"/v1/orders/{event}/finish", {})
    expect(page.locator("#state .status")).to_have_text("Completed")
    expect(page.locator("#live")).to_contain_text("has changed")
    expect(page.locator("#order.changed")).to_be_visible()
    expect(page.get_by_label("Reason")).to_have_value("the fan")
    page.get_by_label("Reason").blur()
    expect(page.locator("#order:not(.changed)")).to_contain_text("done")


def test_a_failed_update_is_shown(service: RunningService, new_page: NewPage) -> None:
    """The page says the status instead of Live, until an update succeeds."""
    page = new_page(expect=("503",))
    open_live(page, service)

    def busy(route: Route) -> None:
        route.fulfill(status=503, body="busy")

    page.route(service.url + "/", busy)
    service.schedule("shop/web-0")
    expect(page.locator("#live.lost")).to_contain_text("could not be updated (503)")
    page.unroute(service.url + "/", busy)
    service.schedule("blog/db")
    expect(page.locator("#live:not(.lost)")).to_contain_text("Live")
    expect(page.locator("#counts")).to_contain_text("2 scheduled")


def test_frequent_changes_do_not_delay_an_update(service: RunningService, new_page: NewPage) -> None:
    """Changes every 50 ms, which is shorter than the delay of an update."""
    page = new_page()
    page.add_init_script(
        """window.EventSource = class extends EventTarget {
             static OPEN = 1; readyState = 1;
             constructor() {
               super();
               setTimeout(() => this.dispatchEvent(new Event("open")));
               setInterval(() => this.dispatchEvent(new Event("change")), 50);
             }
             close() {}
           };"""
    )
    open_live(page, service)
    service.schedule("shop/web-0")
    expect(page.locator("#counts")).to_contain_text("1 scheduled")
