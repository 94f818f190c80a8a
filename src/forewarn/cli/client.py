"""The client of the API. It uses the standard library alone, and every failure is one sentence.

A POST that creates something has an Idempotency-Key. The client sends it a second time with the same key if the connection
breaks, so that it takes effect once. The client follows no redirect: a token goes only to the server it is meant for.
"""

import http.client
import json
import secrets
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from forewarn import __version__
from forewarn.cli.api import Failed, Json, NotReachable, Query
from forewarn.cli.server_lookup import Server
from forewarn.core.errors import InvalidSettings

CONNECT_S = 10.0
RESPONSE_S = 60.0
# The server sends something on the stream at least this often, if only a comment.
STREAM_SILENT_S = 60.0
RETRY_AFTER_S = 0.3
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 1024 * 1024
PAGE = 500
MAX_PAGES = 2_000


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Failed("the server's response is not JSON: is this a forewarn server?") from None


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event."""

    id: str
    event: str
    data: str


class Client:
    def __init__(self, server: Server) -> None:
        self.server = server
        self._tls: ssl.SSLContext | None = None

    # -- calls

    def get(self, path: str, query: Query | None = None) -> Any:
        return self._request("GET", path, query or {}).json()

    def failed_checks(self) -> dict[str, str]:
        """Return the checks of `/readyz` that fail, each with its message."""
        connection = self._connect()
        try:
            response = _read(self._exchange(connection, "GET", "/readyz", {}, None, {}))
        except (OSError, http.client.HTTPException) as error:
            raise self._not_reachable(error) from None
        finally:
            connection.close()
        if response.status not in (200, 503):
            raise self._failure("GET", "/readyz", response)
        return {name: result for name, result in response.json()["checks"].items() if result != "ok"}

    def text(self, path: str, *, accept: str) -> str:
        return self._request("GET", path, {}, headers={"Accept": accept}).body.decode("utf-8", "replace")

    def post(self, path: str, body: object = None, query: Query | None = None, *, creating: bool = False) -> Any:
        """Send a POST with a JSON body or none."""
        return self._send("POST", path, body, query, creating=creating).json()

    def post_toml(self, path: str, text: str, query: Query) -> Any:
        headers = {"Content-Type": "application/toml", **_new_key()}
        return self._request("POST", path, query, text.encode(), headers, tries=2).json()

    def put(self, path: str, body: object) -> ApiResponse:
        return self._send("PUT", path, body, None)

    def delete(self, path: str) -> None:
        self._send("DELETE", path, None, None)

    def page(self, path: str, query: Query, *, limit: int, cursor: str | None = None) -> Json:
        """Fetch up to `limit` items, over several pages if necessary; return them as one page."""
        items: list[Any] = []
        for _ in range(MAX_PAGES):
            page = self.get(path, {**query, "limit": min(PAGE, limit - len(items)), "cursor": cursor})
            items += page["items"]
            cursor = page["next_cursor"]
            # A page of a search may be empty although the search is not over.
            if cursor is None or len(items) >= limit or not (page["items"] or query.get("q")):
                break
        return {"items": items, "next_cursor": cursor}

    def stream(self, last_id: str = "") -> Iterator[Message | None]:
        """Yield None once connected, then every change after `last_id`, or from now on, until the server ends the stream."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        connection = self._connect()
        try:
            response = self._exchange(connection, "GET", "/v1/stream", {}, None, headers)
            if response.status != 200:
                raise self._failure("GET", "/v1/stream", ApiResponse(response.status, response.read(MAX_LINE_BYTES)))
            if connection.sock is not None:
                connection.sock.settimeout(STREAM_SILENT_S)
            yield None
            yield from parse_stream(iter(lambda: response.readline(MAX_LINE_BYTES), b""))
        except (OSError, http.client.HTTPException) as error:
            raise self._not_reachable(error) from None
        finally:
            connection.close()

    # -- requests

    def _send(
        self, method: str, path: str, body: object, query: Query | None, *, creating: bool = False
    ) -> ApiResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if creating:
            headers |= _new_key()
        return self._request(method, path, query or {}, data, headers, tries=2 if creating else 1)

    def _request(
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
                response = _read(self._exchange(connection, method, path, query, body, headers or {}))
                break
            except (OSError, http.client.HTTPException) as error:
                if not left:
                    raise self._broken(method, error) from None
                time.sleep(RETRY_AFTER_S)
            finally:
                connection.close()
        if response.status >= 300:
            raise self._failure(method, path, response)
        return response

    def _connect(self) -> http.client.HTTPConnection:
        """Return an open connection. A refused connection is not tried again."""
        parts = urlsplit(self.server.url)
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
        connection.sock.settimeout(RESPONSE_S)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            ca_file = self.server.ca_file
            try:
                self._tls = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
            except OSError as error:  # ssl.SSLError is one
                raise InvalidSettings(
                    f"FOREWARN_CA_FILE: {ca_file} contains no certificates: {error.strerror or error}"
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
        given = {k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items() if v is not None}
        target = urlsplit(self.server.url).path + path + (f"?{urlencode(given, doseq=True)}" if given else "")
        all_headers = {"User-Agent": f"forewarn/{__version__}", "Accept": "application/json", **headers}
        if self.server.token:
            all_headers["Authorization"] = f"Bearer {self.server.token}"
        connection.request(method, target, body, all_headers)
        return connection.getresponse()

    # -- errors

    def _not_reachable(self, error: Exception) -> NotReachable:
        url = self.server.url
        if isinstance(error, ssl.SSLCertVerificationError):
            return NotReachable(
                f"the certificate of {url} is not trusted ({error.verify_message}): set FOREWARN_CA_FILE to the"
                " certificate of the authority that signed it"
            )
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        source = f" (from {self.server.url_from})" if self.server.url_from else ""
        return NotReachable(
            f"no server answers at {url}{source}: {why}; is the service running there? Set another address with"
            " FOREWARN_SERVER or --server"
        )

    def _broken(self, method: str, error: Exception) -> NotReachable:
        if method == "GET":
            return self._not_reachable(error)
        why = str(error) or type(error).__name__
        return NotReachable(
            f"the connection to {self.server.url} broke before the response came ({why}): check whether the change was"
            " made before you repeat the command"
        )

    def _failure(self, method: str, path: str, response: ApiResponse) -> Failed:
        url, source, status = self.server.url, self.server.token_from, response.status
        if status == 401:
            problem = f"does not accept the token from {source}" if source else "requires a token, and none was found"
            unused = "" if source else self.server.unused_token
            return Failed(
                f"{url} {problem}: set FOREWARN_TOKEN to a token of that server, or name a file with --token-file"
                + (f" ({unused})" if unused else ""),
                status=status,
            )
        try:
            error = json.loads(response.body)["error"]
            message, code = str(error["message"]), str(error["code"])
        except (ValueError, KeyError, TypeError):
            return Failed(
                f"{url} answered {status} to {method} {path}: is this a forewarn server? Set another address with"
                " FOREWARN_SERVER or --server",
                status=status,
            )
        if status == 403 and source:
            message += f" (the token is from {source}; set another with FOREWARN_TOKEN or --token-file)"
        return Failed(message, status=status, code=code)


def _new_key() -> dict[str, str]:
    return {"Idempotency-Key": secrets.token_hex(16)}


def _read(response: http.client.HTTPResponse) -> ApiResponse:
    body = response.read(MAX_RESPONSE_BYTES + 1)
    if len(body) > MAX_RESPONSE_BYTES:
        raise Failed(f"the response is larger than {MAX_RESPONSE_BYTES} bytes: request less")
    return ApiResponse(response.status, body)


def parse_stream(lines: Iterable[bytes]) -> Iterator[Message]:
    """Parse server-sent events: fields up to an empty line. Skip comments and events without data."""
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
