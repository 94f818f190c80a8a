"""What the commands that call the API share: a session, and the options --json, --server and --token-file."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn import __version__
from forewarn.cli.api import Failed, Json, path_of
from forewarn.cli.options import usage
from forewarn.cli.output import Output, Rows
from forewarn.cli.server_lookup import find_server
from forewarn.cli.strict import StrictTyper
from forewarn.core.errors import NotFound, Refused
from forewarn.core.formatting import SHORT_ID_CHARS

if TYPE_CHECKING:
    from forewarn.cli.client import Client

ID_CHARS = 36
MAX_LIST = 1_000_000

AsJson = Annotated[bool, typer.Option("--json", help="Print the API's JSON.", show_default=False)]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", help="The server's address [default: $FOREWARN_SERVER, else this machine's]"),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="A file with the token [default: $FOREWARN_TOKEN, else this machine's]"),
]
Limit = Annotated[int, typer.Option(min=1, max=MAX_LIST, help="The largest number of items to list.")]
Match = Annotated[
    str | None, typer.Option("--match", help="Only what contains this text; capitals do not matter.", metavar="TEXT")
]
Cursor = Annotated[str | None, typer.Option(help="Continue where an earlier list ended.")]


class Session:
    """One run of a command: the API that it calls and the output that it writes."""

    def __init__(self, out: Output, server: str | None = None, token_file: Path | None = None) -> None:
        self.out = out
        self._server, self._token_file = server, token_file

    @cached_property
    def api(self) -> "Client":
        from forewarn.cli.client import Client  # imports HTTP and TLS, which not every command needs

        return Client(find_server(os.environ, server=self._server, token_file=self._token_file))

    def now(self) -> str:
        """Return the service's time, with which the times in its responses are compared."""
        return str(self.api.get("/v1/clock")["now"])

    @cached_property
    def role(self) -> str:
        """The role of the caller, for hints. A server of an older version does not say it: then there are no hints."""
        try:
            return str(self.api.get("/v1/caller")["role"])
        except Failed:
            return ""

    def show_page(self, page: Json, columns: Sequence[str], rows: Callable[[list[Json]], Rows], *, empty: str) -> None:
        """Print one page of a list as JSON, or as a table with a hint if the list is longer."""
        if self.out.as_json:
            self.out.json(page)
            return
        items = page["items"]
        self.out.table(columns, rows(items), empty=empty)
        if page["next_cursor"] is not None:
            self.out.aside(
                f"the list is longer: use --limit {MAX_LIST} for all of it, or --cursor {page['next_cursor']}"
            )

    def refuse_unknown(
        self, page: Json, *, scope: str | None = None, machine: str | None = None, host: str | None = None
    ) -> None:
        """Raise an error if the page is empty because the scope, its machine or the host does not exist."""
        if page["items"]:
            return
        if scope:
            self.api.get(path_of("scopes", scope))
        if scope and machine:
            self.api.get(path_of("scopes", scope, "machines", machine))
        if host:
            self.api.get(path_of("hosts", host))

    # -- names and ids that people may shorten

    def path_to(self, kind: str, text: str, *more: str) -> str:
        """Return the API's path of the event, maintenance or order with this id."""
        return path_of(f"{kind}s", self.id_of(kind, text), *more)

    def token_id(self, text: str) -> str:
        """Return a token's id; the server finds it by the token's name, or by the first characters of the id."""
        return text.upper() if len(text) >= ID_CHARS else self._resolve("token", text, "the whole id")

    def machine(self, text: str) -> tuple[str, str]:
        """Return scope and name; the server finds the scope of a name that stands alone."""
        whole = text if "/" in text else self._resolve("machine", text, "scope/name")
        scope, _, name = whole.partition("/")
        return scope, name

    def machine_path(self, text: str, *more: str) -> str:
        scope, name = self.machine(text)
        return path_of("scopes", scope, "machines", name, *more)

    def id_of(self, kind: str, text: str) -> str:
        """Return a whole id as it is; the server completes the first characters of one."""
        if len(text) >= ID_CHARS:
            return text.upper()
        if len(text) < SHORT_ID_CHARS:
            raise usage(f"{text!r} is too short for an id: write at least its first {SHORT_ID_CHARS} characters")
        return self._resolve(kind, text, "the whole id")

    def _resolve(self, kind: str, text: str, whole: str) -> str:
        """Return the one thing of this kind that the server finds for the text; `whole` says what to write otherwise."""
        try:
            found = self.api.get("/v1/resolve", {"text": text, "kind": kind})
        except Failed as error:
            if (error.http_status, error.api_code) != (404, NotFound.code):
                raise
            raise Failed(
                f"{self.api.server.url} runs an older version that does not complete names: write {whole}"
            ) from None
        matches = [str(match["id"]) for match in found["matches"]]
        if not matches:
            raise NotFound(f"{text!r} matches no {kind}: `forewarn {kind} list` shows what there is")
        if len(matches) > 1:
            more = " and more" if found["more"] else ""
            raise Refused(f"{text!r} matches several {kind}s: {', '.join(matches)}{more}; write {whole}")
        return matches[0]


def group(name: str, help_text: str) -> typer.Typer:
    return StrictTyper(name=name, help=help_text, no_args_is_help=True, rich_markup_mode=None)


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function whose first parameter is the session; add --json, --server and --token-file."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.name != "session"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        common = [
            inspect.Parameter("as_json", keyword, default=False, annotation=AsJson),
            inspect.Parameter("server", keyword, default=None, annotation=ServerOption),
            inspect.Parameter("token_file", keyword, default=None, annotation=TokenFile),
        ]

        @functools.wraps(function)
        def run(*, as_json: bool, server: str | None, token_file: Path | None, **arguments: Any) -> None:
            session = Session(Output(as_json=as_json), server, token_file)
            try:
                function(session, **arguments)
            except (KeyError, TypeError, IndexError) as error:
                raise Failed(
                    f"{session.api.server.url} sent a response that forewarn {__version__} does not understand"
                    f" ({type(error).__name__}: {error}): is it a forewarn server of this version?"
                ) from error

        parameters = [*(p.replace(kind=keyword) for p in own), *common]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(run)
        return function

    return register
