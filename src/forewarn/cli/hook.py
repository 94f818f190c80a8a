"""`forewarn hook`: messages to other programs about what happens. A hook's secret is shown once, on creation or rotation."""

from datetime import datetime
from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.formatting import full_time, when
from forewarn.cli.options import seconds
from forewarn.cli.session import Cursor, Limit, Match, Session, command, group
from forewarn.core.hooks import ALL_KINDS, USUAL_KINDS
from forewarn.core.operator_model import HookShape

app = group("hook", "Send messages to other programs: webhooks, Slack, Teams.")

HookArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The hook's id, or its first 8 characters or more.",
        show_default=False,
        autocompletion=completion.hooks,
    ),
]
USUAL = f"{','.join(USUAL_KINDS)}; with --scope without ended"
ON_HELP = f"What to send, separated by commas: {', '.join(ALL_KINDS)} [default: {USUAL}]"
COLUMNS = ("id", "state", "scope", "url", "on", "shape", "last delivered", "error")
DELIVERY_COLUMNS = ("entry", "type", "delivered", "status", "attempts", "at", "took", "error")


@command(app, "create")
def create(
    session: Session,
    url: Annotated[str, typer.Option(help="Where to send messages, https://HOST/PATH.", show_default=False)],
    scope: Annotated[
        str | None,
        typer.Option(
            help="Only what happens in this scope. [default: the whole fleet]", autocompletion=completion.scopes
        ),
    ] = None,
    on: Annotated[str | None, typer.Option(metavar="KINDS", help=ON_HELP)] = None,
    shape: Annotated[HookShape, typer.Option(help="The form of the messages.")] = HookShape.CLOUDEVENTS,
) -> None:
    """Create a hook and print its secret, which signs the messages. The secret cannot be printed again."""
    kinds = [kind.strip() for kind in (on or "").split(",") if kind.strip()]
    body = {"url": url, "scope": scope or "", "on": kinds, "shape": shape.value}
    _show_secret(session, session.api.post("/v1/hooks", body, creating=True))


@command(app, "list")
def list_hooks(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List the hooks without their secrets."""
    page = session.api.page("/v1/hooks", {"q": match}, limit=limit, cursor=cursor)
    ids = session.out.id_texts(hook["id"] for hook in page["items"])
    session.show_page(page, COLUMNS, lambda hooks: [(ids[hook["id"]], *_row(hook)) for hook in hooks], empty="no hooks")


@command(app, "show")
def show(session: Session, hook: HookArgument) -> None:
    """Show a hook without its secret: what it gets, how far it is, and why it fails."""
    found, now = session.api.get(session.path_to("hook", hook)), session.now()
    facts: list[tuple[str, object]] = [
        ("id", found["id"]),
        ("state", found["state"]),
        ("url", found["url"]),
        ("scope", found["scope"] or "all"),
        ("on", " ".join(found["on"])),
        ("shape", found["shape"]),
        ("created", f"{when(found['created'], now)} by {found['created_by']}"),
        ("last delivered", when(found["delivered"], now) or "nothing yet"),
        ("next entry", f"{found['cursor'] + 1} or later"),
    ]
    if found["failures"]:
        facts.append(("failing since", f"{when(found['failing_since'], now)}, {found['failures']} attempt(s)"))
        facts.append(("error", found["error"]))
    if found["next_attempt"]:
        facts.append(("next attempt", when(found["next_attempt"], now)))
    if found["disabled"]:
        facts.append(("disabled", f"{when(found['disabled'], now)}; `forewarn hook enable` sends what has waited"))
    if found["gap"]:
        facts.append(("gap", f"entries {_gap(found)} were deleted before they could be delivered"))
    if found["old_secrets_until"] and datetime.fromisoformat(found["old_secrets_until"]) > datetime.fromisoformat(now):
        facts.append(("old secret", f"signs too until {when(found['old_secrets_until'], now)}"))
    session.out.facts(found, facts)


@command(app, "test")
def test(session: Session, hook: HookArgument) -> None:
    """Send a test message now, and say how the receiver answered."""
    hook_id = session.id_of("hook", hook)
    result = session.api.post(path_of("hooks", hook_id, "test"))
    if not result["delivered"]:
        if session.out.as_json:
            session.out.json(result)
        raise Failed(f"hook {hook_id}: {result['error']}")
    session.out.result(result, f"delivered: the receiver answered {result['status']} after {result['took_ms']} ms")


@command(app, "deliveries")
def deliveries(session: Session, hook: HookArgument, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List the last attempts to deliver entries of the audit log, newest entry first."""
    page = session.api.page(session.path_to("hook", hook, "deliveries"), {}, limit=limit, cursor=cursor)
    session.show_page(
        page, DELIVERY_COLUMNS, lambda items: [_delivery_row(item) for item in items], empty="no deliveries yet"
    )


@command(app, "replay")
def replay(
    session: Session,
    hook: HookArgument,
    from_entry: Annotated[
        int, typer.Option("--from", metavar="ENTRY", min=1, help="An entry of the audit log.", show_default=False)
    ],
) -> None:
    """Send this entry and all later ones again. An entry later than the next one skips the entries before it."""
    found = session.api.post(session.path_to("hook", hook, "replay"), {"from_entry": from_entry})
    session.out.result(found, f"hook {found['id']} goes on with entry {from_entry}")


@command(app, "rotate")
def rotate(
    session: Session,
    hook: HookArgument,
    keep: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the old secret signs too, besides the new one.")
    ] = "24h",
) -> None:
    """Give a hook a new secret and print it. Until the old one ends, each message has a signature of both."""
    body = {"keep_s": seconds("--keep", keep)}
    _show_secret(session, session.api.post(session.path_to("hook", hook, "rotate"), body))


@command(app, "enable")
def enable(session: Session, hook: HookArgument) -> None:
    """Enable a hook that was disabled, or let one that fails try again now. It sends everything that has waited."""
    found = session.api.post(session.path_to("hook", hook, "enable"))
    session.out.result(found, f"hook {found['id']} is enabled")


@command(app, "delete")
def delete(session: Session, hook: HookArgument, yes: Yes = False) -> None:
    """Delete a hook with its deliveries."""
    hook_id = session.id_of("hook", hook)
    confirm(f"Delete hook {hook_id}?", yes=yes, otherwise="nothing is deleted")
    session.api.delete(path_of("hooks", hook_id))
    session.out.result({"id": hook_id}, f"hook {hook_id} is deleted")


def _show_secret(session: Session, hook: Json) -> None:
    if session.out.as_json:
        session.out.json(hook)
        return
    session.out.aside(f"hook {hook['id']}; give this secret to the receiver: it is not shown again")
    print(hook["secret"])


def _gap(hook: Json) -> str:
    return f"{hook['gap']['after'] + 1} to {hook['gap']['until']}"


def _row(hook: Json) -> tuple[object, ...]:
    gap = f"entries {_gap(hook)} are lost" if hook["gap"] else ""
    return (
        hook["state"],
        hook["scope"] or "all",
        hook["url"],
        ",".join(hook["on"]),
        hook["shape"],
        full_time(hook["delivered"]) or "nothing yet",
        "; ".join(text for text in (hook["error"], gap) if text),
    )


def _delivery_row(delivery: Json) -> tuple[object, ...]:
    return (
        delivery["entry"],
        delivery["type"],
        delivery["delivered"],
        delivery["status"] or "",
        delivery["attempts"],
        full_time(delivery["at"]),
        f"{delivery['took_ms']} ms",
        delivery["error"],
    )
