"""Shell completion of names and ids. It asks the server that the command would call, with the same settings.

Pressing Tab must never disturb: a completion takes a limited time and prints no error. A completion without an answer is empty.
"""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Thread

import typer

from forewarn.cli.api import Json
from forewarn.cli.client import PAGE, Client
from forewarn.cli.server_lookup import find_server

TIME_LIMIT_S = 1.5
# Shells evaluate what they are given: zsh would run a name like `$(reboot)`.
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
SAFE_DESCRIPTION = re.compile(r"[A-Za-z0-9._/ -]*")

# What to complete, and its description for the shells that show one.
Candidate = tuple[str, str]


def scopes(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ask(ctx, lambda api: ((scope["name"], scope["kind"]) for scope in _search(api, "scopes", incomplete)))


def machines(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    """Complete `scope/name`, and names alone, which commands take as well."""

    def ask(api: Client) -> Iterable[Candidate]:
        for machine in _search(api, "machines", incomplete):
            yield f"{machine['scope']}/{machine['name']}", machine["host"]
            if incomplete:
                yield machine["name"], f"in {machine['scope']}"

    return _ask(ctx, ask)


def hosts(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ask(
        ctx, lambda api: ((host["name"], f"{host['machines']} machines") for host in _search(api, "hosts", incomplete))
    )


def windows(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ask(ctx, lambda api: ((w["name"], f"{', '.join(w['when'])}") for w in _search(api, "windows", incomplete)))


def events(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ids(ctx, incomplete, "events", lambda event: f"{event['status']} {event['type']} in {event['scope']}")


def maintenances(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ids(ctx, incomplete, "maintenances", lambda maintenance: f"{maintenance['status']} {maintenance['type']}")


def orders(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ids(
        ctx,
        incomplete,
        "orders",
        lambda order: f"{order['state']} {order['type']} in {order['scope'] or order['host']}",
    )


def hooks(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    return _ids(ctx, incomplete, "hooks", lambda hook: f"{hook['state']} for {hook['scope'] or 'the whole fleet'}")


def tokens(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    """Complete the names of tokens, which commands take in place of ids."""
    return _ask(ctx, lambda api: ((token["name"], token["role"]) for token in _search(api, "tokens", incomplete)))


def _ids(ctx: typer.Context, incomplete: str, kind: str, describe: Callable[[Json], str]) -> list[Candidate]:
    """Complete ids, in small letters if such letters were typed."""
    in_case = str.upper if incomplete == incomplete.upper() else str.lower
    return _ask(ctx, lambda api: ((in_case(item["id"]), describe(item)) for item in _search(api, kind, incomplete)))


def _search(api: Client, kind: str, text: str) -> Iterable[Json]:
    """Return one page of what contains the text. Typer leaves out what does not begin with it."""
    items: list[Json] = api.get(f"/v1/{kind}", {"q": text or None, "limit": PAGE})["items"]
    return items


def _ask(ctx: typer.Context, ask: Callable[[Client], Iterable[Candidate]]) -> list[Candidate]:
    """Return what the server answers within the time limit. The thread also bounds the resolution of its name."""
    found: list[Candidate] = []

    def run() -> None:
        with suppress(Exception):
            server, token_file = ctx.params.get("server"), ctx.params.get("token_file")
            api = Client(find_server(os.environ, server=server, token_file=token_file))
            found.extend((str(name), str(description)) for name, description in ask(api))

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT_S)
    return [
        (name, description if SAFE_DESCRIPTION.fullmatch(description) else "")
        for name, description in found
        if SAFE_NAME.fullmatch(name)
    ]
