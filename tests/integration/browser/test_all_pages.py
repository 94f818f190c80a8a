"""Every page, in light and dark: axe-core finds nothing, the console is silent, a phone need not scroll sideways."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from jinja2 import Environment
from playwright.sync_api import Page
from scripts.example_service import ExampleService, running_example
from scripts.screenshots import PAGES, SCHEMES, Scheme, log_in, open_page
from starlette.routing import compile_path

from forewarn.operator.portal.app import LOOKS
from tests.integration.browser.conftest import Visitors

NAMES = tuple(PAGES)
HALF = len(NAMES) // 2
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
    for details in page.locator("details").all():
        details.evaluate("each => each.open = true")


def test_every_path_is_looked_at() -> None:
    """Each that can be asked for stands in the list of pages."""
    asked = [path.partition("?")[0] for path in PAGES.values()]
    for path, _ in LOOKS:
        pattern, _, _ = compile_path(path)
        assert any(pattern.match(each) for each in asked), path


@pytest.mark.parametrize("names", [NAMES[:HALF], NAMES[HALF:]], ids=["first half", "second half"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_page_violates_a_rule_of_accessibility(
    stage: ExampleService, visitors: Visitors, scheme: Scheme, names: tuple[str, ...]
) -> None:
    """axe-core's whole rule set, in the light and in the dark."""
    page = visitors(color_scheme=scheme, expect=EXPECTED)
    log_in(page, stage)
    for name in names:
        open_page(page, stage, name)
        open_all(page)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"


def test_the_guide_violates_no_rule_of_accessibility(demo: ExampleService, visitors: Visitors) -> None:
    """The demo's first page, in the light and in the dark, and on a phone."""
    for scheme in SCHEMES:
        page = visitors(color_scheme=scheme, viewport={"width": 360, "height": 700})
        open_page(page, demo, "guide")
        open_all(page)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_page_scrolls_sideways_on_a_phone(
    stage: ExampleService, demo: ExampleService, visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 360 pixels everything fits, or scrolls in a box of its own; and not one template was left out."""
    made = set()
    load = Environment.get_template

    def noted(self: Environment, name: str, *more: Any) -> Any:
        made.add(name)
        return load(self, name, *more)

    monkeypatch.setattr(Environment, "get_template", noted)
    page = visitors(viewport={"width": 360, "height": 700}, expect=EXPECTED)
    log_in(page, stage)
    for name in NAMES:
        open_page(page, stage, name)
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
    open_page(page, demo, "guide")
    templates = {each.name for each in (files("forewarn.operator.portal") / "templates").iterdir()}
    assert templates - made == set()


def test_the_picture_is_told_in_words_too(stage: ExampleService, visitors: Visitors) -> None:
    """Each strip has a title, and the same stands in a table."""
    page = visitors()
    log_in(page, stage)
    strips = page.locator("svg.strip")
    assert strips.count() == page.locator("#as-table tbody tr").count() > 3
    told = [strips.nth(n).locator("title").text_content() or "" for n in range(strips.count())]
    assert any("published" in each and "NotBefore" in each and "started" in each for each in told)
