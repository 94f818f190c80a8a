"""`forewarn audit`: who changed what, when and from where."""

import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.api import Json
from forewarn.cli.client import Client
from forewarn.cli.formatting import full_time
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.errors import Invalid, Refused
from forewarn.core.formatting import action_by
from forewarn.core.model import AuditEntry
from forewarn.store.audit_chain import AuditChain, ChainCheck, ChainMark

app = group("audit", "Show who changed what, when and from where.")

EXPORT_PAGE = 500
ENTRY_KEYS = {each.name for each in fields(AuditEntry)}
COLUMNS = ("at", "who", "action", "scope", "event", "maintenance", "detail", "from")


def line(entry: Json) -> str:
    """Return one change as one line."""
    subject = " ".join(text for text in (entry["scope"], entry["event_id"] or entry["maintenance_id"]) if text)
    detail = f": {entry['detail']}" if entry["detail"] else ""
    action = entry["action"].removesuffix(" by operator")
    return f"{full_time(entry['at'])} {action_by(f'{action} {subject}'.rstrip(), entry['who'])}{detail}"


@command(app, "list")
def list_audit(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List the entries of the audit log, newest first."""
    page = session.api.page("/v1/audit", {"q": match}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda entries: [_row(entry) for entry in entries], empty="no entries")


def _row(entry: Json) -> tuple[object, ...]:
    keys = ("who", "action", "scope", "event_id", "maintenance_id", "detail", "origin")
    return full_time(entry["at"]), *(entry[key] for key in keys)


@command(app, "head")
def head(session: Session) -> None:
    """Show the newest entry's hash. Note it elsewhere: `verify --head` then finds what was removed or replaced."""
    chain = session.api.get("/v1/audit/chain")
    if session.out.as_json:
        session.out.json(chain)
        return
    session.out.say(f"{chain['head']['hash'] or 'none'}  entry {chain['head']['id']}")


@command(app, "export")
def export(session: Session) -> None:
    """Print the whole audit as JSON, one entry per line and oldest first, after a line with the start and the head.

    `forewarn audit verify FILE` checks what was printed, without a server."""
    chain = session.api.get("/v1/audit/chain")
    print(json.dumps({"chain": chain}))
    for entry in _entries(session.api):
        print(json.dumps(entry))


@command(app, "verify")
def verify(
    session: Session,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="An export; without it, the server's audit.", show_default=False),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option("--head", help="A head that you noted earlier; it must be in the chain.", show_default=False),
    ] = None,
) -> None:
    """Check the hash chain of the audit: no entry was changed, removed, added or moved since it was written."""
    if head is not None and not head.strip():
        raise Invalid("--head is empty: give the head that `forewarn audit head` printed, or leave the option out")
    chain, entries = (
        _exported(file) if file is not None else (session.api.get("/v1/audit/chain"), _entries(session.api))
    )
    check = _checked(chain, entries, head)
    # If the service pruned entries after the start of the chain was read, they are missing: read everything again.
    while file is None and check.fault and (moved := session.api.get("/v1/audit/chain"))["start"] != chain["start"]:
        chain = moved
        check = _checked(chain, _entries(session.api), head)
    fault = check.fault
    if session.out.as_json:
        session.out.json(
            {"ok": not fault, "fault": fault, "checked": check.checked, "unchained": check.unchained, **chain}
        )
    if fault:
        raise Refused(f"the audit is not what was written: {fault}")
    if not session.out.as_json:
        session.out.say(
            f"{check.checked} entries are as they were written; the head is {chain['head']['hash'] or 'none'}"
        )
        if chain["start"]["id"]:
            session.out.say(
                f"the chain begins after entry {chain['start']['id']}; what was before is pruned or not chained"
                f" ({check.unchained} such entries)"
            )


def _checked(chain: Json, entries: Iterator[Json], head: str | None) -> ChainCheck:
    check = ChainCheck(_chain_of(chain), (head or "").strip().lower())
    for entry in entries:
        check.add(_entry_of(entry))
    check.finish()
    return check


def _entries(api: Client) -> Iterator[Json]:
    """Yield every entry, oldest first, page by page."""
    cursor = ""
    while True:
        page = api.get("/v1/audit/export", {"limit": EXPORT_PAGE, "cursor": cursor})
        yield from page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            return


def _exported(path: Path) -> tuple[Json, Iterator[Json]]:
    """Return the chain and the entries of an export; refuse the first line that is not as `export` prints it."""
    try:
        lines = path.read_text("utf-8").splitlines() or [""]
    except (OSError, ValueError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    read = []
    for number, text in enumerate(lines, 1):
        try:
            read.append(_exported_entry(text) if number > 1 else _exported_chain(text))
        except ValueError as error:
            reason = f"this is not JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
            raise Refused(f"{path}: line {number}: {reason}") from None
    return read[0], iter(read[1:])


def _exported_chain(text: str) -> Json:
    try:
        chain: Json = json.loads(text)["chain"]
        _chain_of(chain)
    except (ValueError, KeyError, TypeError):
        raise ValueError("this is not the first line of an export, which has the start and the head") from None
    return chain


def _exported_entry(text: str) -> Json:
    entry = json.loads(text)
    if not isinstance(entry, dict):
        raise ValueError("this is not an entry: it has no keys")
    if missing := sorted(ENTRY_KEYS - entry.keys()):
        raise ValueError(f"the entry has no {missing[0]!r}")
    if unknown := sorted(entry.keys() - ENTRY_KEYS):
        raise ValueError(f"{unknown[0]!r} is not a key of an entry")
    for key, value in entry.items():
        if type(value) is not (int if key == "id" else str):
            raise ValueError(f"{key}: {value!r} is not {'a whole number' if key == 'id' else 'text'}")
    _entry_of(entry)
    return entry


def _chain_of(chain: Json) -> AuditChain:
    start, head = (ChainMark(int(chain[name]["id"]), str(chain[name]["hash"])) for name in ("start", "head"))
    return AuditChain(start, head)


def _entry_of(entry: Json) -> AuditEntry:
    return AuditEntry(**{**entry, "at": datetime.fromisoformat(entry["at"])})
