"""`forewarn token`: the tokens of people and programs that use the API. A token's secret is shown once, on creation."""

from typing import Annotated

import typer

from forewarn.cli import completion
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.formatting import full_time, when
from forewarn.cli.options import seconds, usage
from forewarn.cli.session import MAX_LIST, Cursor, Limit, Match, Session, command, group
from forewarn.core.operator_model import Role

app = group("token", "Create, list and revoke the tokens of people and programs.")

TokenArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The token's id, its first characters, or its name.",
        show_default=False,
        autocompletion=completion.tokens,
    ),
]

COLUMNS = ("id", "name", "role", "scopes", "created", "by", "expires", "last used")
NOT_REVOKED = "nothing is revoked: the question was not confirmed; --yes revokes without a question"
ROLES = (
    "viewer (reads), operator (does everything), owner (in its scopes: reads, restarts, redeploys, approves, cancels,"
    " reschedules), or calendar (reads the calendar only)"
)


@command(app, "create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that the audit log shows.", show_default=False)],
    role: Annotated[Role, typer.Option(help=ROLES, show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="A scope of an owner or a calendar; may be repeated.", autocompletion=completion.scopes),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="The token expires after this time, like 30d. [default: never]"),
    ] = None,
) -> None:
    """Create a token and print it. It cannot be printed again: the service keeps only a hash."""
    if role is Role.OWNER and not scope:
        raise usage("--scope: a token with role owner needs a scope: add --scope SCOPE, once for each scope")
    wanted: dict[str, object] = {"name": name, "role": role.value, "scopes": scope or []}
    if expires is not None:
        wanted["valid_for_s"] = seconds("--expires", expires)
    token = session.api.post("/v1/tokens", wanted, creating=True)
    if session.out.as_json:
        session.out.json(token)
        return
    until = f" until {full_time(token['expires'])}" if token["expires"] else ""
    session.out.aside(
        f"token {token['id']} for {token['name']} ({token['role']}){until}; keep it: it is not shown again"
    )
    if token["role"] == Role.CALENDAR:
        session.out.aside(f"subscribe to {session.api.server.url}/v1/calendar.ics?token=TOKEN")
    print(token["token"])


@command(app, "list")
def list_tokens(session: Session, match: Match = None, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List the tokens without their secrets."""
    page = session.api.page("/v1/tokens", {"q": match}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda tokens: [_row(token) for token in tokens], empty="no tokens")


@command(app, "show")
def show(session: Session, token: TokenArgument) -> None:
    """Show a token without its secret: role, scopes, who created it, its end and its last use."""
    found, now = session.api.get(path_of("tokens", session.token_id(token))), session.now()
    created_by = f" by {found['created_by']}" if found["created_by"] else ""
    session.out.facts(
        found,
        [
            ("id", found["id"]),
            ("name", found["name"]),
            ("role", found["role"]),
            ("scopes", " ".join(found["scopes"]) or "all"),
            ("created", when(found["created"], now) + created_by),
            ("expires", when(found["expires"], now) or "never"),
            ("last used", when(found["last_used"], now) or "not yet"),
        ],
    )


@command(app, "revoke")
def revoke(
    session: Session,
    token: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="The token's id, its first characters, or its name.",
            show_default=False,
            autocompletion=completion.tokens,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Revoke every token except the one in use.", show_default=False)
    ] = False,
    yes: Yes = False,
) -> None:
    """Revoke a token: the service no longer accepts it, and its logins end. After a restore, revoke all."""
    if every == (token is not None):
        raise usage("name one token, or use --all")
    if token is not None:
        token_id = session.token_id(token)
        confirm(f"Revoke token {token}?", yes=yes, otherwise=NOT_REVOKED)
        session.api.delete(path_of("tokens", token_id))
        session.out.result({"id": token_id}, f"token {token_id} is revoked")
        return
    tokens = session.api.page("/v1/tokens", {}, limit=MAX_LIST)["items"]
    question = f"Revoke all {len(tokens)} token(s) except the one in use?"
    confirm(question, yes=yes, otherwise=NOT_REVOKED)
    revoked, kept = [], []
    for each in tokens:
        try:
            session.api.delete(path_of("tokens", each["id"]))
            revoked.append(each["id"])
        except Failed as error:
            if error.http_status != 409:
                raise
            kept.append(each["id"])
    in_use = [f"token {token_id} is in use by this command and stays valid" for token_id in kept]
    session.out.result({"revoked": revoked, "kept": kept}, f"{len(revoked)} token(s) are revoked", *in_use)


def _row(token: Json) -> tuple[object, ...]:
    return (
        token["id"],
        token["name"],
        token["role"],
        " ".join(token["scopes"]) or "all",
        full_time(token["created"]),
        token["created_by"],
        full_time(token["expires"]) or "never",
        full_time(token["last_used"]) or "not yet",
    )
