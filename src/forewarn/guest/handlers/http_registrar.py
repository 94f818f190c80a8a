"""Requests to a registrar with an HTTP API: one that changes something, and one that looks whether it is so.

Secrets stand in a file of headers and are in no message; neither is a query.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import count, keys_of, one_of, readable_secret, text
from forewarn.guest.errors import ConfigError, EndpointError, StepFailed
from forewarn.guest.transport import Answer, Transport

METHODS = ("PUT", "POST", "DELETE", "PATCH")
MAX_HEADERS = 50
# What a GET may be answered where not as said: it is there, or it is not. Others, as 401, 302 and 503, are about the asking.
_TELLING = (*range(200, 300), 404, 410)
# "Not now" to a request that changes something, as is any 5xx.
_LATER = (408, 429)
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*:[ \t]*([!-~]|[!-~][ -~]*[!-~])[ \t]*")


class Change(NamedTuple):
    """A request after which something should be otherwise; any 2xx is a good answer."""

    method: str
    url: str
    body: str = ""

    def make(self, headers: Dict[str, str], timeout_s: float) -> str:
        """ "" when it was answered well; else why nobody knows whether it was done. StepFailed when it was refused."""
        try:
            status = _request(self.method, self.url, headers, self.body, timeout_s).status
        except EndpointError as error:
            return f"{self.method} {named(self.url)}: {error}"
        if 200 <= status < 300:
            return ""
        said = f"{self.method} {named(self.url)} was answered {status}"
        if status >= 500 or status in _LATER:
            return said
        raise StepFailed(said)


class Look(NamedTuple):
    """A GET, and what its answer must be: its status, and what stands in its body."""

    url: str
    status: int = 200
    # An RFC 6901 pointer into JSON, and the value there.
    pointer: Optional[str] = None
    equals: Any = None
    contains: str = ""

    def see(self, headers: Dict[str, str], timeout_s: float) -> Tuple[Optional[bool], str]:
        """Whether the answer is as it must be, and how it is. None: it tells neither. StepFailed: there is no answer."""
        try:
            answer = _request("GET", self.url, headers, "", timeout_s)
        except EndpointError as error:
            raise StepFailed(f"GET {named(self.url)}: {error}") from None
        if answer.status != self.status:
            if answer.status not in _TELLING:
                raise StepFailed(f"GET {named(self.url)} was answered {answer.status}")
            # Where its content tells, another answer has no such content.
            by_content = bool(self.contains) or self.pointer is not None
            return None if by_content else False, f"answers {answer.status}, not {self.status}"
        if self.contains and self.contains.encode() not in answer.body:
            return False, f"does not contain {self.contains!r}"
        if self.pointer is not None:
            found = _at(answer.body, self.pointer)
            if found is None:
                return None, f"has nothing at {self.pointer!r}"
            if not _equal(found, self.equals):
                return False, f"has something else than {self.equals!r} at {self.pointer!r}"
        return True, ""


def change(table: Any, where: str) -> Change:
    keys_of(table, Change._fields, where)
    body = text(table["body"], f"{where}.body") if "body" in table else ""
    return Change(one_of(table.get("method"), METHODS, f"{where}.method"), _url(table.get("url"), f"{where}.url"), body)


def look(table: Any, where: str) -> Look:
    keys_of(table, Look._fields, where)
    pointer, equals = table.get("pointer"), table.get("equals")
    if (pointer is None) != (equals is None):
        raise ConfigError(f"{where}: `pointer` and `equals` go together")
    if pointer is not None and not (isinstance(pointer, str) and pointer[:1] in ("", "/")):
        raise ConfigError(f"{where}.pointer: {pointer!r} is no JSON pointer: write it like /members/0/state")
    if equals is not None and not isinstance(equals, (str, int, float)):
        raise ConfigError(f"{where}.equals: write a text, a number, true or false")
    contains = text(table["contains"], f"{where}.contains") if "contains" in table else ""
    status = count(table.get("status", 200), f"{where}.status")
    return Look(_url(table.get("url"), f"{where}.url"), status, pointer, equals, contains)


def _url(value: Any, where: str) -> str:
    url = text(value, where)
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{where}: this is no http:// or https:// address")
    if "@" in parts.netloc:
        raise ConfigError(f"{where}: a password is a secret: write an Authorization header into headers_file")
    return url


def headers_of(file: str) -> Dict[str, str]:
    """A `Name: value` a line. Complaints do not quote it."""
    complaint = readable_secret(file)
    if complaint:
        raise StepFailed(complaint)
    try:
        lines = [line for line in Path(file).read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        raise StepFailed(f"{file} cannot be read as text") from None
    found = [_HEADER.fullmatch(line) for line in lines[: MAX_HEADERS + 1]]
    if len(found) > MAX_HEADERS or not all(found):
        raise StepFailed(f"{file} must have lines like `Authorization: Bearer …`, at most {MAX_HEADERS}")
    return {each[1]: each[2] for each in found if each}


def named(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


def _request(method: str, url: str, headers: Dict[str, str], body: str, timeout_s: float) -> Answer:
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if body:
        headers = {"Content-Type": "application/json", **headers}
    transport = Transport()
    try:
        endpoint = f"{parts.scheme}://{parts.netloc}"
        return transport.request(method, endpoint, path, headers=headers, body=body.encode(), timeout_s=timeout_s)
    finally:
        transport.close()


def _equal(found: Any, wanted: Any) -> bool:
    """1 is not true."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _at(body: bytes, pointer: str) -> Any:
    """What the pointer leads to; None when it leads nowhere."""
    try:
        found = json.loads(body)
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return found
