"""Two strict HTTP readers that share no code with the service, to judge its answers to fuzz inputs.

`judge` says how a strict server must answer a stream of bytes; `read_answers` reads what the service sent. Where the grammar
leaves a server the choice, the verdict is EITHER and the rest of the stream is not judged.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address

VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
MAX_BODY_BYTES = 65_536
MAX_HEADERS = 64
SURELY_SMALL_HEAD_BYTES = 7_000
SURELY_LARGE_HEAD_BYTES = 16_000

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
LINE = re.compile(rb"(" + TOKEN + rb") ([!-\"$-~]+) HTTP/1\.([01])")
HEADER = re.compile(rb"(" + TOKEN + rb"):[ \t]*([!-~\x80-\xff \t]*)")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})((?:;" + TOKEN + rb"(?:=" + TOKEN + rb")?)*)")
GUID = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")


class Verdict(Enum):
    """How a strict server must answer one request: the statuses that are allowed."""

    POLL = frozenset({200, 304, 429})
    APPROVE = frozenset({200, 429})
    REFUSE = frozenset({400, 404, 405, 413, 417, 429, 431, 501, 505})
    MALFORMED = frozenset({400, 404, 405, 413, 417, 429, 431, 501, 505, -1})
    EITHER = frozenset({200, 304, 400, 404, 405, 413, 417, 429, 431, 501, 505})
    INCOMPLETE = frozenset({400, 404, 405, 413, 417, 429, 431, 501, 505, -2})

    @property
    def last(self) -> bool:
        """Whether the rest of the stream is not judged."""
        return self in (Verdict.MALFORMED, Verdict.EITHER, Verdict.INCOMPLETE)


@dataclass(frozen=True)
class Judged:
    """One request of a stream and its verdict."""

    verdict: Verdict
    method: str = ""
    close: bool = False
    waits: bool = False
    approves: frozenset[str] = frozenset()
    why: str = ""


class _Unreadable(Exception):
    """Ends the stream with a verdict."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.judged = Judged(verdict, why=why)


# -- requests


def judge(stream: bytes, *, event_ids: frozenset[str]) -> list[Judged]:
    """Return a verdict for each request in the stream; `event_ids` are those the caller may approve."""
    verdicts: list[Judged] = []
    while stream and not (verdicts and verdicts[-1].verdict.last):
        if stream in (b"\r", b"\n", b"\r\n"):
            break
        try:
            judged, stream = _request(stream, event_ids)
            verdicts.append(judged)
        except _Unreadable as unreadable:
            verdicts.append(unreadable.judged)
    return verdicts


def _request(stream: bytes, event_ids: frozenset[str]) -> tuple[Judged, bytes]:
    request = stream.lstrip(b"\r\n")
    blank = stream[: len(stream) - len(request)]
    if blank.replace(b"\r\n", b""):
        raise _Unreadable(Verdict.EITHER, "a lone CR or LF before the request")
    head, end, rest = request.partition(b"\r\n\r\n")
    if not end:
        return Judged(Verdict.INCOMPLETE, why="no end of the head"), b""
    first, *lines = head.split(b"\r\n")
    match = LINE.fullmatch(first)
    if match is None:
        raise _Unreadable(Verdict.MALFORMED, "request line")
    method, target = match[1].decode(), match[2].decode()
    headers = [_header(line) for line in lines]
    if len(head) >= SURELY_LARGE_HEAD_BYTES or len(headers) > MAX_HEADERS:
        raise _Unreadable(Verdict.MALFORMED, "too large a head")
    if len(head) > SURELY_SMALL_HEAD_BYTES:
        raise _Unreadable(Verdict.EITHER, "a large head")
    body, rest = _body(headers, rest, old=match[3] == b"0")
    verdict, approves, why = _meaning(method, target, headers, body, event_ids, old=match[3] == b"0")
    names = dict(headers)
    connections = [value.lower() for name, value in headers if name == "connection"]
    return Judged(verdict, method, connections == ["close"], "prefer" in names, approves, why), rest


def _header(line: bytes) -> tuple[str, str]:
    match = HEADER.fullmatch(line)
    if match is None:
        raise _Unreadable(Verdict.MALFORMED, f"header {line[:40]!r}")
    return match[1].decode().lower(), match[2].decode("latin-1").rstrip(" \t")


