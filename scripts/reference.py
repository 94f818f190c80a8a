"""Generate docs/reference/settings.md and docs/reference/cli.md from the code.

The settings come from `declared()`, the commands from their help texts. A test compares the files with the code.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field
from pathlib import Path
from textwrap import fill
from typing import Any

import typer
from typer.core import TyperGroup

from forewarn.cli.app import HELP_COLUMNS, build
from forewarn.core.durations import duration_text
from forewarn.service.settings import declared

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
TARGET = FOLDER / "settings.md"
CLI_TARGET = FOLDER / "cli.md"

# The longest line of a page, as tests/docs checks it.
COLUMNS = 120

HEAD = """# Settings

For operators who configure `forewarn serve`.
This page lists every setting; `scripts/reference.py` generates it from the code.

A setting can come from several places.
A command line flag wins over a `FOREWARN_*` environment variable.
The variable wins over the file given with `--config`, and the file wins over the default.

An unknown setting is an error; all errors are reported at once.
A duration is one or more numbers with units, the largest unit first, in quotes: `"90s"`, `"1h30m"`, `"30d"`.
"""

CLI_HEAD = """# The command line

For operators and testers who look up a command or an option.
This page shows the `--help` of every command; `scripts/reference.py` generates it from the code.
[Schedule and follow maintenance](../guide/operating.md#the-command-line) shows how to use the commands.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached.
"""


def commands() -> Iterator[tuple[str, str]]:
    """Every command by its whole name, and its help."""
    todo: list[tuple[object, typer.Context | None, str]] = [(typer.main.get_command(build()), None, "forewarn")]
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
    for path, help_text in commands():
        text = "\n".join(line.rstrip() for line in help_text.splitlines())
        parts.append(f"\n## {path}\n\n```\n{text}\n```\n")
    return "".join(parts)


def reference() -> str:
    parts = [HEAD]
    for flat_name, each in declared().items():
        name = flat_name.removesuffix("_s")
        help_text = each.field.metadata["help"]
        sentence = f"{help_text[0].upper()}{help_text[1:]}."
        lines = [f"- Environment: `FOREWARN_{name.upper()}`", f"- Default: {_default(flat_name, each.field)}"]
        if each.executor:
            key = each.field.name.removesuffix("_s")
            lines.append(f"- TOML: also `{key}` in the table `[{each.executor}]`")
        wrapped = fill(sentence, COLUMNS, break_long_words=False, break_on_hyphens=False)
        parts.append("\n".join([f"\n## {name}\n", f"{wrapped}\n", *lines, ""]))
    return "".join(parts)


def _default(name: str, field: Field[Any]) -> str:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if name == "state_dir":
        return "`$XDG_STATE_HOME/forewarn, else ~/.local/state/forewarn`"
    if default in ("", (), {}, None):
        return "not set"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int) and name.endswith("_s"):
        return f"`{duration_text(default)}`"
    return f"`{' '.join(default)}`" if isinstance(default, tuple) else f"`{default}`"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    TARGET.write_text(reference(), "utf-8")
    CLI_TARGET.write_text(cli_reference(), "utf-8")
