"""A live page in a real Chromium leaves whoever uses it in peace: focus, marked words, the button under the pointer."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.integration.browser.conftest import Visitors
from tests.integration.browser.people import log_in
from tests.support.running_service import RunningService, running_service


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def live(page: Page, service: RunningService, path: str = "/") -> None:
    log_in(page, service.url, service.token)
    page.goto(service.url + path)
    expect(page.locator("#live")).to_contain_text("Live")


def first_event(made: dict[str, list[dict[str, list[dict[str, str]]]]]) -> str:
    return made["waves"][0]["events"][0]["id"]


def test_the_focus_stays_on_what_has_no_id(service: RunningService, visitors: Visitors) -> None:
    """A link, the second of two alike, and a table's fold keep it through a change of their part."""
    event = first_event(service.schedule("shop/web-0"))
    page = visitors()
    live(page, service)
    links = page.locator(f'#open a[href="/events/{event}"]')
    page.get_by_text("The same as a table").click()
    for one in (links.nth(0), links.nth(1), page.locator("#as-table summary")):
        one.focus()
        before = page.locator("#as-table tbody tr").count()
        service.schedule("blog/db" if before % 2 else "shop/web-1")
        expect(page.locator("#as-table tbody tr")).to_have_count(before + 1)
        expect(one).to_be_focused()


def test_the_focus_goes_to_the_part_when_its_thing_is_gone(service: RunningService, visitors: Visitors) -> None:
    """Tab then goes on from there, not from the top."""
    event = first_event(service.schedule("shop/web-0"))
    page = visitors()
    live(page, service, f"/events/{event}")
    page.get_by_role("button", name="Approve").focus()
    service.post(f"/v1/events/{event}/cancel")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    expect(page.locator("#state")).to_be_focused()


def test_marked_words_stay_marked(service: RunningService, visitors: Visitors) -> None:
    """Their part waits, says that it has changed, and is shown anew when the mark is gone; the other parts go on."""
    service.schedule("shop/web-0")
    page = visitors()
    live(page, service)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('open-title'))")
    service.schedule("blog/db")
    expect(page.locator("#counts")).to_contain_text("2 scheduled")
    expect(page.locator("#live")).to_contain_text("has changed")
    expect(page.locator("#open.changed .what")).to_have_count(1)
    assert page.evaluate("String(getSelection())") == "Open events"
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#open:not(.changed) .what")).to_have_count(2)
    expect(page.locator("#live")).to_contain_text("Live")


def test_nothing_moves_while_the_pointer_is_over_a_button(service: RunningService, visitors: Visitors) -> None:
    """What is pressed is what was seen; once the pointer has gone the page catches up."""
    made = service.schedule("shop/web-0")
    page = visitors()
    live(page, service, f"/events/{first_event(made)}")
    page.get_by_role("button", name="Cancel").hover()
    place = page.get_by_role("button", name="Cancel").bounding_box()
    service.post(f"/v1/maintenances/{made['id']}/pause")
    expect(page.locator("#live")).to_contain_text("has changed")
    expect(page.locator("#state")).not_to_contain_text("the maintenance is paused")
    assert page.get_by_role("button", name="Cancel").bounding_box() == place
    page.mouse.move(1, 1)
    expect(page.locator("#state")).to_contain_text("the maintenance is paused")


def test_a_field_in_use_does_not_hide_that_its_part_has_changed(service: RunningService, visitors: Visitors) -> None:
    """What is typed stays, and it says that there is news."""
    event = first_event(service.schedule("shop/web-0"))
    service.post(f"/v1/events/{event}/approve")
    service.service.ticker.advance(1)
    service.post(f"/v1/orders/{event}/start")
    page = visitors()
    live(page, service, f"/events/{event}")
    page.get_by_label("What failed").fill("the fan")
    service.post(f"/v1/orders/{event}/finish", {})
    expect(page.locator("#state .status")).to_have_text("Completed")
    expect(page.locator("#live")).to_contain_text("has changed")
    expect(page.locator("#order.changed")).to_be_visible()
    expect(page.get_by_label("What failed")).to_have_value("the fan")
    page.get_by_label("What failed").blur()
    expect(page.locator("#order:not(.changed)")).to_contain_text("done")


def test_a_page_that_cannot_be_read_again_does_not_say_live(service: RunningService, visitors: Visitors) -> None:
    """It says what came instead, until it can."""
    page = visitors(expect=("503",))
    live(page, service)

    def busy(route: Route) -> None:
        route.fulfill(status=503, body="busy")

    page.route(service.url + "/", busy)
    service.schedule("shop/web-0")
    expect(page.locator("#live.lost")).to_contain_text("could not be read again (503)")
    page.unroute(service.url + "/", busy)
    service.schedule("blog/db")
    expect(page.locator("#live:not(.lost)")).to_contain_text("Live")
    expect(page.locator("#counts")).to_contain_text("2 scheduled")


def test_a_steady_stream_of_changes_does_not_put_a_look_off(service: RunningService, visitors: Visitors) -> None:
    """A change each 50 ms, closer than a look waits: the page follows all the same."""
    page = visitors()
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
    live(page, service)
    service.schedule("shop/web-0")
    expect(page.locator("#counts")).to_contain_text("1 scheduled")
