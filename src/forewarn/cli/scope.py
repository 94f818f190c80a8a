"""`forewarn scope`: show scopes and change their settings."""

from typing import Annotated, Any

import typer

from forewarn.cli import completion
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.options import seconds, usage
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.durations import duration_text
from forewarn.core.model import ApprovalMode, EventType, ScopeKind

app = group("scope", "Show scopes and change their settings.")

COLUMNS = ("scope", "kind", "approval", "enabled", "epoch", "incarnation", "notice")
SETTINGS = (
    "kind",
    "approval",
    "approve_user_events",
    "max_user_operations",
    "terminate_notice_s",
    "minimum_notice_s",
    "windows",
    "approval_opens_window",
    "max_unavailable",
)

Name = Annotated[
    str,
    typer.Argument(metavar="SCOPE", help="A scope's name.", show_default=False, autocompletion=completion.scopes),
]


@command(app, "list")
def list_scopes(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List scopes by name."""
    page = session.api.page("/v1/scopes", {"q": match}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda scopes: [_row(scope) for scope in scopes], empty="no scopes")


@command(app, "show")
def show(session: Session, scope: Name) -> None:
    """Show a scope: its settings, whether it is enabled, its epoch and incarnation."""
    _show(session, session.api.get(path_of("scopes", scope)))


@command(app, "set")
def set_scope(
    session: Session,
    scope: Name,
    kind: Annotated[ScopeKind | None, typer.Option(help="The kind of scope; required for a new scope.")] = None,
    approval: Annotated[
        ApprovalMode | None, typer.Option(help="Whose approval starts an event before its NotBefore.")
    ] = None,
    approve_user_events: Annotated[
        bool | None, typer.Option(help="Whether restarts and redeploys by users start at once.")
    ] = None,
    max_user_operations: Annotated[
        int | None, typer.Option(help="How many restarts and redeploys by users may be open at once; 0 allows 500.")
    ] = None,
    terminate_notice: Annotated[
        str | None, typer.Option(help="The notice of a Terminate event, 5m to 15m.", metavar="DURATION")
    ] = None,
    minimum_notice: Annotated[
        list[str] | None,
        typer.Option(help="More notice for a type, like Reboot=30m; Reboot= restores the protocol's. May be repeated."),
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(
            help="The window in which maintenance starts; several if repeated, none if empty.",
            metavar="WINDOW",
            autocompletion=completion.windows,
        ),
    ] = None,
    approval_opens_window: Annotated[
        bool | None, typer.Option(help="Whether an approved event starts outside the windows of the scope too.")
    ] = None,
    max_unavailable: Annotated[
        str | None,
        typer.Option(help='How many machines maintenance may take down at once, like 2 or 10%; "" for any number.'),
    ] = None,
) -> None:
    """Change the settings named by options; create the scope if it does not exist."""
    settings = _settings(session, scope, new=kind is not None)
    given = {
        "kind": kind,
        "approval": approval,
        "approve_user_events": approve_user_events,
        "max_user_operations": max_user_operations,
        "windows": None if window is None else [name for name in window if name],
        "approval_opens_window": approval_opens_window,
        "max_unavailable": max_unavailable,
        "terminate_notice_s": None if terminate_notice is None else seconds("--terminate-notice", terminate_notice),
    }
    settings |= {key: value for key, value in given.items() if value is not None}
    settings["minimum_notice_s"] = _notices(settings.get("minimum_notice_s", {}), minimum_notice or [])
    response = session.api.put(path_of("scopes", scope), settings)
    if not session.out.as_json:
        session.out.say(f"scope {scope} {'created' if response.status == 201 else 'changed'}")
    changed = response.json()
    _show(session, changed)
    for warning in changed["warnings"] if not session.out.as_json else ():
        session.out.aside(f"! {warning}")


def _settings(session: Session, scope: str, *, new: bool) -> dict[str, Any]:
    """Return the current settings; none for a new scope, which is allowed only where `new` is set."""
    try:
        current = session.api.get(path_of("scopes", scope))
    except Failed as error:
        if error.http_status != 404:
            raise
        if not new:
            raise usage(f"there is no scope {scope!r}: add --kind to create it") from None
        return {}
    return {key: current[key] for key in SETTINGS}


def _notices(current: dict[str, int], options: list[str]) -> dict[str, int]:
    notices = dict(current)
    types = {each.lower(): each for each in EventType}
    for text in options:
        name, equals, duration = text.partition("=")
        if not equals or name.lower() not in types:
            raise usage(f"--minimum-notice: {text!r}: write a type and a duration, like Reboot=30m")
        notices.pop(types[name.lower()], None)
        if duration:
            notices[types[name.lower()]] = seconds("--minimum-notice", duration)
    return notices


def _notice_text(scope: Json) -> str:
    return ", ".join(f"{name}={duration_text(notice_s)}" for name, notice_s in scope["minimum_notice_s"].items())


def _row(scope: Json) -> tuple[object, ...]:
    return (
        *(scope[key] for key in ("name", "kind", "approval", "enabled", "epoch", "incarnation")),
        _notice_text(scope),
    )


def _show(session: Session, scope: Json) -> None:
    session.out.facts(
        scope,
        [
            ("scope", scope["name"]),
            ("kind", scope["kind"]),
            ("approval", scope["approval"]),
            ("approve user events", scope["approve_user_events"]),
            ("max user operations", scope["max_user_operations"] or "the general limit, 500"),
            ("terminate notice", duration_text(scope["terminate_notice_s"])),
            ("minimum notice", _notice_text(scope) or "the protocol's"),
            ("windows", ", ".join(scope["windows"]) or "none: maintenance starts at any time"),
            ("approval opens window", scope["approval_opens_window"]),
            ("max unavailable", scope["max_unavailable"] or "no limit"),
            ("enabled", "yes" if scope["enabled"] else "no: none of its machines has polled for events lately"),
            ("epoch", scope["epoch"]),
            ("incarnation", scope["incarnation"]),
        ],
    )
