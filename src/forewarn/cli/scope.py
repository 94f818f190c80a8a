"""`forewarn scope`: the settings of scopes, and where their documents stand."""

from typing import Annotated, Any

import typer

from forewarn.cli.client import Failed, path_of
from forewarn.cli.formatting import Json
from forewarn.cli.session import Cursor, Limit, Session, command, group, usage
from forewarn.core.durations import duration_text, parse_duration
from forewarn.core.errors import Invalid
from forewarn.core.model import ApprovalMode, EventType, ScopeKind

app = group("scope", "The scopes and their settings.")

COLUMNS = ("scope", "kind", "approval", "enabled", "epoch", "incarnation", "notice")
SETTINGS = (
    "kind",
    "approval",
    "approve_user_events",
    "max_user_operations",
    "terminate_notice_s",
    "minimum_notice_s",
)

Name = Annotated[str, typer.Argument(metavar="SCOPE", help="A scope's name.", show_default=False)]


@command(app, "list")
def list_scopes(desk: Session, limit: Limit = 50, cursor: Cursor = None) -> None:
    """Every scope, by name."""
    page = desk.listed("/v1/scopes", {}, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    desk.out.table(COLUMNS, [_row(scope) for scope in page["items"]], empty="no scopes")
    desk.more(page)


@command(app, "show")
def show(desk: Session, scope: Name) -> None:
    """One scope: settings, enabled or not, epoch, incarnation."""
    _show(desk, desk.api.get(path_of("scopes", scope)))


@command(app, "set")
def set_scope(
    desk: Session,
    scope: Name,
    kind: Annotated[ScopeKind | None, typer.Option(help="What kind of scope; a new one needs it.")] = None,
    approval: Annotated[ApprovalMode | None, typer.Option(help="Whose approval brings an event forward.")] = None,
    approve_user_events: Annotated[
        bool | None, typer.Option(help="Restarts and redeploys asked for by users start at once.")
    ] = None,
    max_user_operations: Annotated[
        int | None, typer.Option(help="How many of those may be open at once; 0 is no limit.")
    ] = None,
    terminate_notice: Annotated[
        str | None, typer.Option(help="Notice of a Terminate, 5m to 15m.", metavar="DURATION")
    ] = None,
    minimum_notice: Annotated[
        list[str] | None,
        typer.Option(
            help="More notice for a type, like Reboot=30m; Reboot= for the protocol's again. May be repeated."
        ),
    ] = None,
) -> None:
    """Change what is named and leave the rest; a scope that is not there is made."""
    settings = _settings(desk, scope, new=kind is not None)
    said = {
        "kind": kind,
        "approval": approval,
        "approve_user_events": approve_user_events,
        "max_user_operations": max_user_operations,
        "terminate_notice_s": None if terminate_notice is None else _seconds("--terminate-notice", terminate_notice),
    }
    settings |= {key: value for key, value in said.items() if value is not None}
    settings["minimum_notice_s"] = _notices(settings.get("minimum_notice_s", {}), minimum_notice or [])
    answer = desk.api.put(path_of("scopes", scope), settings)
    if not desk.out.as_json:
        desk.out.say(f"scope {scope} {'created' if answer.status == 201 else 'changed'}")
    _show(desk, answer.json())


def _settings(desk: Session, scope: str, *, new: bool) -> dict[str, Any]:
    try:
        there = desk.api.get(path_of("scopes", scope))
    except Failed as error:
        if error.http_status != 404:
            raise
        if not new:
            raise usage(f"there is no scope {scope!r} yet: say its --kind to make it") from None
        return {}
    return {key: there[key] for key in SETTINGS}


def _seconds(place: str, text: str) -> int:
    try:
        return parse_duration(text)
    except Invalid as error:
        raise usage(f"{place}: {error}") from None


def _notices(there: dict[str, int], said: list[str]) -> dict[str, int]:
    notices = dict(there)
    types = {each.lower(): each for each in EventType}
    for text in said:
        name, equals, duration = text.partition("=")
        if not equals or name.lower() not in types:
            raise usage(f"--minimum-notice: {text!r}: write a type and a duration, like Reboot=30m")
        notices.pop(types[name.lower()], None)
        if duration:
            notices[types[name.lower()]] = _seconds("--minimum-notice", duration)
    return notices


def _notice_text(scope: Json) -> str:
    return ", ".join(f"{name}={duration_text(seconds)}" for name, seconds in scope["minimum_notice_s"].items())


def _row(scope: Json) -> tuple[object, ...]:
    return (
        *(scope[key] for key in ("name", "kind", "approval", "enabled", "epoch", "incarnation")),
        _notice_text(scope),
    )


def _show(desk: Session, scope: Json) -> None:
    if desk.out.as_json:
        desk.out.json(scope)
        return
    desk.out.facts(
        [
            ("scope", scope["name"]),
            ("kind", scope["kind"]),
            ("approval", scope["approval"]),
            ("approve user events", scope["approve_user_events"]),
            ("max user operations", scope["max_user_operations"] or "no limit"),
            ("terminate notice", duration_text(scope["terminate_notice_s"])),
            ("minimum notice", _notice_text(scope) or "the protocol's"),
            ("enabled", "yes" if scope["enabled"] else "no: none of its machines has asked for events lately"),
            ("epoch", scope["epoch"]),
            ("incarnation", scope["incarnation"]),
        ]
    )
