"""`forewarn audit`: who did what, when and from where."""

from forewarn.cli.formatting import Json, deed, shown_time
from forewarn.cli.session import Cursor, Limit, Session, command, group

app = group("audit", "Who did what, when and from where.")

COLUMNS = ("at", "who", "action", "scope", "event", "maintenance", "detail", "from")


def row(entry: Json) -> tuple[object, ...]:
    return (
        shown_time(entry["at"]),
        entry["who"],
        entry["action"],
        entry["scope"],
        entry["event_id"],
        entry["maintenance_id"],
        entry["detail"],
        entry["origin"],
    )


def line(entry: Json) -> str:
    """One change in one line."""
    where = " ".join(text for text in (entry["scope"], entry["event_id"] or entry["maintenance_id"]) if text)
    detail = f": {entry['detail']}" if entry["detail"] else ""
    action = entry["action"].removesuffix(" by operator")
    return f"{shown_time(entry['at'])} {deed(f'{action} {where}'.rstrip(), entry['who'])}{detail}"


@command(app, "list")
def list_audit(desk: Session, limit: Limit = 50, cursor: Cursor = None) -> None:
    """The newest entries first; nothing is ever changed or taken out of it before its time."""
    page = desk.listed("/v1/audit", {}, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    desk.out.table(COLUMNS, [row(entry) for entry in page["items"]], empty="nothing happened yet")
    desk.more(page)
