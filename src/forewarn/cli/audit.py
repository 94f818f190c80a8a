"""`forewarn audit`: who changed what, when and from where."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from forewarn.cli.client import Client, Json
from forewarn.cli.formatting import full_time
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.errors import Invalid, Refused
from forewarn.core.formatting import action_by
from forewarn.core.model import AuditEntry
from forewarn.store.audit_chain import AuditChain, ChainCheck, ChainMark

app = group("audit", "Show who changed what, when and from where.")

EXPORT_PAGE = 500
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
    # Entries that were pruned meanwhile are missing at the start that was read before: read again.
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
    """Return the chain and the entries of an export."""
    try:
        lines = path.read_text("utf-8").splitlines()
        chain, *entries = [json.loads(line) for line in lines]
        return chain["chain"], iter(entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} cannot be read as an export of the audit: {error}") from None


def _chain_of(chain: Json) -> AuditChain:
    start, head = (ChainMark(int(chain[name]["id"]), str(chain[name]["hash"])) for name in ("start", "head"))
    return AuditChain(start, head)


def _entry_of(entry: Json) -> AuditEntry:
    return AuditEntry(**{**entry, "at": datetime.fromisoformat(entry["at"])})
