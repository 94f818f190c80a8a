"""Requests to a registrar with an HTTP API: one that changes something, and one that checks the result.

Secrets are in a file of headers and appear in no message. Neither does the query of a URL.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import check_keys, count, one_of, read_secret_file, text
from forewarn.guest.errors import ConfigError, EndpointError, NoAnswer, StepFailed, Unanswered
from forewarn.guest.transport import Response, request_once

METHODS = ("PUT", "POST", "DELETE", "PATCH")
MAX_HEADERS = 50
# Statuses of a GET that say whether something is there. Others, such as 401, 302 and 503, say nothing about it.
_CONCLUSIVE = (*range(200, 300), 404, 410)
# Statuses that mean "try later", as does any 5xx.
_LATER = (408, 429)
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+)[ \t]*:[ \t]*([!-~]|[!-~][ -~]*[!-~])[ \t]*")


class Change(NamedTuple):
    """A request that changes something; any 2xx is success."""

    method: str
    url: str
    body: str = ""

    def send(self, headers: Dict[str, str], timeout_s: float) -> str:
        """Return "" on success, or why it is not known whether it was done; raise StepFailed when it was refused.

        Raises Unanswered when there is no response in time.
        """
        try:
            status = _request(self.method, self.url, headers, self.body, timeout_s).status
        except NoAnswer as error:
            raise Unanswered(f"{self.method} {without_query(self.url)}: {error}") from None
        except EndpointError as error:
            return f"{self.method} {without_query(self.url)}: {error}"
        if 200 <= status < 300:
            return ""
        failure = f"{self.method} {without_query(self.url)} was answered {status}"
        if status >= 500 or status in _LATER:
            return failure
        raise StepFailed(failure)


class Expectation(NamedTuple):
    """A GET, and what its response must be: the status, and something in the body."""

    url: str
    status: int = 200
    # An RFC 6901 pointer into JSON, and the value there.
    pointer: Optional[str] = None
    equals: Any = None
    contains: str = ""

    def check(self, headers: Dict[str, str], timeout_s: float) -> Tuple[Optional[bool], str]:
        """Return whether the response is as expected (None: inconclusive) and what differs.

        Raises StepFailed without a usable response, and its subclass Unanswered when there is none in time.
        """
        try:
            answer = _request("GET", self.url, headers, "", timeout_s)
        except NoAnswer as error:
            raise Unanswered(f"GET {without_query(self.url)}: {error}") from None
        except EndpointError as error:
            raise StepFailed(f"GET {without_query(self.url)}: {error}") from None
        if answer.status != self.status:
            if answer.status not in _CONCLUSIVE:
                raise StepFailed(f"GET {without_query(self.url)} was answered {answer.status}")
            # If the content decides, a response with another status is inconclusive.
            by_content = bool(self.contains) or self.pointer is not None
            return None if by_content else False, f"answers {answer.status}, not {self.status}"
        if self.contains and self.contains.encode() not in answer.body:
            return False, f"does not contain {self.contains!r}"
        if self.pointer is not None:
            value = _value_at(answer.body, self.pointer)
            if value is None:
                return None, f"has nothing at {self.pointer!r}"
            if not _equal(value, self.equals):
                return False, f"has something else than {self.equals!r} at {self.pointer!r}"
        return True, ""


def parse_change(table: Any, where: str) -> Change:
    check_keys(table, Change._fields, where)
    body = text(table["body"], f"{where}.body") if "body" in table else ""
    return Change(one_of(table.get("method"), METHODS, f"{where}.method"), _url(table.get("url"), f"{where}.url"), body)


def parse_expectation(table: Any, where: str) -> Expectation:
    check_keys(table, Expectation._fields, where)
    pointer, equals = table.get("pointer"), table.get("equals")
    if (pointer is None) != (equals is None):
        raise ConfigError(f"{where}: `pointer` and `equals` go together")
    if pointer is not None and not (isinstance(pointer, str) and pointer[:1] in ("", "/")):
        raise ConfigError(f"{where}.pointer: {pointer!r} is not a JSON pointer: write it like /members/0/state")
    if equals is not None and not isinstance(equals, (str, int, float)):
        raise ConfigError(f"{where}.equals: write a text, a number, true or false")
    contains = text(table["contains"], f"{where}.contains") if "contains" in table else ""
    status = count(table.get("status", 200), f"{where}.status")
    return Expectation(_url(table.get("url"), f"{where}.url"), status, pointer, equals, contains)


def _url(value: Any, where: str) -> str:
    url = text(value, where)
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{where}: this is not an http:// or https:// address")
    if "@" in parts.netloc:
        raise ConfigError(f"{where}: a password is a secret: write an Authorization header into headers_file")
    return url


def read_headers(file: str) -> Dict[str, str]:
    """Return the headers in the file, one `Name: value` per line. Error messages do not quote it."""
    lines = [line for line in read_secret_file(file).splitlines() if line.strip()]
    headers = [_HEADER.fullmatch(line) for line in lines[: MAX_HEADERS + 1]]
    if len(headers) > MAX_HEADERS or not all(headers):
        raise StepFailed(f"{file} must have lines like `Authorization: Bearer …`, at most {MAX_HEADERS}")
    return {each[1]: each[2] for each in headers if each}


def without_query(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


def _request(method: str, url: str, headers: Dict[str, str], body: str, timeout_s: float) -> Response:
    if body:
        headers = {"Content-Type": "application/json", **headers}
    return request_once(method, url, headers=headers, body=body.encode(), timeout_s=timeout_s)


def _equal(value: Any, expected: Any) -> bool:
    """Compare values; 1 and true are different."""
    return bool(value == expected) and isinstance(value, bool) == isinstance(expected, bool)


def _value_at(body: bytes, pointer: str) -> Any:
    """Return the value at the pointer, or None when there is none."""
    try:
        value = json.loads(body)
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            value = value[int(key)] if isinstance(value, list) else value[key]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return value