def _body(headers: list[tuple[str, str]], rest: bytes, *, old: bool) -> tuple[bytes, bytes]:
    lengths = [value for name, value in headers if name == "content-length"]
    codings = [value for name, value in headers if name == "transfer-encoding"]
    if codings:
        if lengths or old or [c.lower() for c in codings] != ["chunked"]:
            raise _Unreadable(Verdict.MALFORMED, "transfer coding")
        if any(name == "upgrade" for name, _ in headers):
            raise _Unreadable(Verdict.EITHER, "chunks of an upgrade")
        return _chunks(rest)
    if not lengths:
        return b"", rest
    if len(lengths) > 1 or not re.fullmatch("[0-9]+", lengths[0]):
        raise _Unreadable(Verdict.MALFORMED, "content length")
    size = int(lengths[0])
    if size > MAX_BODY_BYTES:
        raise _Unreadable(Verdict.MALFORMED, "too large a body")
    if len(rest) < size:
        raise _Unreadable(Verdict.INCOMPLETE, "half a body")
    return rest[:size], rest[size:]


def _chunks(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, end, rest = rest.partition(b"\r\n")
        if not end:
            raise _Unreadable(Verdict.INCOMPLETE, "half a chunk")
        match = CHUNK.fullmatch(line)
        if match is None:
            known = re.match(rb"[0-9A-Fa-f]{1,15};", line)
            raise _Unreadable(Verdict.EITHER if known else Verdict.MALFORMED, "chunk size")
        size = int(match[1], 16)
        if size == 0:
            return body, _trailers(rest)
        if len(body) + size > MAX_BODY_BYTES:
            raise _Unreadable(Verdict.MALFORMED if len(rest) > size else Verdict.INCOMPLETE, "too large a body")
        if len(rest) < size + 2:
            raise _Unreadable(Verdict.INCOMPLETE, "half a chunk")
        if rest[size : size + 2] != b"\r\n":
            raise _Unreadable(Verdict.MALFORMED, "chunk end")
        body, rest = body + rest[:size], rest[size + 2 :]


def _trailers(rest: bytes) -> bytes:
    while True:
        line, end, rest = rest.partition(b"\r\n")
        if not end:
            raise _Unreadable(Verdict.INCOMPLETE, "half a trailer")
        if not line:
            return rest
        name, _ = _header(line)
        if name in ("content-length", "transfer-encoding", "connection", "upgrade"):
            raise _Unreadable(Verdict.EITHER, "a trailer about framing")


# -- the contract's verdict on a well-formed request

Meaning = tuple[Verdict, frozenset[str], str]


def _meaning(
    method: str, target: str, headers: list[tuple[str, str]], body: bytes, event_ids: frozenset[str], *, old: bool
) -> Meaning:
    path, _, query = target.partition("?")
    why = _relayed(headers, old=old) or _wrong_query(query)
    if why:
        return Verdict.REFUSE, frozenset(), why
    parameters = dict(_parameters(query))
    metadata = [value.lower() for name, value in headers if name == "metadata"]
    version = parameters.get("api-version")
    scheduled_events = path.lower() == "/metadata/scheduledevents"
    exempt = scheduled_events and method == "POST" and version == "2017-03-01"
    if not exempt and set(metadata) != {"true"}:
        return Verdict.REFUSE, frozenset(), "metadata header"
    if method in ("GET", "HEAD") and _is_other_document(path.lower(), version):
        return Verdict.POLL, frozenset(), ""
    if not scheduled_events or method not in ("GET", "HEAD", "POST") or version not in VERSIONS:
        return Verdict.REFUSE, frozenset(), "path, method or version"
    return (Verdict.POLL, frozenset(), "") if method != "POST" else _approval(body, event_ids)


def _is_other_document(path: str, version: str | None) -> bool:
    """Whether a path is of one of the two documents beside the events."""
    if path == "/metadata/versions":
        return True
    date = re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", version or "")
    instance = ("/metadata/instance", "/metadata/instance/compute", "/metadata/instance/compute/name")
    return date is not None and path.rstrip("/") in instance


def _relayed(headers: list[tuple[str, str]], *, old: bool) -> str:
    names = [name for name, _ in headers]
    traces = {"x-forwarded-for", "forwarded", "via", "x-real-ip", "origin", "sec-fetch-site"}
    if any(n in traces or n.startswith("x-instance-id") for n in names):
        return "relayed"
    hosts = [value for name, value in headers if name == "host"]
    if len(hosts) > 1 or (not hosts and not old):
        return "host"
    return "" if not hosts or _own_host(hosts[0]) else "host"


def _own_host(host: str) -> bool:
    name = re.sub(":[0-9]{0,5}$", "", host) if host.endswith("]") is False else host
    try:
        if name.startswith("[") and name.endswith("]") and "%" not in name:
            return IPv6Address(name[1:-1]) is not None
        return name.lower() == "localhost" or IPv4Address(name) is not None
    except ValueError:
        return False


def _wrong_query(query: str) -> str:
    names = [name for name, _ in _parameters(query)]
    return "query" if len(names) != len(set(names)) or len(names) > 32 else ""


def _parameters(query: str) -> list[tuple[str, str]]:
    pairs = [piece.partition("=") for piece in query.split("&") if piece]
    return [(_plain(name).lower(), _plain(value)) for name, _, value in pairs]


def _plain(text: str) -> str:
    spaced = text.replace("+", " ").encode("latin-1")
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), spaced).decode("utf-8", "replace")


