"""What commands need of the API without calling it: its paths and its errors. The client is in `client`, which imports TLS.

ForewarnError
├── NotReachable     no server answers at the address (exit code 3)
└── Failed           the server refused, or its response is not one of this API (exit code 1)
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from forewarn.core.errors import ForewarnError

Json = dict[str, Any]
Query = Mapping[str, str | int | bool | Iterable[str] | None]


class NotReachable(ForewarnError):
    code = "not_reachable"


class Failed(ForewarnError):
    """A refusal; `http_status` and `api_code` are those of the API's error, if it sent one."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.http_status, self.api_code = status, code


def path_of(*parts: str) -> str:
    """Return `/v1/…` with each part quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
