"""Fuzz inputs: valid requests, and ways to spoil them. The same random generator gives the same inputs."""

import re
from collections.abc import Callable
from itertools import pairwise
from random import Random

from tests.endpoint.strict_http import VERSIONS

URL = b"/metadata/scheduledevents?api-version="


def corpus(event_id: str) -> list[bytes]:
    """Return valid requests: polls, approvals, chunks, old versions, other documents."""
    approval = b'{"DocumentIncarnation":"1","StartRequests":[{"EventId":"%b"}]}' % event_id.encode()
    unknown = approval.replace(event_id.encode(), b"F020BA2E-3BC0-4C40-A10B-86575A9EABD5")
    host, metadata = b"Host: 169.254.169.254\r\n", b"Metadata: true\r\n"
    length = b"Content-Length: %d\r\n" % len(approval)
    half = len(approval) // 2
    chunked = b"%x\r\n%b\r\n%x;a=b\r\n%b\r\n0\r\n" % (half, approval[:half], len(approval) - half, approval[half:])
    post = b"POST " + URL + b"2017-08-01 HTTP/1.1\r\n" + host + metadata
    requests = [b"GET " + URL + version.encode() + b" HTTP/1.1\r\n" + host + metadata + b"\r\n" for version in VERSIONS]
    poll = requests[-1][:-2]
    requests += [
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
        b"GET /metadata/versions HTTP/1.1\r\n" + host + metadata + b"\r\n",
        b"GET /metadata/instance/compute/name?api-version=2021-01-01&format=text HTTP/1.1\r\n"
        + host
        + metadata
        + b"\r\n",
        post + length + b"\r\n" + approval,
        post + length + b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" + approval,
        post + length + b"Expect: 100-continue\r\n\r\n" + approval,
        post + length + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + approval,
        post + length + b"\r\n" + unknown,
        post.replace(metadata, b"").replace(b"2017-08-01", b"2017-03-01") + length + b"\r\n" + approval,
        post + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"\r\n",
        post + b"Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n" + chunked + b"X: y\r\n\r\n",
        post.replace(metadata, b"") + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + metadata + b"\r\n",
        post + b"Content-Length: %d\r\n\r\n" % (2 * len(approval)) + approval.decode().encode("utf-16-le"),
        post + b"Content-Length: %d\r\n\r\n\xef\xbb\xbf" % (len(approval) + 3) + approval,
        post + b"Content-Length: 2\r\n\r\n{}",
    ]
    return requests


FRAGMENTS = [
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
    *[b"Forwarded: for=x\r\n", b"Via: 1.1 x\r\n", b"X-Real-IP: 10.0.0.1\r\n"],
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
    """Make one input, as the pieces in which it arrives."""
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
    return data[:at] + random.choice(FRAGMENTS) + data[at:]


def _inject_header(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    """Insert a fragment at the start of a line of the head, where most fragments have a meaning."""
    starts = [m.end() for m in re.finditer(rb"\r\n", data.partition(b"\r\n\r\n")[0] + b"\r\n")] or [0]
    at = random.choice(starts)
    return data[:at] + random.choice(FRAGMENTS) + data[at:]


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
    number = random.choice(numbers)
    changed = random.choice([b"0", b"1", b"00", b"65536", b"65537", b"4294967296", b"18446744073709551617", b"1" * 30])
    return data[: number.start()] + changed + data[number.end() :]


def _bare_line_ends(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    return data.replace(b"\r\n", random.choice([b"\n", b"\r"]), random.choice([1, 2, -1]))


def _change_protocol(random: Random, data: bytes, bases: list[bytes]) -> bytes:
    return data.replace(b"HTTP/1.1", random.choice([b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"RTSP/1.0", b" HTTP/1.1"]))


SPOILERS: list[Spoiler] = [
    *[_flip, _replace, _truncate, _drop, _splice, _insert, _inject_header, _inject_header, _inject_header],
    *[_repeat_line, _swap_lines, _change_number, _change_number, _bare_line_ends, _change_protocol],
]
