"""The commands: parse, call, print. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from forewarn import __version__
from forewarn.core.errors import ForewarnError, InvalidFleet, InvalidSettings

app = typer.Typer(
    name="forewarn",
    help="Machines learn of coming maintenance, prepare, and say go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # "[default: …]" and "[@INTERFACE]" are words here, not markup
)
db = typer.Typer(name="db", help="Look after the embedded database.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(db)

Config = Annotated[
    Path | None, typer.Option("--config", envvar="FOREWARN_CONFIG", help="A TOML file of settings.", show_default=False)
]
Store = Annotated[
    str | None,
    typer.Option("--store", help="`sqlite:PATH` or `memory:` [default: a file in the user's state directory]"),
]


def _version(asked: bool) -> None:
    if asked:
        print(f"forewarn {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    del version


@app.command()
def serve(
    config: Config = None,
    store: Store = None,
    fleet: Annotated[str | None, typer.Option(help="A fleet file (TOML) to apply at start.")] = None,
    prune: Annotated[
        bool | None, typer.Option("--prune", help="Remove what the fleet file does not state.", show_default=False)
    ] = None,
    clock: Annotated[
        str | None, typer.Option(help="`system`, `manual`, or a rate like `60x` [default: system]")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="`external`, `command` or `simulated` [default: external]")
    ] = None,
    guest: Annotated[
        list[str] | None,
        typer.Option(help="Where guests ask, HOST:PORT[@INTERFACE]; may be repeated [default: 127.0.0.1:8169]"),
    ] = None,
    allow_any_interface: Annotated[
        bool | None,
        typer.Option("--allow-any-interface", help="Allow a wildcard address for guests.", show_default=False),
    ] = None,
    operator: Annotated[
        str | None, typer.Option(help="Where operators ask, HOST:PORT [default: 127.0.0.1:8170]")
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option(help="The folder for the default store and orders under way.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="`debug`, `info`, `warning` or `error` [default: info]")] = None,
) -> None:
    """Run the service until SIGTERM; prints one line beginning with `ready` when everything listens."""
    from forewarn import logs, server, settings

    flags = {
        "store": store,
        "fleet": fleet,
        "prune": prune,
        "clock": clock,
        "executor": executor,
        "guest": guest or None,
        "allow_any_interface": allow_any_interface,
        "operator": operator,
        "state_dir": state_dir,
        "log_level": log_level,
    }
    loaded = settings.load(flags, os.environ, config)
    logs.set_up(loaded.log_level)
    server.serve(loaded, say=lambda line: print(line, flush=True))


@app.command(add_help_option=False)
def agent() -> None:
    """The agent of the machine this runs on: `forewarn agent --help`, the same as `forewarn-agent`."""


@db.command("status")
def db_status(store: Store = None, config: Config = None) -> None:
    """Where the database is, its schema, and how much is in it."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    for name, value in [("database", str(path)), *sqlite_file.describe(path)]:
        print(f"{name:<10} {value}")


@db.command("migrate")
def db_migrate(store: Store = None, config: Config = None) -> None:
    """Bring the database up to this version's schema; nothing happens when it is there already."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    steps = sqlite_file.migrate_file(path)
    for step in steps:
        print(f"applied {step}")
    print(f"{path} has schema {sqlite_file.SCHEMA_VERSION}")


@db.command("backup")
def db_backup(
    target: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    store: Store = None,
    config: Config = None,
) -> None:
    """Copy the database in one consistent piece, also while the service runs."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    sqlite_file.backup(path, target)
    print(f"{path} -> {target} ({target.stat().st_size:,} bytes)")


@db.command("restore")
def db_restore(
    source: Annotated[Path, typer.Argument(help="A backup made by `forewarn db backup`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before replacing what is there.")] = False,
    store: Store = None,
    config: Config = None,
) -> None:
    """Replace the database by a backup, whole or not at all; the service must not be running."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    if path.exists() and not yes:
        typer.confirm(f"Replace everything in {path} by {source}?", abort=True)
    sqlite_file.restore(source, path)
    print(f"{source} -> {path}")


def _database(store: str | None, config: Path | None) -> Path:
    from forewarn import settings

    path = settings.store_path(settings.load({"store": store}, os.environ, config))
    if path is None:
        raise InvalidSettings("store: a memory: store has no file; name one with --store sqlite:PATH")
    return path


def run() -> None:
    """Errors of ours end with one line that says what to do; wrong usage with 2, everything else with 1."""
    try:
        app()
    except (InvalidSettings, InvalidFleet) as error:
        _fail(error, 2)
    except ForewarnError as error:
        _fail(error, 1)


def _fail(error: ForewarnError, code: int) -> None:
    print(f"forewarn: {error}", file=sys.stderr)
    raise SystemExit(code)
