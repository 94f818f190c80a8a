"""`forewarn db`: look after the embedded database. The one noun that opens the store itself, also without a service."""

import os
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.desk import AsJson, group
from forewarn.cli.output import Out
from forewarn.core.errors import InvalidSettings

app = group("db", "Look after the embedded database.")

Config = Annotated[
    Path | None, typer.Option("--config", envvar="FOREWARN_CONFIG", help="A TOML file of settings.", show_default=False)
]
Store = Annotated[
    str | None,
    typer.Option("--store", help="`sqlite:PATH` or `memory:` [default: a file in the user's state directory]"),
]


@app.command("status")
def status(store: Store = None, config: Config = None, as_json: AsJson = False) -> None:
    """Where the database is, its schema, and how much is in it."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    facts = [("database", str(path)), *sqlite_file.describe(path)]
    if as_json:
        Out(as_json=True).json({name.replace(" ", "_"): value for name, value in facts})
        return
    for name, value in facts:
        print(f"{name:<10} {value}")


@app.command("migrate")
def migrate(store: Store = None, config: Config = None, as_json: AsJson = False) -> None:
    """Bring the database up to this version's schema; nothing happens when it is there already."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    steps = list(sqlite_file.migrate_file(path))
    if as_json:
        Out(as_json=True).json({"database": str(path), "applied": steps, "schema": sqlite_file.SCHEMA_VERSION})
        return
    for step in steps:
        print(f"applied {step}")
    print(f"{path} has schema {sqlite_file.SCHEMA_VERSION}")


@app.command("backup")
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Copy the database in one consistent piece, also while the service runs."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    sqlite_file.backup(path, target)
    size = target.stat().st_size
    if as_json:
        Out(as_json=True).json({"database": str(path), "backup": str(target), "bytes": size})
    else:
        print(f"{path} -> {target} ({size:,} bytes)")


@app.command("restore")
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A backup made by `forewarn db backup`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before replacing what is there.")] = False,
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Replace the database by a backup, whole or not at all; the service must not be running."""
    from forewarn.store import sqlite_file

    path = _database(store, config)
    if path.exists() and not yes:
        typer.confirm(f"Replace everything in {path} by {source}?", abort=True, err=as_json)
    sqlite_file.restore(source, path)
    if as_json:
        Out(as_json=True).json({"backup": str(source), "database": str(path)})
    else:
        print(f"{source} -> {path}")


def _database(store: str | None, config: Path | None) -> Path:
    from forewarn import settings

    path = settings.store_path(settings.load({"store": store}, os.environ, config))
    if path is None:
        raise InvalidSettings("store: a memory: store has no file; name one with --store sqlite:PATH")
    return path
