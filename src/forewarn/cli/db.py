"""`forewarn db`: look after the database. The one noun that opens the store itself, also without a service."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.output import Output
from forewarn.cli.session import AsJson, group

if TYPE_CHECKING:
    from forewarn.service.settings import Settings
    from forewarn.store.opening import Database

app = group("db", "Look after the database.")

Config = Annotated[
    Path | None, typer.Option("--config", envvar="FOREWARN_CONFIG", help="A TOML file of settings.", show_default=False)
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="`sqlite:PATH`, `postgresql://USER@HOST/DATABASE` or `memory:` [default: a file in the user's state directory]",
    ),
]


@app.command("status")
def status(store: Store = None, config: Config = None, as_json: AsJson = False) -> None:
    """Where the database is, its schema, and how much is in it."""
    database = _database(store, config)
    facts = [("database", database.name), *database.describe()]
    data = {name.replace(" ", "_"): value for name, value in facts}
    Output(as_json=as_json).result(data, *(f"{name:<10} {value}" for name, value in facts))


@app.command("migrate")
def migrate(store: Store = None, config: Config = None, as_json: AsJson = False) -> None:
    """Bring the database up to this version's schema; nothing happens when it is there already."""
    database = _database(store, config)
    steps = database.migrate()
    data = {"database": database.name, "applied": steps, "schema": database.newest_schema}
    lines = [*(f"applied {step}" for step in steps), f"{database.name} has schema {database.newest_schema}"]
    Output(as_json=as_json).result(data, *lines)


@app.command("backup")
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Copy the embedded database in one consistent piece, also while the service runs; for PostgreSQL use pg_dump."""
    from forewarn.store.sqlite import file

    path = _file(store, config, "pg_dump --format=custom --file=FILE DATABASE")
    file.backup(path, target)
    size = target.stat().st_size
    data = {"database": str(path), "backup": str(target), "bytes": size}
    Output(as_json=as_json).result(data, f"{path} -> {target} ({size:,} bytes)")


@app.command("restore")
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A backup made by `forewarn db backup`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before replacing what is there.")] = False,
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Replace the embedded database by a backup, whole or not at all; the service must not be running.

    For PostgreSQL use pg_restore into a new database: its nodes begin a new epoch by themselves."""
    from forewarn.store.sqlite import file

    path = _file(store, config, "pg_restore --dbname=DATABASE FILE, into a new database")
    if path.exists() and not yes:
        typer.confirm(f"Replace everything in {path} by {source}?", abort=True, err=as_json)
    file.restore(source, path)
    Output(as_json=as_json).result({"backup": str(source), "database": str(path)}, f"{source} -> {path}")


def _database(store: str | None, config: Path | None) -> "Database":
    from forewarn.store.opening import open_database

    loaded = _settings(store, config)
    return open_database(loaded.store_direct or loaded.store_url)


def _file(store: str | None, config: Path | None, instead: str) -> Path:
    """Return the file of the embedded database; `instead` is the command to suggest for PostgreSQL."""
    from forewarn.store.opening import store_file

    return store_file(_settings(store, config).store_url, instead)


def _settings(store: str | None, config: Path | None) -> "Settings":
    from forewarn.service import settings

    return settings.load({"store": store}, os.environ, config)
