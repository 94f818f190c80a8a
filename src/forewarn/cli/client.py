"""The API as the commands see it: ask, send, page, stream. Standard library alone; every failure is one sentence.

A creating POST bears an Idempotency-Key and is repeated once with the same key when the connection breaks: it happens
once, whatever the network does. Nothing follows a redirect, so a token goes to the server it is for.

ForewarnError
├── NotReachable     nobody answers at the server's address (exit code 3)
└── Failed           the server said no, or something that is no answer (exit code 1)
"""

import http.client
import json
import secrets
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from forewarn import __version__
from forewarn.cli.server_lookup import Server
from forewarn.core.errors import ForewarnError, InvalidSettings

CONNECT_S = 10.0
ANSWER_S = 60.0
# The stream says something at least this often, be it that it lives.
STREAM_SILENT_S = 60.0
RETRY_AFTER_S = 0.3
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024
PAGE = 500
MAX_PAGES = 2_000

Query = Mapping[str, str | int | bool | Iterable[str] | None]


class NotReachable(ForewarnError):
    code = "not_reachable"


class Failed(ForewarnError):
    """What the API answered: its own code and sentence."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.http_status, self.said = status, code


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failed("the server's answer is not JSON: is this a forewarn server?") from None


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event."""

    id: str
    event: str
    data: str


