"""Options given twice or misspelt: an option that may be repeated keeps all values, and every other option is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from forewarn.cli.app import build
from tests.cli.command_line import USAGE, CommandLine


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of `forewarn`, groups included, with its whole name."""
    todo: list[tuple[str, Any]] = [("forewarn", typer.main.get_command(build()))]
    while todo:
        name, command = todo.pop()
        yield name, command
        if isinstance(command, TyperGroup):
            todo += [(f"{name} {each}", child) for each, child in command.commands.items()]


def options() -> Iterator[tuple[str, Any, Any]]:
    for name, command in commands():
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.multiple:
                yield name, command, parameter


def refusal(name: str, command: Any, arguments: list[str]) -> str:
    with pytest.raises(Exception, match="given twice") as refused:
        command.make_context(name, arguments)
    assert refused.type.__name__ == "UsageError", f"{name} {arguments}: {refused.value!r}"
    return str(refused.value)


def test_no_option_keeps_only_its_last_value() -> None:
    """An option with a value can be repeated, or giving it twice is an error that names it."""
    with_value = [(name, command, option) for name, command, option in options() if not option.is_flag]
    assert len(with_value) > 100
    for name, command, option in with_value:
        for spelling in option.opts:
            message = refusal(name, command, [spelling, "first", spelling, "second"])
            assert message == f"{option.opts[0]}: given twice; it takes one value"


def test_no_flag_is_switched_on_and_off() -> None:
    """A flag with an opposite is refused when both are given; any other flag means the same twice as once."""
    opposites = 0
    for name, command, flag in options():
        if flag.is_flag and flag.secondary_opts:
            message = refusal(name, command, [flag.opts[0], flag.secondary_opts[0]])
            assert message == f"{flag.opts[0]}: given twice; it takes one value"
            opposites += 1
    assert opposites > 0
    status = dict(commands())["forewarn status"]
    assert status.make_context("forewarn status", ["--json", "--json"]).params["as_json"] is True


@pytest.mark.parametrize(
    "command, arguments, suggestion",
    [
        ("forewarn", ["machne", "list"], "Did you mean 'machine'?"),
        ("forewarn machine", ["lst"], "Did you mean 'list'?"),
        ("forewarn machine list", ["--scpe", "shop"], "--scope"),
        ("forewarn serve", ["--log-levl", "debug"], "--log-level"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(command: str, arguments: list[str], suggestion: str) -> None:
    """An unknown command or option is refused with the nearest one that exists."""
    found = dict(commands())[command]
    with pytest.raises(Exception, match="No such") as refused:
        found.invoke(found.make_context(command, arguments))
    assert suggestion in refused.value.format_message()  # type: ignore[attr-defined]


def test_several_scopes_are_planned_together(cli: CommandLine) -> None:
    """--scope may be repeated, like --host: the plan contains every machine of all the scopes."""
    arguments = ["maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--scope", "db", "--dry-run"]
    plan = cli.json(*arguments)
    planned = {f"{e['scope']}/{name}" for wave in plan["waves"] for e in wave["events"] for name in e["resources"]}
    assert planned == {"shop/web-0", "shop/web-1", "shop/web-2", "db/db-0", "db/db-1"}
    assert cli.output(*arguments).startswith("Reboot of 5 machines in 2 scopes")


def test_an_update_domain_belongs_to_one_scope(cli: CommandLine) -> None:
    """--update-domain with two scopes is refused."""
    arguments = ["maintenance", "schedule", "--type", "Reboot", "--scope", "shop", "--scope", "db"]
    refused = cli.run(*arguments, "--update-domain", "1", "--dry-run")
    assert refused.returncode == USAGE
    assert "--update-domain: it needs exactly one --scope" in refused.stderr


def test_the_second_value_ends_the_command(cli: CommandLine) -> None:
    """The process ends with exit code 2 and names the option."""
    refused = cli.run("maintenance", "schedule", "--type", "Reboot", "--type", "Freeze", "--scope", "shop", "--dry-run")
    assert refused.returncode == USAGE
    assert "--type: given twice; it takes one value" in refused.stderr
