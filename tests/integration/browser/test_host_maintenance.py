"""The maintenance of a host in a real Chromium without scripts, on a phone: planned, failed, retried, done."""

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from tests.integration.browser.conftest import NewPage, log_in
from tests.support.running_service import FLEET, RunningService, running_service

HOSTS = "".join(f'\n[[hosts]]\nname = "{name}"\n' for name in ("rack1-a", "rack1-b", "rack1-c"))
WIDTH = 390


def check(page: Page) -> None:
    """Assert that the page fits the phone and breaks no rule of accessibility."""
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def move(service: RunningService, to: str) -> None:
    """Report that the machines of all open event orders are on this host now."""
    service.service.ticker.advance(1)
    for order in service.get("/v1/orders?state=open")["items"]:
        service.post(f"/v1/orders/{order['id']}/finish", {"new_hosts": dict.fromkeys(order["machines"], to)})
    service.service.ticker.advance(1)


def test_a_host_is_evacuated_and_its_failed_work_is_retried(new_page: NewPage) -> None:
    """From the page of the host to its plan, its order, the failure on the first page, and the end."""
    with running_service(FLEET + HOSTS) as service:
        page = new_page(java_script_enabled=False, viewport={"width": WIDTH, "height": 900})
        log_in(page, service.url, service.token)
        page.goto(f"{service.url}/hosts/rack1-b")
        page.get_by_role("link", name="Plan for this host").click()
        page.get_by_label("Type", exact=True).select_option("Freeze")
        page.get_by_label("Work on the hosts").select_option("evacuate")
        page.get_by_role("button", name="Show preview").click()
        expect(page.get_by_role("main")).to_contain_text("Evacuation of 1 host")
        expect(page.get_by_role("main")).to_contain_text("shop/web-1: rack1-c")
        page.get_by_role("checkbox").check()  # its guests do not poll, so there is no notice
        page.get_by_role("button", name="Confirm").click()
        expect(page.locator("#hosts")).to_contain_text("rack1-b")
        page.locator("#hosts").get_by_role("link", name="rack1-b").click()
        expect(page.get_by_role("heading", name="Work on host rack1-b")).to_be_visible()
        move(service, "rack1-c")
        page.reload()
        page.get_by_role("button", name="Take the order").click()
        page.get_by_label("Reason").fill("it does not boot")
        page.get_by_role("button", name="Report a failure").click()
        expect(page.get_by_role("main")).to_contain_text("it does not boot")
        service.service.ticker.advance(1)
        page.goto(service.url)
        expect(page.locator("#failures")).to_contain_text("Work on host rack1-b")
        page.get_by_role("button", name="Retry: Work on host rack1-b").click()
        expect(page.locator(".done")).to_contain_text("can be taken again")
        page.goto(f"{service.url}/hosts/rack1-b")
        expect(page.locator("#facts")).to_contain_text("in-maintenance")
        page.locator("#orders").get_by_role("link").first.click()
        page.get_by_role("button", name="Take the order").click()
        page.get_by_role("button", name="Report as done").click()
        expect(page.locator(".done")).to_contain_text("The work on the host is done")
        service.service.ticker.advance(1)
        page.reload()
        page.locator(".crumbs").get_by_role("link").first.click()
        expect(page.locator("#state")).to_contain_text("Completed")
    with running_service(FLEET + HOSTS) as service:
        made = service.post(
            "/v1/maintenances",
            {"type": "Freeze", "targets": {"hosts": ["rack1-a", "rack1-b"]}, "host_mode": "evacuate"},
            201,
        )
        page = new_page(viewport={"width": WIDTH, "height": 900})
        log_in(page, service.url, service.token)
        for path in (
            f"/maintenances/{made['id']}",
            f"/orders/{made['hosts'][0]['order_id']}",
            "/hosts/rack1-a",
            "/plan",
        ):
            page.goto(service.url + path)
            check(page)
