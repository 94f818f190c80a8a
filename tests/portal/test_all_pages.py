"""Every page, in light and dark: axe-core finds nothing, the console is silent, a phone need not scroll sideways."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page
from scripts.screenshots import SCHEMES, Scheme, paths, visit
from scripts.staged import Stage, staged

from tests.portal.conftest import Visitors

NAMES = (
    "now", "scopes", "scope", "machines", "maintenances", "maintenance", "event", "event-failed", "event-ended", "orders",
    "history", "audit", "tokens", "plan", "looked", "error", "login",
)  # fmt: skip


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged(token_free=False) as running:
        yield running


def log_in(page: Page, stage: Stage) -> None:
    page.goto(f"{stage.url}/login")
    page.get_by_label("Token").fill(stage.token)
    page.get_by_role("button", name="Log in").click()


def test_every_page_is_looked_at(stage: Stage) -> None:
    """The pictures' list and the tests' list are one."""
    assert tuple(paths(stage)) == NAMES


@pytest.mark.parametrize("names", [NAMES[:8], NAMES[8:]], ids=["first half", "second half"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_page_violates_a_rule_of_accessibility(
    stage: Stage, visitors: Visitors, scheme: Scheme, names: tuple[str, ...]
) -> None:
    """axe-core's whole rule set; in the dark those about colours again, for nothing else is different there."""
    rules = (
        None if scheme == "light" else {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
    )
    page = visitors(color_scheme=scheme, expect=("404 (Not Found)",))
    log_in(page, stage)
    for name in names:
        visit(page, stage, name, paths(stage)[name])
        for details in page.locator("details").all():
            details.evaluate("each => each.open = true")
        found = Axe().run(page, options=rules)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"


def test_no_page_scrolls_sideways_on_a_phone(stage: Stage, visitors: Visitors) -> None:
    """At 360 pixels everything fits, or scrolls in a box of its own."""
    page = visitors(viewport={"width": 360, "height": 700}, expect=("404 (Not Found)",))
    log_in(page, stage)
    for name, path in paths(stage).items():
        visit(page, stage, name, path)
        for details in page.locator("details").all():
            details.evaluate("each => each.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name


def test_the_picture_is_told_in_words_too(stage: Stage, visitors: Visitors) -> None:
    """Each strip has a title, and the same stands in a table."""
    page = visitors()
    log_in(page, stage)
    strips = page.locator("svg.strip")
    assert strips.count() == page.locator("#as-table tbody tr").count() > 3
    told = [strips.nth(n).locator("title").text_content() or "" for n in range(strips.count())]
    assert any("published" in each and "NotBefore" in each and "started" in each for each in told)
