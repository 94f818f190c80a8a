"""Logins: the cookie, and the proof that a form is ours.

The cookie holds a random session id, never the token. The store holds the hash of the id, the token's id and the end of the
login, so every node knows the login. It ends when its time is over, when the user logs out, and when its token is revoked or
expires: each request reads both again. Scripts cannot read the cookie, and browsers do not send it with requests from other
sites. Each form carries a hash keyed with the hash of the token, which only our own pages show. It stays valid when the user
logs in again.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from urllib.parse import urlsplit

from forewarn.core.errors import Forbidden, Unauthorized
from forewarn.core.operator_model import LoginSession
from forewarn.operator.api.access import SECRET_PREFIX, Access, Identity, digest, secret_text

LOGIN_LASTS_S = 12 * 3600
MAX_TOKEN_CHARS = 1_024
EXPIRED = "your login has ended, or its token was revoked or has expired: log in again"


class LoginStore(Protocol):
    """Where logins are kept; `Store` is one."""

    def add_session(self, session: LoginSession) -> None: ...

    def session(self, digest: str) -> LoginSession | None: ...

    def end_session(self, digest: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Login:
    """An authenticated caller. Every form carries `form_proof`; `session` is None in a service without logins."""

    caller: Identity
    form_proof: str
    session: LoginSession | None = None


class Sessions:
    """Makes logins from tokens and reads them from cookies."""

    def __init__(
        self,
        access: Access,
        store: LoginStore,
        *,
        now: Callable[[], datetime],
        random: Callable[[], bytes],
        secure: bool,
        free: bool = False,
    ) -> None:
        """`now` is the service's time, `random` returns 32 random bytes; `secure` if browsers use TLS; `free`: no logins."""
        self._access = access
        self._store = store
        self._now = now
        self._random = random
        self._secure = secure
        self._free_key = random()
        self.free = free

    def authenticate(self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str) -> Login:
        """Return the login of the cookie, or raise Unauthorized."""
        if self.free:
            return Login(self._access.identify(headers, peer), _form_proof(self._free_key))
        session_id = cookies.get(self._cookie_name(headers), "")
        if not session_id:
            raise Unauthorized("log in first")
        session = self._store.session(digest(session_id))
        if session is None or session.expires <= self._now():
            raise Unauthorized(EXPIRED)
        try:
            caller = self._access.identify_login(session.token_id, session_id, peer)
        except Unauthorized:
            raise Unauthorized(EXPIRED) from None
        return _login(caller, session)

    def is_valid(self, login: Login) -> bool:
        """Return whether a login of a while ago is still valid."""
        if login.session is not None:
            session = self._store.session(login.session.digest)
            if session is None or session.expires <= self._now():
                return False
        return self._access.still_known(login.caller)

    def log_in(
        self, token: str, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str
    ) -> tuple[Login, str]:
        """Return the login and its Set-Cookie header. The login that the browser had before ends."""
        token = token.strip()
        if not 0 < len(token) <= MAX_TOKEN_CHARS or not token.isprintable():
            raise Unauthorized("this is not a token: paste the whole token")
        caller = self._access.identify({"authorization": f"Bearer {token}"}, peer)
        session_id, now = secret_text(self._random()).removeprefix(SECRET_PREFIX), self._now()
        session = LoginSession(
            digest=digest(session_id),
            token_id=caller.token_id,
            created=now,
            expires=now + timedelta(seconds=LOGIN_LASTS_S),
        )
        self._store.add_session(session)
        if previous := cookies.get(self._cookie_name(headers), ""):
            self._store.end_session(digest(previous))
        return _login(caller, session), self._set_cookie(headers, session_id, LOGIN_LASTS_S)

    def log_out(self, login: Login) -> None:
        if login.session is not None:
            self._store.end_session(login.session.digest)

    def expired_cookie(self, headers: Mapping[str, str]) -> str:
        """Return the Set-Cookie header that deletes the cookie."""
        return self._set_cookie(headers, "", 0)

    def _cookie_name(self, headers: Mapping[str, str]) -> str:
        """Return a name with the port, because browsers send cookies to all ports of a host.

        Under TLS it has the prefix by which browsers accept the cookie only from this host, over TLS.
        """
        port = headers.get("host", "").rpartition(":")[2]
        prefix = "__Host-" if self._secure else ""
        return f"{prefix}forewarn-{port if port.isdecimal() and port.isascii() else 'web'}"

    def _set_cookie(self, headers: Mapping[str, str], value: str, lasts_s: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self._cookie_name(headers)}={value}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"


def _login(caller: Identity, session: LoginSession) -> Login:
    return Login(caller, _form_proof(caller.token_digest.encode()), session)


def _form_proof(key: bytes) -> str:
    return hmac.new(key, b"a form of ours", hashlib.sha256).hexdigest()


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
