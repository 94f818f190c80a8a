"""What every command of an operator has: a server to talk to, a way to show answers, and the same three options."""

import functools
import inspect
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn import __version__
from forewarn.cli.client import Client, Failed, path_of
from forewarn.cli.formatting import ID_CHARS, SHORT_CHARS, Json
from forewarn.cli.output import Output
from forewarn.cli.server_lookup import find
from forewarn.core.errors import InvalidSettings, NotFound, Refused

# How far back a shortened id is looked for.
LOOK_BACK = 500
MAX_MACHINES = 1_000_000
MAX_LIST = 1_000_000

AsJson = Annotated[bool, typer.Option("--json", help="Print the API's JSON.", show_default=False)]
Server = Annotated[
    str | None,
    typer.Option("--server", help="The server's address [default: $FOREWARN_SERVER, else this machine's]"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="A file with the token [default: $FOREWARN_TOKEN, else this machine's]"),
]
Limit = Annotated[int, typer.Option(min=1, max=MAX_LIST, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="Go on where an earlier list ended.")]


class Session:
    def __init__(self, out: Output, server: str | None = None, token_file: Path | None = None) -> None:
        self.out = out
        self._server, self._token_file = server, token_file

    @cached_property
    def api(self) -> Client:
        return Client(find(os.environ, server=self._server, token_file=self._token_file))

    def now(self) -> str:
        """The service's time: what its times are to be compared with."""
        return str(self.api.get("/v1/clock")["now"])

    def listed(self, path: str, query: dict[str, Any], limit: int, cursor: str | None) -> Json:
        return self.api.page(path, query, limit=limit, cursor=cursor)

    def more(self, page: Json) -> None:
        """Where the list goes on, if it does."""
        if page["next_cursor"] is not None:
            self.out.aside(f"there are more: --limit {2 * len(page['items'])}, or --cursor {page['next_cursor']}")

    # -- names people may shorten

    def event_id(self, text: str) -> str:
        if len(text) >= ID_CHARS:
            return text.upper()
        opened = {"status": ["Planned", "Scheduled", "Started"]}
        found = _one_of(text, (item["id"] for item in self.listed("/v1/events", opened, LOOK_BACK, None)["items"]))
        if not found:
            newest = self.listed("/v1/events", {}, LOOK_BACK, None)["items"]
            found = _one_of(text, (item["id"] for item in newest))
        return _or_not_found(found, "event", text)

    def maintenance_id(self, text: str) -> str:
        if len(text) >= ID_CHARS:
            return text.upper()
        newest = self.listed("/v1/maintenances", {}, LOOK_BACK, None)["items"]
        return _or_not_found(_one_of(text, (item["id"] for item in newest)), "maintenance", text)

    def machine(self, text: str) -> tuple[str, str]:
        """Scope and name; a name alone will do where only one machine has it."""
        scope, slash, name = text.partition("/")
        if slash:
            return scope, name
        everywhere = self.listed("/v1/machines", {}, MAX_MACHINES, None)["items"]
        scopes = [item["scope"] for item in everywhere if item["name"] == text]
        if len(scopes) != 1:
            told = f"{', '.join(scopes)} have one each" if scopes else "nobody has it"
            raise NotFound(f"machine {text!r} is not one machine's name ({told}): write it like shop/web-0")
        return scopes[0], text

    def machine_path(self, text: str, *more: str) -> str:
        scope, name = self.machine(text)
        return path_of("scopes", scope, "machines", name, *more)


def _one_of(head: str, ids: Any) -> str:
    if len(head) < SHORT_CHARS:
        raise usage(f"{head!r} is too short for an id: write at least {SHORT_CHARS} characters of it")
    found = {each for each in ids if each.startswith(head.upper())}
    if len(found) > 1:
        raise Refused(f"{head!r} begins {len(found)} ids: write more of it")
    return found.pop() if found else ""


def _or_not_found(found: str, what: str, text: str) -> str:
    if not found:
        raise NotFound(f"no recent {what} begins with {text!r}: write the whole id, as `{what} list` shows it")
    return found


def group(name: str, help_text: str) -> typer.Typer:
    return typer.Typer(name=name, help=help_text, no_args_is_help=True, rich_markup_mode=None)


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is the desk; it gets --json, --server and --token-file."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.name != "desk"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        common = [
            inspect.Parameter("as_json", keyword, default=False, annotation=AsJson),
            inspect.Parameter("server", keyword, default=None, annotation=Server),
            inspect.Parameter("token_file", keyword, default=None, annotation=TokenFile),
        ]

        @functools.wraps(function)
        def called(*, as_json: bool, server: str | None, token_file: Path | None, **words: Any) -> None:
            desk = Session(Output(as_json=as_json), server, token_file)
            try:
                function(desk, **words)
            except (KeyError, TypeError, IndexError) as error:
                raise Failed(
                    f"{desk.api.place.url} answered what forewarn {__version__} does not understand"
                    f" ({type(error).__name__}: {error}): is it a forewarn server of this version?"
                ) from error

        parameters = [*(p.replace(kind=keyword) for p in own), *common]
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(called)
        return function

    return register


def usage(message: str) -> InvalidSettings:
    """Wrong words on the command line: exit code 2."""
    return InvalidSettings(message)