def _approval(body: bytes, event_ids: frozenset[str]) -> Meaning:
    try:
        document = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
        entries = document["StartRequests"]
        ids = [entry["EventId"] for entry in entries if isinstance(entries, list)]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return Verdict.REFUSE, frozenset(), "body"
    shaped = 1 <= len(ids) <= 100 and all(isinstance(each, str) and GUID.fullmatch(each) for each in ids)
    if not shaped or not isinstance(document, dict) or not all(isinstance(entry, dict) for entry in entries):
        return Verdict.REFUSE, frozenset(), "body"
    wanted = frozenset(each.upper() for each in ids)
    return (Verdict.APPROVE, wanted, "") if wanted <= event_ids else (Verdict.REFUSE, frozenset(), "unknown id")


def _no_constant(name: str) -> None:
    raise ValueError(name)


# -- answers


@dataclass(frozen=True)
class Answer:
    """One answer of the service."""

    status: int
    headers: dict[str, str]
    body: bytes


STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [A-Z][A-Za-z ]+")


def read_answers(stream: bytes, methods: list[str]) -> list[Answer]:
    """Return every final answer; raise AssertionError for a malformed one. `methods` are those of the requests."""
    answers: list[Answer] = []
    while stream:
        head, end, stream = stream.partition(b"\r\n\r\n")
        assert end, f"half a head: {head[:80]!r}"
        first, *lines = head.split(b"\r\n")
        match = STATUS_LINE.fullmatch(first)
        assert match, f"status line {first!r}"
        status = int(match[1])
        if status == 100:
            assert not lines
            continue
        pairs = [_answer_header(line) for line in lines]
        headers = dict(pairs)
        assert len(headers) == len(pairs), f"a header twice: {head!r}"
        assert "date" in headers
        method = methods[len(answers)] if len(answers) < len(methods) else ""
        size = _answer_size(status, headers, method)
        if method in ("HEAD", "") and headers.get("connection") == "close":
            # The method of an unreadable request may be unknown: the body of the last answer is whole or absent.
            size = int(headers.get("content-length", "0")) if stream else 0
        assert len(stream) >= size, "half a body"
        body, stream = stream[:size], stream[size:]
        if body and headers["content-type"].startswith("application/json"):
            json.loads(body)
        answers.append(Answer(status, headers, body))
        if headers.get("connection") == "close":
            assert not stream, f"more after the last answer: {stream[:80]!r}"
    return answers


def _answer_header(line: bytes) -> tuple[str, str]:
    match = HEADER.fullmatch(line)
    assert match, f"header {line!r}"
    return match[1].decode().lower(), match[2].decode("latin-1")


def _answer_size(status: int, headers: dict[str, str], method: str) -> int:
    if status == 304:
        assert "content-length" not in headers
        return 0
    return 0 if method == "HEAD" else int(headers["content-length"])
