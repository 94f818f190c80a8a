"""`forewarn db`: manage the database. The one noun that opens the store itself, also without a service."""

import getpass
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.confirmation import confirm
from forewarn.cli.formatting import full_time
from forewarn.cli.output import Output
from forewarn.cli.session import AsJson, group
from forewarn.core.errors import Refused
from forewarn.core.formatting import iso, names
from forewarn.core.model import Actor, OrderState

if TYPE_CHECKING:
    from forewarn.service.control import Control, ResumeEffects
    from forewarn.service.settings import Settings
    from forewarn.store.opening import Database

# How many events and orders `resume` lists.
MAX_LISTED = 500

app = group("db", "Manage the database.")

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
    """Show where the database is, its schema, and how much is in it."""
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
    """Copy the SQLite database in one consistent piece, also while the service runs; for PostgreSQL use pg_dump."""
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
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Revoke all tokens of the backup.", show_default=False)
    ] = False,
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Replace the SQLite database by a backup, whole or not at all, and hold it; the service must not be running.

    A token that was revoked after the backup is valid again, unless you use --revoke-tokens. Every login ends.

    For PostgreSQL use pg_restore into a new database: its nodes hold it and begin a new epoch by themselves."""
    from forewarn.core.store_hold import restored
    from forewarn.service.clock import SystemClock
    from forewarn.store.sqlite import file

    path = _file(store, config, "pg_restore --dbname=DATABASE FILE, into a new database")
    must_ask = path.exists() and not yes

    def ask() -> None:
        if must_ask:
            otherwise = "nothing was replaced: the question was not confirmed; --yes replaces without a question"
            confirm(f"Replace everything in {path} by {source}?", yes=False, otherwise=otherwise)

    change = restored(source.resolve(), now=SystemClock().now(), actor=_actor())
    tokens = file.restore(source, path, change, revoke_tokens=revoke_tokens, ask=ask)
    out = Output(as_json=as_json)
    data = {"backup": str(source), "database": str(path), "held": True, "valid_tokens": 0 if revoke_tokens else tokens}
    held = f"the store is held: nothing starts until you run '{_resume(store, config)}', which shows what would happen"
    out.result(data, f"{source} -> {path}", held)
    if revoke_tokens:
        out.aside(
            f"{tokens} token(s) of the backup are revoked; the service makes a new operator.token at its next start"
        )
    elif tokens:
        out.aside(
            f"{tokens} token(s) of the backup are valid, also those that were revoked later: restore again with"
            " --revoke-tokens to revoke all, or run `forewarn token revoke`"
        )


@app.command("hold")
def hold(
    reason: Annotated[str, typer.Option("--reason", help="Why, for the audit log.")] = "",
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Hold the store, also while the service runs: nothing starts and no order is handed out until it is resumed.

    Do this before you start the nodes after a recovery to a point in time: they take it for a failover."""
    with _control(store, config) as control:
        control.hold_store(reason, _actor())
    if as_json:
        Output(as_json=True).json({"held": True})
    else:
        print(f"the store is held: run '{_resume(store, config)}' to see what would happen, and to resume it")


@app.command("resume")
def resume(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask after showing what would happen.")] = False,
    store: Store = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what would start and which orders would be handed out, ask, and resume a held store."""
    out = Output(as_json=as_json)
    with _control(store, config) as control:
        effects = control.effects_of_resuming(MAX_LISTED)
        if effects.hold is None:
            raise Refused("the store is not held: there is nothing to resume")
        _show(out, effects)
        otherwise = "the store stays held: the question was not confirmed; --yes resumes without a question"
        confirm("Resume the store?", yes=yes, otherwise=otherwise)
        control.resume_store(effects.hold.held, _actor())
    if not as_json:
        print("the store is resumed")


def _show(out: Output, effects: "ResumeEffects") -> None:
    import msgspec

    from forewarn.operator.api.views import resume_effects_out

    if out.as_json:
        out.json(msgspec.to_builtins(resume_effects_out(effects)))
        return
    hold = effects.hold
    if hold is not None:
        out.say(f"held since {full_time(iso(hold.held))}: {hold.detail}")
    starts = [(e.id, e.type, e.scope, names(e.resources)) for e in effects.starts]
    out.say(f"{len(starts)} event(s) would start at once")
    if starts:
        out.table(("event", "type", "scope", "machines"), starts)
    for state, meaning in (
        (OrderState.OPEN, "open order(s) would be handed out"),
        (
            OrderState.RUNNING,
            "running order(s): the ticker asks the executors; unknown ones are left in doubt or, if repeatable, begin again",
        ),
    ):
        found = [(o.id, e.type, e.scope, names(e.resources), o.node) for o, e in effects.orders if o.state is state]
        found += [(o.id, m.type, "", f"host {o.host}", o.node) for o, m in effects.host_orders if o.state is state]
        out.say(f"{len(found)} {meaning}")
        if found:
            out.table(("order", "type", "scope", "machines", "taken by"), found)
    if effects.more:
        out.say("and more than are listed here")


def _resume(store: str | None, config: Path | None) -> str:
    """Return the command that resumes the store, with the options that name the store."""
    named = [f" --store {shlex.quote(store)}"] if store is not None else []
    named += [f" --config {shlex.quote(str(config))}"] if config is not None else []
    return f"forewarn db resume{''.join(named)}"


def _actor() -> Actor:
    """Return who runs this command, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name
        user = str(os.getuid())
    return Actor("forewarn db", f"{user}@{socket.gethostname()}")


@contextmanager
def _control(store: str | None, config: Path | None) -> Iterator["Control"]:
    """Open the store, also beside a running service, and yield its use cases."""
    from forewarn.app.service import new_id
    from forewarn.service.clock import Clock, KeptClock, clock_for
    from forewarn.service.control import Control
    from forewarn.store import SharedStore
    from forewarn.store.opening import open_database, open_store

    loaded = _settings(store, config)
    open_database(loaded.store_direct or loaded.store_url).describe()  # refuses a file that does not exist
    opened = open_store(loaded.store_url, direct=loaded.store_direct, connections=1)
    try:
        # As the service does at its start. Only a running service knows how far its manual or faster clock is ahead.
        clock: Clock = (
            KeptClock(opened.now)
            if isinstance(opened, SharedStore)
            else clock_for(loaded.clock, floor=opened.last_change())
        )
        yield Control(opened, clock, new_id=new_id, order_timeout_s=loaded.order_timeout_s)
    finally:
        opened.close()


def _database(store: str | None, config: Path | None) -> "Database":
    from forewarn.store.opening import open_database

    loaded = _settings(store, config)
    return open_database(loaded.store_direct or loaded.store_url)


def _file(store: str | None, config: Path | None, instead: str) -> Path:
    """Return the file of the SQLite database; `instead` is the command to suggest for PostgreSQL."""
    from forewarn.store.opening import store_file

    return store_file(_settings(store, config).store_url, instead)


def _settings(store: str | None, config: Path | None) -> "Settings":
    from forewarn.service import settings

    return settings.load({"store": store}, os.environ, config)
