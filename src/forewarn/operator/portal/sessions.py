"""Who is visiting: the log-in cookie, what proves that a form is ours, and how often a log-in may fail.

The cookie holds the visitor's own token and when the log-in ends, which the token signs. Nothing is kept here: every request
is authenticated anew, so a revoked token is out at once, and any node takes a log-in made at another. Scripts cannot read it,
and no other site's page sends it along. A form carries a keyed hash under the token that only our own pages show: it stays
good when its owner logs in again.
"""

import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from forewarn.core.errors import Forbidden, TooManyAttempts, Unauthorized
from forewarn.operator.api.access import Access, Identity

LOG_IN_LASTS_S = 12 * 3600
MAX_TOKEN_CHARS = 1_024
MAX_FAILURES = 10
FAILURES_WITHIN_S = 60.0
MAX_PEERS = 1_000
EXPIRED = "your log-in has ended, or its token was revoked: log in again"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks; `proof` goes with every form they are shown; the log-in ends at `expires_s` of the wall clock."""

    who: Identity
    proof: str
    expires_s: float


class Sessions:
    """`now_s` is the wall clock, `free_key` makes the proofs where nobody logs in; `secure` where browsers speak TLS."""

    def __init__(
        self, access: Access, *, now_s: Callable[[], float], secure: bool, free_key: bytes, free: bool = False
    ) -> None:
        self._access = access
        self._now_s = now_s
        self._secure = secure
        self._free_key = free_key
        self.free = free

    def visitor(self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str) -> Visitor:
        """Whoever the cookie says, authenticated now, or Unauthorized."""
        if self.free:
            return Visitor(self._access.identify(headers, peer), _proof(self._free_key), float("inf"))
        expires_s, token = _read(cookies.get(self._name(headers), ""))
        if not token:
            raise Unauthorized("log in first")
        if expires_s <= self._now_s():
            raise Unauthorized(EXPIRED)
        try:
            who = self._access.identify({"authorization": f"Bearer {token}"}, peer)
        except Unauthorized:
            raise Unauthorized(EXPIRED) from None
        return Visitor(who, _proof(who.secret), expires_s)

    def still_in(self, visitor: Visitor) -> bool:
        return self._now_s() < visitor.expires_s and self._access.still_known(visitor.who)

    def log_in(self, token: str, headers: Mapping[str, str], peer: str) -> tuple[Visitor, str]:
        """The visitor and their new cookie."""
        token = token.strip()
        if not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isprintable():
            raise Unauthorized("this is not a token: paste the whole of it")
        who = self._access.identify({"authorization": f"Bearer {token}"}, peer)
        expires_s = int(self._now_s()) + LOG_IN_LASTS_S
        return Visitor(who, _proof(who.secret), expires_s), self._cookie(
            headers, cookie_value(expires_s, token), LOG_IN_LASTS_S
        )

    def forgotten(self, headers: Mapping[str, str]) -> str:
        """The cookie that ends a log-in."""
        return self._cookie(headers, "", 0)

    def _name(self, headers: Mapping[str, str]) -> str:
        """Under TLS one that browsers refuse from anybody else; else with the port, for browsers do not tell ports apart."""
        port = headers.get("host", "").rpartition(":")[2]
        return (
            "__Host-forewarn" if self._secure else f"forewarn-{port if port.isdecimal() and port.isascii() else 'web'}"
        )

    def _cookie(self, headers: Mapping[str, str], value: str, lasts_s: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self._name(headers)}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"


def cookie_value(expires_s: int, token: str) -> str:
    signed = _signed(token.encode(), f"a log-in until {expires_s}")
    return f"{expires_s}.{signed}.{base64.urlsafe_b64encode(token.encode()).decode().rstrip('=')}"


def _read(value: str) -> tuple[int, str]:
    """When the log-in ends and its token; 0 where that is not what was signed."""
    expires, _, rest = value.partition(".")
    token = rest.rpartition(".")[2]
    try:
        expires_s = int(expires[:15])
        secret = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except (ValueError, binascii.Error):  # ours or nothing
        return 0, ""
    ours = hmac.compare_digest(cookie_value(expires_s, secret).encode(), value.encode())
    return expires_s if ours else 0, secret


def _proof(key: bytes) -> str:
    return _signed(key, "a form of ours")


def _signed(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def check_form(visitor: Visitor, given: str) -> None:
    if not hmac.compare_digest(visitor.proof.encode(), given.encode()):
        raise Forbidden("this form belongs to another log-in: go back, load its page again, and send it from there")


def check_origin(headers: Mapping[str, str]) -> None:
    """A form of another site's page says so itself, in Origin or Sec-Fetch-Site."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and _place(origin) != host.lower():
        raise Forbidden(
            f"this form comes from {origin[:100]}, and not from {host[:100]}: open the portal itself; a proxy in front of it"
            " must pass Host on unchanged"
        )
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this form comes from another site's page: open the portal itself")


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # no address at all
        return ""


class Attempts:
    """So many log-ins of one address may fail in a while; the oldest addresses are forgotten first.

    The right token is never refused for the failures of others behind the same address.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, peer: str) -> None:
        failures = self._failures.get(peer, ())
        if sum(self._clock_s() - at_s < FAILURES_WITHIN_S for at_s in tuple(failures)) >= MAX_FAILURES:
            raise TooManyAttempts(
                f"{MAX_FAILURES} log-ins from your address failed within a minute: wait {FAILURES_WITHIN_S:g} s, then try again"
            )

    def failed(self, peer: str) -> None:
        self._failures.setdefault(peer, deque(maxlen=MAX_FAILURES)).append(self._clock_s())
        self._failures.move_to_end(peer)
        while len(self._failures) > MAX_PEERS:
            self._failures.popitem(last=False)
