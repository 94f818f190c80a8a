"""What the fuzz run needs: requests to start from, ways to spoil them, and two strict readers of our own to judge with.

Neither reader shares a line with the service: `judge` says what a strict server owes to a stream of bytes, `read_answers`
reads what it sent. Where the grammar leaves a server the choice, the verdict is EITHER and what follows is not judged.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from random import Random

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
    """What a strict server owes to one request; the statuses it may answer with."""

    POLL = frozenset({200, 304, 429})
    APPROVE = frozenset({200, 429})
    REFUSE = frozenset({400, 404, 405, 413, 417, 429, 431, 501, 505})
    MALFORMED = frozenset({400, 404, 405, 413, 417, 429, 431, 501, 505, -1})
    EITHER = frozenset({200, 304, 400, 404, 405, 413, 417, 429, 431, 501, 505})
    INCOMPLETE = frozenset({400, 404, 405, 413, 417, 429, 431, 501, 505, -2})

    @property
    def last(self) -> bool:
        """Nothing that follows is judged."""
        return self in (Verdict.MALFORMED, Verdict.EITHER, Verdict.INCOMPLETE)


@dataclass(frozen=True)
class Judged:
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


# -- the strict reader of requests


def judge(stream: bytes, *, event_ids: frozenset[str]) -> list[Judged]:
    """One verdict for each request in the stream; `event_ids` are those the caller may approve."""
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
    begun = stream.lstrip(b"\r\n")
    blank = stream[: len(stream) - len(begun)]
    if blank.replace(b"\r\n", b""):
        raise _Unreadable(Verdict.EITHER, "a lone CR or LF before the request")
    head, end, rest = begun.partition(b"\r\n\r\n")
    if not end:
        return _unfinished(begun), b""
    first, *lines = head.split(b"\r\n")
    found = LINE.fullmatch(first)
    if found is None:
        raise _Unreadable(Verdict.MALFORMED, "request line")
    method, target = found[1].decode(), found[2].decode()
    headers = [_header(line) for line in lines]
    if len(head) >= SURELY_LARGE_HEAD_BYTES or len(headers) > MAX_HEADERS:
        raise _Unreadable(Verdict.MALFORMED, "too large a head")
    if len(head) > SURELY_SMALL_HEAD_BYTES:
        raise _Unreadable(Verdict.EITHER, "a large head")
    body, rest = _body(headers, rest, old=found[3] == b"0")
    verdict, approves, why = _meaning(method, target, headers, body, event_ids, old=found[3] == b"0")
    names = dict(headers)
    connections = [value.lower() for name, value in headers if name == "connection"]
    return Judged(verdict, method, connections == ["close"], "prefer" in names, approves, why), rest


def _unfinished(begun: bytes) -> Judged:
    """No end of the head in sight: nothing may be granted, and what is wrong already may be said."""
    return Judged(Verdict.INCOMPLETE, why="no end of the head")


def _header(line: bytes) -> tuple[str, str]:
    found = HEADER.fullmatch(line)
    if found is None:
        raise _Unreadable(Verdict.MALFORMED, f"header {line[:40]!r}")
    return found[1].decode().lower(), found[2].decode("latin-1").rstrip(" \t")


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
        found = CHUNK.fullmatch(line)
        if found is None:
            known = re.match(rb"[0-9A-Fa-f]{1,15};", line)
            raise _Unreadable(Verdict.EITHER if known else Verdict.MALFORMED, "chunk size")
        size = int(found[1], 16)
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


# -- what the contract says of a well-formed request

Meaning = tuple[Verdict, frozenset[str], str]


def _meaning(
    method: str, target: str, headers: list[tuple[str, str]], body: bytes, event_ids: frozenset[str], *, old: bool
) -> Meaning:
    path, _, query = target.partition("?")
    why = _relayed(headers, old=old) or _wrong_query(query)
    if why:
        return Verdict.REFUSE, frozenset(), why
    asked = dict(_parameters(query))
    told = [value.lower() for name, value in headers if name == "metadata"]
    version = asked.get("api-version")
    scheduled_events = path.lower() == "/metadata/scheduledevents"
    exempt = scheduled_events and method == "POST" and version == "2017-03-01"
    if not exempt and set(told) != {"true"}:
        return Verdict.REFUSE, frozenset(), "metadata header"
    if method in ("GET", "HEAD") and _beside(path.lower(), version):
        return Verdict.POLL, frozenset(), ""
    if not scheduled_events or method not in ("GET", "HEAD", "POST") or version not in VERSIONS:
        return Verdict.REFUSE, frozenset(), "path, method or version"
    return (Verdict.POLL, frozenset(), "") if method != "POST" else _approval(body, event_ids)


def _beside(path: str, version: str | None) -> bool:
    """The two documents beside the events."""
    if path == "/metadata/versions":
        return True
    date = re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", version or "")
    instance = ("/metadata/instance", "/metadata/instance/compute", "/metadata/instance/compute/name")
    return date is not None and path.rstrip("/") in instance


def _relayed(headers: list[tuple[str, str]], *, old: bool) -> str:
    names = [name for name, _ in headers]
    if any(n in ("x-forwarded-for", "origin", "sec-fetch-site") or n.startswith("x-instance-id") for n in names):
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


# -- the strict reader of answers


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [A-Z][A-Za-z ]+")


def read_answers(stream: bytes, methods: list[str]) -> list[Answered]:
    """Every final answer, in order; AssertionError where one is not well-formed. `methods` are those asked with."""
    answers: list[Answered] = []
    while stream:
        head, end, stream = stream.partition(b"\r\n\r\n")
        assert end, f"half a head: {head[:80]!r}"
        first, *lines = head.split(b"\r\n")
        found = STATUS_LINE.fullmatch(first)
        assert found, f"status line {first!r}"
        status = int(found[1])
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
            # Of an unreadable request the method may be known or not: the last answer's body is whole or absent.
            size = int(headers.get("content-length", "0")) if stream else 0
        assert len(stream) >= size, "half a body"
        body, stream = stream[:size], stream[size:]
        if body and headers["content-type"].startswith("application/json"):
            json.loads(body)
        answers.append(Answered(status, headers, body))
        if headers.get("connection") == "close":
            assert not stream, f"more after the last answer: {stream[:80]!r}"
    return answers


def _answer_header(line: bytes) -> tuple[str, str]:
    found = HEADER.fullmatch(line)
    assert found, f"header {line!r}"
    return found[1].decode().lower(), found[2].decode("latin-1")


def _answer_size(status: int, headers: dict[str, str], method: str) -> int:
    if status == 304:
        assert "content-length" not in headers
        return 0
    return 0 if method == "HEAD" else int(headers["content-length"])


# -- what inputs are made of

URL = b"/metadata/scheduledevents?api-version="


def corpus(event_id: str) -> list[bytes]:
    """Requests as they should be: polls, approvals, chunks, old versions, neighbours."""
    approval = b'{"DocumentIncarnation":"1","StartRequests":[{"EventId":"%b"}]}' % event_id.encode()
    unknown = approval.replace(event_id.encode(), b"F020BA2E-3BC0-4C40-A10B-86575A9EABD5")
    host, told = b"Host: 169.254.169.254\r\n", b"Metadata: true\r\n"
    length = b"Content-Length: %d\r\n" % len(approval)
    half = len(approval) // 2
    chunked = b"%x\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\n" % (half, approval[:half], len(approval) - half, approval[half:])
    post = b"POST " + URL + b"2017-08-01 HTTP/1.1\r\n" + host + told
    made = [b"GET " + URL + version.encode() + b" HTTP/1.1\r\n" + host + told + b"\r\n" for version in VERSIONS]
    poll = made[-1][:-2]
    made += [
        poll + b"User-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
        poll + b'If-None-Match: "2"\r\n\r\n',
        poll + b"Connection: close\r\n\r\n",
        poll + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n\r\n",
        poll + b"Content-Length: 3\r\n\r\nabc",
        poll + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HEAD" + poll[3:] + b"\r\n",
        poll.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n\r\n",
        poll.replace(b"169.254.169.254", b"[::1]:8169").replace(b"Metadata", b"METADATA") + b"\r\n",
        poll.replace(b"api-version", b"format=json&api%2Dversion") + b"\r\n",
        b"GET /metadata/versions HTTP/1.1\r\n" + host + told + b"\r\n",
        b"GET /metadata/instance/compute/name?api-version=2021-01-01&format=text HTTP/1.1\r\n" + host + told + b"\r\n",
        post + length + b"\r\n" + approval,
        post + length + b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" + approval,
        post + length + b"Expect: 100-continue\r\n\r\n" + approval,
        post + length + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + approval,
        post + length + b"\r\n" + unknown,
        post.replace(told, b"").replace(b"2017-08-01", b"2017-03-01") + length + b"\r\n" + approval,
        post + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"\r\n",
        post + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n" + chunked + b"X: y\r\n\r\n",
        post.replace(told, b"") + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + told + b"\r\n",
        post + b"Content-Length: %d\r\n\r\n" % (2 * len(approval)) + approval.decode().encode("utf-16-le"),
        post + b"Content-Length: %d\r\n\r\n\xef\xbb\xbf" % (len(approval) + 3) + approval,
        post + b"Content-Length: 2\r\n\r\n{}",
    ]
    return made


SPLINTERS = [
    *[
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"  ",
        b"\r\n ",
        b"\r\n\t",
        b"\r\n\r\n",
        b"\x0b",
        b"\x7f",
        b"\xff",
    ],
    *[
        b"Metadata: true\r\n",
        b"Metadata: false\r\n",
        b"Metadata:\r\n",
        b"metadata : true\r\n",
        b"Metadata: true\xa0\r\n",
    ],
    *[b"Host: a.example\r\n", b"Host: 127.0.0.1\r\n", b"Host: 127.0.0.1]\r\n", b"Host: ::1%a\r\n", b"Host: [::1\r\n"],
    *[b"Content-Length: 0\r\n", b"Content-Length: 5\r\n", b"Content-Length: +5\r\n", b"Content-Length: 5, 5\r\n"],
    *[b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 65537\r\n", b"Content-Length: -1\r\n"],
    *[b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Transfer-Encoding: gzip, chunked\r\n"],
    *[
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
    ],
    *[
        b"Connection: close\r\n",
        b"Connection: keep-alive\r\n",
        b"Connection: upgrade\r\nUpgrade: x\r\n",
        b"Upgrade: h2c\r\n",
    ],
    *[b"X-Forwarded-For: 10.0.0.1\r\n", b"Origin: http://a\r\n", b"Sec-Fetch-Site: none\r\n", b"X-Instance-ID: i\r\n"],
    *[b"Expect: 100-continue\r\n", b'If-None-Match: "2"\r\n', b"If-None-Match: *\r\n", b"X: " + b"a" * 9_000 + b"\r\n"],
    *[b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/0.9", b"RTSP/1.0", b"ICE/1.0", b"HTTP/1.10", b"http/1.1"],
    *[b"GET ", b"POST ", b"HEAD ", b"PUT ", b"get ", b"OPTIONS * ", b"CONNECT a:80 ", b"PRI * ", b"GET http://a"],
    *[b"#", b"?", b"&", b"%00", b"%", b"/../", b"//", b"api-version=2020-07-01&", b"&api-version=2017-03-01"],
    *[b"0\r\n\r\n", b"1\r\nx\r\n", b"fffffffffffffffff\r\n", b"-1\r\n", b"0x1\r\n", b"1 \r\nx\r\n", b"1;a\r\nx\r\n"],
    *[
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"null",
        b"NaN",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"1e999",
        b"[" * 2_000,
        b"A: b\r\n" * 70,
    ],
]


def make_input(random: Random, bases: list[bytes]) -> list[bytes]:
    """One input as the pieces in which it arrives."""
    if random.random() < 0.03:
        data = random.randbytes(random.randrange(1, 300))
    else:
        data = b"".join(_spoiled(random, random.choice(bases), bases) for _ in range(random.choice([1, 1, 1, 2, 3])))
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice([0, 0, 1, 2, 5])))
    ends = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(ends) if b > a]


def _spoiled(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    for _ in range(random.choice([0, 1, 1, 1, 2, 4])):
        data = random.choice(SPOILERS)(random, data, bases)
    return data


Spoiler = Callable[[Random, bytes, list[bytes]], bytes]


def _at(random: Random, data: bytes) -> int:
    return random.randrange(len(data) + 1)


def _flip(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    at = min(_at(random, data), len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :] if data else data


def _replace(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    at = _at(random, data)
    return data[:at] + random.randbytes(1) + data[at + 1 :]


def _truncate(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    return data[: _at(random, data)]


def _drop(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    at = _at(random, data)
    return data[:at] + data[at + random.choice([1, 1, 2, 8]) :]


def _splice(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    other = random.choice(bases)
    return data[: _at(random, data)] + other[_at(random, other) :]


def _insert(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    at = _at(random, data)
    return data[:at] + random.choice(SPLINTERS) + data[at:]


def _inject_header(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    """At the beginning of a line of the head, where most splinters mean something."""
    places = [m.end() for m in re.finditer(rb"\r\n", data.partition(b"\r\n\r\n")[0] + b"\r\n")] or [0]
    at = random.choice(places)
    return data[:at] + random.choice(SPLINTERS) + data[at:]


def _repeat_line(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    at = random.randrange(len(lines))
    return b"\r\n".join([*lines[: at + 1], *lines[at:]])


def _swap_lines(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\r\n".join(lines)


def _change_number(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    numbers = list(re.finditer(rb"[0-9]+", data))
    if not numbers:
        return data
    found = random.choice(numbers)
    changed = random.choice([b"0", b"1", b"00", b"65536", b"65537", b"4294967296", b"18446744073709551617", b"1" * 30])
    return data[: found.start()] + changed + data[found.end() :]


def _bare_line_ends(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    return data.replace(b"\r\n", random.choice([b"\n", b"\r"]), random.choice([1, 2, -1]))


def _change_protocol(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    return data.replace(b"HTTP/1.1", random.choice([b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"RTSP/1.0", b" HTTP/1.1"]))


SPOILERS: list[Spoiler] = [
    *[_flip, _replace, _truncate, _drop, _splice, _insert, _inject_header, _inject_header, _inject_header],
    *[_repeat_line, _swap_lines, _change_number, _change_number, _bare_line_ends, _change_protocol],
]
