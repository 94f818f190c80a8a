"""Writes docs/reference from the code: settings.md from the Settings, cli.md from what each command says of itself.

A test compares the files with what this would write.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path

import typer
from typer.core import TyperGroup

from forewarn.cli.app import HELP_COLUMNS, app
from forewarn.core.durations import duration_text
from forewarn.settings import Settings

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
TARGET = FOLDER / "settings.md"
CLI_TARGET = FOLDER / "cli.md"

HEAD = """# Settings

Flags win over `FOREWARN_*` variables, these over the file given with `--config`, that over the defaults. An unknown
setting is an error. Durations are a number and a unit in quotes: `"90s"`, `"15m"`, `"24h"`, `"30d"`. This page is made
from the code by `scripts/reference.py`.
"""

CLI_HEAD = """# The command line

What `--help` says of every command. This page is made from the code by `scripts/reference.py`;
[operating](../guide/operating.md#the-command-line) shows the commands at work.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server is not reachable.
"""


def commands() -> Iterator[tuple[str, str]]:
    """Every command by its whole name, and its help."""
    todo: list[tuple[object, typer.Context | None, str]] = [(typer.main.get_command(app), None, "forewarn")]
    while todo:
        command, parent, name = todo.pop(0)
        context = typer.Context(command, parent=parent, info_name=name, terminal_width=HELP_COLUMNS - 2)  # type: ignore[arg-type]
        path = context.command_path
        yield path, context.command.get_help(context)
        if isinstance(command, TyperGroup):
            children = [(command.commands[each], context, each) for each in command.list_commands(context)]
            todo = [*children, *todo]


def cli_reference() -> str:
    parts = [CLI_HEAD]
    for path, told in commands():
        text = "\n".join(line.rstrip() for line in told.splitlines())
        parts.append(f"\n## {path}\n\n```\n{text}\n```\n")
    return "".join(parts)


def reference() -> str:
    parts = [HEAD]
    for each in fields(Settings):
        name = each.name.removesuffix("_s")
        default: object = each.default if each.default_factory is MISSING else each.default_factory()
        shown = duration_text(default) if isinstance(default, int) and each.name.endswith("_s") else str(default)
        if isinstance(default, tuple):
            shown = " ".join(default)
        if isinstance(default, bool):
            shown = str(default).lower()
        if each.name == "state_dir":
            shown = "$XDG_STATE_HOME/forewarn, else ~/.local/state/forewarn"
        told = f"default `{shown}`" if default not in ("", (), {}, None) else "not set by default"
        variable = f"FOREWARN_{name.upper()}"
        text = each.metadata["help"]
        parts.append(f"\n## {name}\n\n{text[0].upper()}{text[1:]}. In the environment `{variable}`; {told}.\n")
    return "".join(parts)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    TARGET.write_text(reference(), "utf-8")
    CLI_TARGET.write_text(cli_reference(), "utf-8")
