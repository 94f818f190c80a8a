"""`forewarn audit`: who changed what, when and from where."""

from forewarn.cli.client import Json
from forewarn.cli.formatting import full_time
from forewarn.cli.session import Cursor, Limit, Session, command, group
from forewarn.core.formatting import action_by

app = group("audit", "Show who changed what, when and from where.")

COLUMNS = ("at", "who", "action", "scope", "event", "maintenance", "detail", "from")


def line(entry: Json) -> str:
    """Return one change as one line."""
    subject = " ".join(text for text in (entry["scope"], entry["event_id"] or entry["maintenance_id"]) if text)
    detail = f": {entry['detail']}" if entry["detail"] else ""
    action = entry["action"].removesuffix(" by operator")
    return f"{full_time(entry['at'])} {action_by(f'{action} {subject}'.rstrip(), entry['who'])}{detail}"


@command(app, "list")
def list_audit(session: Session, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List the entries of the audit log, newest first."""
    page = session.api.page("/v1/audit", {}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda entries: [_row(entry) for entry in entries], empty="no entries")


def _row(entry: Json) -> tuple[object, ...]:
    keys = ("who", "action", "scope", "event_id", "maintenance_id", "detail", "origin")
    return full_time(entry["at"]), *(entry[key] for key in keys)
