"""Logins: the cookie, the proof that a form is ours, and the limit on failed attempts.

The cookie holds the caller's own token and the end of the login, signed with the token. The service keeps no state: it
authenticates every request again, so a revoked token stops working at once, and a login at one node is valid at all nodes.
Scripts cannot read the cookie, and browsers do not send it with requests from other sites. Each form carries a hash keyed with
the token, which only our own pages show. It stays valid when the caller logs in again.
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

LOGIN_LASTS_S = 12 * 3600
MAX_TOKEN_CHARS = 1_024
MAX_FAILURES = 10
FAILURES_WITHIN_S = 60.0
MAX_PEERS = 1_000
EXPIRED = "your login has ended, or its token was revoked: log in again"


@dataclass(frozen=True, slots=True)
class Login:
    """An authenticated caller. Every form carries `form_proof`; the login ends at `expires_s` of the wall clock."""

    caller: Identity
    form_proof: str
    expires_s: float


class Sessions:
    """Makes logins from tokens and reads them from cookies."""

    def __init__(
        self, access: Access, *, now_s: Callable[[], float], secure: bool, free_key: bytes, free: bool = False
    ) -> None:
        """`now_s` is the wall clock; `secure` if browsers use TLS; without logins (`free`) proofs are keyed with `free_key`."""
        self._access = access
        self._now_s = now_s
        self._secure = secure
        self._free_key = free_key
        self.free = free

    def authenticate(self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str) -> Login:
        """Return the login of the cookie, or raise Unauthorized."""
        if self.free:
            return Login(self._access.identify(headers, peer), _form_proof(self._free_key), float("inf"))
        expires_s, token = _read_cookie(cookies.get(self._cookie_name(headers), ""))
        if not token:
            raise Unauthorized("log in first")
        if expires_s <= self._now_s():
            raise Unauthorized(EXPIRED)
        try:
            caller = self._access.identify({"authorization": f"Bearer {token}"}, peer)
        except Unauthorized:
            raise Unauthorized(EXPIRED) from None
        return Login(caller, _form_proof(caller.secret), expires_s)

    def is_valid(self, login: Login) -> bool:
        """Return whether a login of a while ago is still valid."""
        return self._now_s() < login.expires_s and self._access.still_known(login.caller)

    def log_in(self, token: str, headers: Mapping[str, str], peer: str) -> tuple[Login, str]:
        """Return the login and its Set-Cookie header."""
        token = token.strip()
        if not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isprintable():
            raise Unauthorized("this is not a token: paste the whole token")
        caller = self._access.identify({"authorization": f"Bearer {token}"}, peer)
        expires_s = int(self._now_s()) + LOGIN_LASTS_S
        cookie = self._set_cookie(headers, cookie_value(expires_s, token), LOGIN_LASTS_S)
        return Login(caller, _form_proof(caller.secret), expires_s), cookie

    def expired_cookie(self, headers: Mapping[str, str]) -> str:
        """Return the Set-Cookie header that ends a login."""
        return self._set_cookie(headers, "", 0)

    def _cookie_name(self, headers: Mapping[str, str]) -> str:
        """Return a name that browsers protect under TLS; otherwise one with the port, which cookies do not tell apart."""
        if self._secure:
            return "__Host-forewarn"
        port = headers.get("host", "").rpartition(":")[2]
        return f"forewarn-{port if port.isdecimal() and port.isascii() else 'web'}"

    def _set_cookie(self, headers: Mapping[str, str], value: str, lasts_s: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self._cookie_name(headers)}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"


def cookie_value(expires_s: int, token: str) -> str:
    signature = _signature(token.encode(), f"a log-in until {expires_s}")
    return f"{expires_s}.{signature}.{base64.urlsafe_b64encode(token.encode()).decode().rstrip('=')}"


def _read_cookie(value: str) -> tuple[int, str]:
    """Return the end of the login and its token; 0 if the signature does not fit."""
    expires, _, rest = value.partition(".")
    encoded = rest.rpartition(".")[2]
    try:
        expires_s = int(expires[:15])
        token = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (ValueError, binascii.Error):
        return 0, ""
    signed = hmac.compare_digest(cookie_value(expires_s, token).encode(), value.encode())
    return expires_s if signed else 0, token


def _form_proof(key: bytes) -> str:
    return _signature(key, "a form of ours")


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def check_proof(login: Login, given: str) -> None:
    if not hmac.compare_digest(login.form_proof.encode(), given.encode()):
        raise Forbidden("this form belongs to another login: go back, reload its page, and submit it again")


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a form from a page of another site: browsers send Origin or Sec-Fetch-Site with it."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and _host(origin) != host.lower():
        raise Forbidden(
            f"this form comes from {origin[:100]}, not from {host[:100]}: open the portal itself; a proxy in front of it"
            " must pass on Host unchanged"
        )
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this form comes from a page of another site: open the portal itself")


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class LoginAttempts:
    """Limits failed logins per address; forgets the oldest addresses first.

    A correct token always works, however many logins from its address failed.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, peer: str) -> None:
        failures = self._failures.get(peer, ())
        if sum(self._clock_s() - at_s < FAILURES_WITHIN_S for at_s in tuple(failures)) >= MAX_FAILURES:
            raise TooManyAttempts(
                f"{MAX_FAILURES} logins from your address failed within a minute: wait {FAILURES_WITHIN_S:g} s, then try again"
            )

    def add_failure(self, peer: str) -> None:
        self._failures.setdefault(peer, deque(maxlen=MAX_FAILURES)).append(self._clock_s())
        self._failures.move_to_end(peer)
        while len(self._failures) > MAX_PEERS:
            self._failures.popitem(last=False)
