"""`forewarn token`: who may use the API. A token's secret is shown once, when it is made."""

from typing import Annotated

import typer

from forewarn.cli.client import path_of
from forewarn.cli.formatting import shown_time
from forewarn.cli.session import Cursor, Limit, Session, command, group
from forewarn.core.model import Role

app = group("token", "Tokens for people and programs.")

COLUMNS = ("id", "name", "role", "scopes", "created", "by")
ROLES = "viewer (reads), operator (everything), owner (restarts and redeploys, approves and cancels in its scopes)"


@command(app, "create")
def create(
    desk: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whose it is: the audit will name it.", show_default=False)
    ],
    role: Annotated[Role, typer.Option(help=ROLES, show_default=False)],
    scope: Annotated[list[str] | None, typer.Option(help="A scope of an owner's; may be repeated.")] = None,
) -> None:
    """Make a token and print it, this once: it is kept as a hash only."""
    made = desk.api.post("/v1/tokens", {"name": name, "role": role.value, "scopes": scope or []}, creating=True)
    if desk.out.as_json:
        desk.out.json(made)
        return
    desk.out.aside(f"token {made['id']} for {made['name']} ({made['role']}); keep it, it is not shown again:")
    print(made["token"])


@command(app, "list")
def list_tokens(desk: Session, limit: Limit = 50, cursor: Cursor = None) -> None:
    """The tokens there are, without their secrets."""
    page = desk.listed("/v1/tokens", {}, limit, cursor)
    if desk.out.as_json:
        desk.out.json(page)
        return
    rows = [
        (
            token["id"],
            token["name"],
            token["role"],
            " ".join(token["scopes"]),
            shown_time(token["created"]),
            token["created_by"],
        )
        for token in page["items"]
    ]
    desk.out.table(COLUMNS, rows, empty="no tokens")
    desk.more(page)


@command(app, "revoke")
def revoke(
    desk: Session, token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)]
) -> None:
    """Take a token back: it opens nothing from now on."""
    desk.api.delete(path_of("tokens", token))
    if desk.out.as_json:
        desk.out.json({"id": token})
    else:
        desk.out.say(f"token {token} is revoked")
