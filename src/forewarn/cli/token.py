"""`forewarn token`: the tokens of people and programs that use the API. A token's secret is shown once, on creation."""

from typing import Annotated

import typer

from forewarn.cli.client import Json, path_of
from forewarn.cli.formatting import full_time
from forewarn.cli.session import Cursor, Limit, Session, command, group
from forewarn.core.model import Role

app = group("token", "Create, list and revoke the tokens of people and programs.")

COLUMNS = ("id", "name", "role", "scopes", "created", "by")
ROLES = "viewer (reads), operator (does everything), or owner (in its scopes: reads, restarts, redeploys, approves, cancels)"


@command(app, "create")
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that the audit log shows.", show_default=False)],
    role: Annotated[Role, typer.Option(help=ROLES, show_default=False)],
    scope: Annotated[list[str] | None, typer.Option(help="A scope of an owner; may be repeated.")] = None,
) -> None:
    """Create a token and print it. It cannot be printed again: the service keeps only a hash."""
    token = session.api.post("/v1/tokens", {"name": name, "role": role.value, "scopes": scope or []}, creating=True)
    if session.out.as_json:
        session.out.json(token)
        return
    session.out.aside(f"token {token['id']} for {token['name']} ({token['role']}); keep it: it is not shown again")
    print(token["token"])


@command(app, "list")
def list_tokens(session: Session, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List the tokens without their secrets."""
    page = session.api.page("/v1/tokens", {}, limit=limit, cursor=cursor)
    session.show_page(page, COLUMNS, lambda tokens: [_row(token) for token in tokens], empty="no tokens")


@command(app, "revoke")
def revoke(
    session: Session, token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)]
) -> None:
    """Revoke a token: the service no longer accepts it."""
    session.api.delete(path_of("tokens", token))
    session.out.result({"id": token}, f"token {token} is revoked")


def _row(token: Json) -> tuple[object, ...]:
    return (
        token["id"],
        token["name"],
        token["role"],
        " ".join(token["scopes"]),
        full_time(token["created"]),
        token["created_by"],
    )
