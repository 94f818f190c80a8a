"""Compiled templates are shared by the portals of a process."""

from jinja2 import DictLoader, Environment

from forewarn.operator.portal.template_code import TemplateCode


def test_a_second_portal_uses_the_compiled_template() -> None:
    """Two environments with one cache have the same code, and each renders with its own globals."""
    code = TemplateCode()
    pages = []
    for site in ("north", "south"):
        environment = Environment(loader=DictLoader({"now": "{{ site }}"}), autoescape=True, bytecode_cache=code)
        environment.globals["site"] = site
        pages.append(environment.get_template("now"))
    assert [page.render() for page in pages] == ["north", "south"]
    assert pages[0].root_render_func.__code__ is pages[1].root_render_func.__code__


def test_a_changed_source_is_compiled_again() -> None:
    """Code of another source with the same name is never used."""
    code = TemplateCode()
    shown = [
        Environment(loader=DictLoader({"now": source}), autoescape=True, bytecode_cache=code)
        .get_template("now")
        .render()
        for source in ("before", "after")
    ]
    assert shown == ["before", "after"]
