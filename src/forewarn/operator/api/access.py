"""Who is asking, and what they may: tokens, roles, and the scopes of an owner. Comes before anything else about a request.

A token is 32 random bytes; the store has its SHA-256. Where the service runs without tokens (an emulator on loopback), whoever
comes is an operator, but a foreign Host or Origin is refused: a web page must not be able to use the visitor's own service.
"""

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from forewarn.core.errors import Forbidden, ServiceError, Unauthorized
from forewarn.core.model import Actor, Role, Token

SECRET_PREFIX = "fw_"  # noqa: S105 - how a token begins, not one
ENVIRONMENT_TOKEN = "FOREWARN_TOKEN"  # noqa: S105 - the name of a variable
WRONG = "this token is not known, or was revoked: make one with `forewarn token create`"
MISSING = "a token is needed: send `Authorization: Bearer TOKEN`; "
IN_THE_FOLDER = "on the service's own machine the operator's token is in the state directory, in operator.token"
IN_THE_ENVIRONMENT = f"it is the one that was in {ENVIRONMENT_TOKEN} where this was started"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks: a token's owner. `within` are the scopes an owner is bound to, None for the whole fleet."""

    token_id: str
    name: str
    role: Role
    within: tuple[str, ...] | None
    secret: bytes
    origin: str

    @property
    def actor(self) -> Actor:
        return Actor(self.name, self.origin)

    def sees(self, scope: str) -> bool:
        return self.within is None or scope in self.within

    @property
    def sees_tokens(self) -> bool:
        return self.role is Role.OPERATOR

    def require_scope(self, scope: str) -> None:
        if not self.sees(scope):
            raise Forbidden(f"scope {scope} is not among yours: {', '.join(self.within or ())}")


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_text(random_bytes: bytes) -> str:
    return SECRET_PREFIX + base64.urlsafe_b64encode(random_bytes).decode().rstrip("=")


def sealed(asking: Identity, nonce: str, secret: bytes) -> bytes:
    """A new token's 32 bytes under a pad that only the caller's own token can make; sealing it again opens it.

    So the answer to a repeated request can be kept for a day without the secret being readable in the store.
    """
    pad = hmac.new(asking.secret, f"receipt {nonce}".encode(), hashlib.sha256).digest()
    return bytes(a ^ b for a, b in zip(secret, pad, strict=True))


class Access:
    """`tokens` reads those of the store; `environment_token` is an operator's as well; `free` asks for none."""

    def __init__(
        self,
        tokens: Callable[[], Iterable[Token]],
        *,
        environment_token: str = "",
        free: bool = False,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        """`reachable` says, without asking the store, whether it is worth asking."""
        self._tokens = tokens
        self._reachable = reachable
        self._environment_digest = digest(environment_token) if environment_token else ""
        self._free = free
        self._latest: tuple[Token, ...] = ()

    def still_known(self, asking: Identity) -> bool:
        """Whether whoever asked a while ago could ask again."""
        if self._free or asking.token_id.startswith("environment "):
            return True
        return any(token.id == asking.token_id for token in self._tokens())

    def watcher(self, headers: Mapping[str, str], peer: str) -> Identity:
        """As `identify`, for health and metrics: while the store is away whoever was known when it last answered may look."""
        return self._identified(headers, peer, self._known)

    def identify(self, headers: Mapping[str, str], peer: str) -> Identity:
        return self._identified(headers, peer, self._read)

    def learn(self) -> None:
        """Whom the store knows now may look when it is away."""
        self._known()

    def _known(self) -> tuple[Token, ...]:
        if self._reachable():
            with suppress(ServiceError):
                self._read()
        return self._latest

    def _read(self) -> tuple[Token, ...]:
        self._latest = tuple(self._tokens())
        return self._latest

    def _identified(self, headers: Mapping[str, str], peer: str, tokens: Callable[[], Iterable[Token]]) -> Identity:
        if self._free:
            _refuse_foreign(headers)
            return Identity("free", "operator", Role.OPERATOR, None, b"", f"{peer} without a token")
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise Unauthorized(MISSING + self._where(tokens))
        wanted, found = digest(secret.strip()), None
        origin, raw = f"{peer} by token", secret.strip().encode()
        # Before the store is asked, which may be away: whoever brings it is known all the same.
        if self._environment_digest and hmac.compare_digest(self._environment_digest, wanted):
            token_id = f"environment {wanted[:16]}"
            return Identity(token_id, "operator", Role.OPERATOR, None, raw, f"{origin} of {ENVIRONMENT_TOKEN}")
        # Every token is compared, whichever matches: how long it takes tells nothing.
        for token in tokens():
            if hmac.compare_digest(token.digest, wanted):
                found = token
        if found is None:
            raise Unauthorized(WRONG)
        within = found.scopes if found.role is Role.OWNER else None
        return Identity(found.id, found.name, found.role, within, raw, f"{origin} {found.id[:8]}")

    def _where(self, tokens: Callable[[], Iterable[Token]]) -> str:
        """A service keeps a token in its folder; an emulator off loopback has the environment's alone."""
        only = self._environment_digest and not any(True for _ in tokens())
        return IN_THE_ENVIRONMENT if only else IN_THE_FOLDER


def _refuse_foreign(headers: Mapping[str, str]) -> None:
    """By name only loopback is ours: a page elsewhere, or a name that resolves to loopback, is not."""
    for header, host in (
        ("Host", _host(headers.get("host", ""))),
        ("Origin", _host(headers["origin"].partition("://")[2]) if "origin" in headers else "localhost"),
    ):
        if not _is_loopback(host):
            raise Forbidden(f"{header} {host!r} is not this machine: a service without tokens answers loopback alone")


def _host(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:  # such as an open bracket
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