def path_of(*parts: str) -> str:
    """`/v1/…` of names that may hold anything."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class Client:
    def __init__(self, place: Server) -> None:
        self.place = place
        self._tls: ssl.SSLContext | None = None

    # -- what commands ask

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._ask("GET", path, query or {}).json()

    def complaints(self) -> dict[str, str]:
        """What `/readyz` finds wrong with the service, by part."""
        connection = self._connect()
        try:
            raw = self._exchange(connection, "GET", "/readyz", {}, None, {})
            answer = ApiResponse(raw.status, _read(raw))
        except (OSError, http.client.HTTPException) as error:
            raise self._not_reachable(error) from None
        finally:
            connection.close()
        if answer.status not in (200, 503):
            raise self._failure("GET", "/readyz", answer)
        return {part: told for part, told in answer.json()["checks"].items() if told != "ok"}

    def text(self, path: str, *, accept: str) -> str:
        return self._ask("GET", path, {}, headers={"Accept": accept}).body.decode("utf-8", "replace")

    def post(self, path: str, body: object = None, query: Query | None = None, *, creating: bool = False) -> Any:
        """A POST with a JSON body or none."""
        return self._send("POST", path, body, query, creating=creating).json()

    def post_toml(self, path: str, text: str, query: Query) -> Any:
        headers = {"Content-Type": "application/toml", **_new_key()}
        return self._ask("POST", path, query, text.encode(), headers, tries=2).json()

    def put(self, path: str, body: object) -> ApiResponse:
        return self._send("PUT", path, body, None)

    def delete(self, path: str) -> None:
        self._send("DELETE", path, None, None)

    def page(self, path: str, query: Query, *, limit: int, cursor: str | None = None) -> dict[str, Any]:
        """Up to `limit` items, over as many pages as that takes, in the shape of one page."""
        items: list[Any] = []
        for _ in range(MAX_PAGES):
            wanted = min(PAGE, limit - len(items))
            got = self.get(path, {**query, "limit": wanted, "cursor": cursor})
            items += got["items"]
            cursor = got["next_cursor"]
            if cursor is None or len(items) >= limit or not got["items"]:
                break
        return {"items": items, "next_cursor": cursor}

    def stream(self, last_id: str = "") -> Iterator[Message | None]:
        """Every change from now on, or from after `last_id`; None once it is connected. It ends when the server ends it."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        connection = self._connect()
        try:
            answer = self._exchange(connection, "GET", "/v1/stream", {}, None, headers)
            if answer.status != 200:
                raise self._failure("GET", "/v1/stream", ApiResponse(answer.status, answer.read(MAX_LINE_BYTES)))
            if connection.sock is not None:
                connection.sock.settimeout(STREAM_SILENT_S)
            yield None
            yield from parse_stream(iter(lambda: answer.readline(MAX_LINE_BYTES), b""))
        except (OSError, http.client.HTTPException) as error:
            raise self._not_reachable(error) from None
        finally:
            connection.close()

    # -- how it is asked

    def _send(
        self, method: str, path: str, body: object, query: Query | None, *, creating: bool = False
    ) -> ApiResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if creating:
            headers |= _new_key()
        return self._ask(method, path, query or {}, data, headers, tries=2 if creating else 1)

    def _ask(
        self,
        method: str,
        path: str,
        query: Query,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        tries: int | None = None,
    ) -> ApiResponse:
        left = tries or (2 if method == "GET" else 1)
        while True:
            left -= 1
            connection = self._connect()
            try:
                raw = self._exchange(connection, method, path, query, body, headers or {})
                answer = ApiResponse(raw.status, _read(raw))
                break
            except (OSError, http.client.HTTPException) as error:
                if not left:
                    raise self._broken(method, error) from None
                time.sleep(RETRY_AFTER_S)
            finally:
                connection.close()
        if answer.status >= 300:
            raise self._failure(method, path, answer)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        """Connected; whoever is not there is not asked twice."""
        parts = urlsplit(self.place.url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, parts.port, timeout=CONNECT_S, context=self._context())
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=CONNECT_S)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._not_reachable(error) from None
        connection.sock.settimeout(ANSWER_S)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            ca_file = self.place.ca_file
            try:
                self._tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
            except OSError as error:  # ssl.SSLError is one
                raise InvalidSettings(
                    f"FOREWARN_CA_FILE: {ca_file} holds no certificates: {error.strerror or error}"
                ) from None
        return self._tls

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        query: Query,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        said = {k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items() if v is not None}
        target = urlsplit(self.place.url).path + path + (f"?{urlencode(said, doseq=True)}" if said else "")
        ours = {"User-Agent": f"forewarn/{__version__}", "Accept": "application/json", **headers}
        if self.place.token:
            ours["Authorization"] = f"Bearer {self.place.token}"
        connection.request(method, target, body, ours)
        return connection.getresponse()

    # -- what is said when it fails

    def _not_reachable(self, error: Exception) -> NotReachable:
        url = self.place.url
        if isinstance(error, ssl.SSLCertVerificationError):
            return NotReachable(
                f"the certificate of {url} is not trusted ({error.verify_message}): set FOREWARN_CA_FILE to the file of"
                " the authority that signed it"
            )
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        source = f" (from {self.place.url_from})" if self.place.url_from else ""
        return NotReachable(
            f"nobody answers at {url}{source}: {why}; is the service running there? FOREWARN_SERVER or --server names"
            " another address"
        )

    def _broken(self, method: str, error: Exception) -> NotReachable:
        if method == "GET":
            return self._not_reachable(error)
        why = str(error) or type(error).__name__
        return NotReachable(
            f"the connection to {self.place.url} broke before the answer came ({why}): look whether it was done before"
            " you say it again; FOREWARN_SERVER names the server"
        )

    def _failure(self, method: str, path: str, answer: ApiResponse) -> Failed:
        url, source = self.place.url, self.place.token_from
        if answer.status == 401:
            told = f"does not accept the token from {source}" if source else "wants a token, and none was found"
            return Failed(
                f"{url} {told}: set FOREWARN_TOKEN to a token of that server, or name its file with --token-file",
                status=401,
            )
        try:
            problem = json.loads(answer.body)["error"]
            message, code = str(problem["message"]), str(problem["code"])
        except (ValueError, KeyError, TypeError):
            return Failed(
                f"{url} answered {answer.status} to {method} {path}: is this a forewarn server? FOREWARN_SERVER or"
                " --server names another",
                status=answer.status,
            )
        if answer.status == 403 and source:
            message += f" (the token is from {source}; FOREWARN_TOKEN or --token-file names another)"
        return Failed(message, status=answer.status, code=code)


def _new_key() -> dict[str, str]:
    return {"Idempotency-Key": secrets.token_hex(16)}


def _read(answer: http.client.HTTPResponse) -> bytes:
    body = answer.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise Failed(f"the answer is larger than {MAX_ANSWER_BYTES} bytes: ask for less")
    return body


def parse_stream(lines: Iterable[bytes]) -> Iterator[Message]:
    """Server-sent events: fields up to an empty line; comments and events without data are nothing."""
    last_id, event = "", "message"
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield Message(last_id, event, "\n".join(data))
            event, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            last_id = value
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)
