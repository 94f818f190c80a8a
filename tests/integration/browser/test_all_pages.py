"""Every page, in light and dark: axe-core finds no violation, the console has no errors, a phone does not scroll sideways."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from jinja2 import Environment
from playwright.sync_api import Page
from scripts.example_service import ExampleService, running_example
from scripts.screenshots import PAGES, SCHEMES, log_in, open_page
from starlette.routing import compile_path

from forewarn.operator.portal import app
from tests.integration.browser.conftest import NewPage

NAMES = tuple(PAGES)
QUARTERS = [NAMES[number::4] for number in range(4)]
# The rules of axe-core that look at colours: the schemes differ in nothing else.
COLOUR_RULES = {
    "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
    "resultTypes": ["violations"],
}
EXPECTED = ("400 (Bad Request)", "401 (Unauthorized)", "404 (Not Found)")


@pytest.fixture(scope="module")
def stage() -> Iterator[ExampleService]:
    with running_example() as running:
        yield running


@pytest.fixture(scope="module")
def demo() -> Iterator[ExampleService]:
    with running_example(demo=True) as running:
        yield running


def open_all(page: Page) -> None:
    page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")


def test_every_path_is_in_the_list_of_pages() -> None:
    """So the tests below check each page of the portal."""
    paths = [path.partition("?")[0] for path in PAGES.values()]
    for path, _ in app.PAGES:
        pattern, _, _ = compile_path(path)
        assert any(pattern.match(each) for each in paths), path


@pytest.mark.parametrize("names", QUARTERS, ids=["first quarter", "second quarter", "third quarter", "fourth quarter"])
def test_no_page_violates_a_rule_of_accessibility(
    stage: ExampleService, new_page: NewPage, names: tuple[str, ...]
) -> None:
    """axe-core's whole rule set in light, and its rules about colours in dark."""
    page = new_page(expect=EXPECTED)
    log_in(page, stage)
    for name in names:
        page.emulate_media(color_scheme="light")
        open_page(page, stage, name)
        open_all(page)
        found = [Axe().run(page)]
        page.emulate_media(color_scheme="dark")
        found.append(Axe().run(page, options=COLOUR_RULES))
        for each in found:
            assert each.response["passes"], f"{name}: no rule applied"
            assert each.violations_count == 0, f"{name}: {each.generate_report()}"


def test_the_guide_violates_no_rule_of_accessibility(demo: ExampleService, new_page: NewPage) -> None:
    """The demo's first page on a phone, in light and dark."""
    for scheme in SCHEMES:
        page = new_page(color_scheme=scheme, viewport={"width": 360, "height": 700})
        open_page(page, demo, "guide")
        open_all(page)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_page_scrolls_sideways_on_a_phone(
    stage: ExampleService, demo: ExampleService, new_page: NewPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 360 pixels everything fits or scrolls in a box of its own; the pages use every template."""
    rendered = set()
    load = Environment.get_template

    def record(self: Environment, name: str, *more: Any) -> Any:
        rendered.add(name)
        return load(self, name, *more)

    monkeypatch.setattr(Environment, "get_template", record)
    page = new_page(viewport={"width": 360, "height": 700}, expect=EXPECTED)
    log_in(page, stage)
    for name in NAMES:
        open_page(page, stage, name)
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
    open_page(page, demo, "guide")
    templates = {each.name for each in (files("forewarn.operator.portal") / "templates").iterdir()}
    assert templates - rendered == set()


def test_the_chart_has_a_text_alternative(stage: ExampleService, new_page: NewPage) -> None:
    """Each row has a title, and the table has the same events."""
    page = new_page()
    log_in(page, stage)
    rows = page.locator("svg.strip")
    assert rows.count() == page.locator("#as-table tbody tr").count() > 3
    titles = [rows.nth(n).locator("title").text_content() or "" for n in range(rows.count())]
    assert any("published" in each and "NotBefore" in each and "started" in each for each in titles)
