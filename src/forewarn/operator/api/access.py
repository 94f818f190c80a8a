"""Who makes a request, and what that caller may do: tokens, roles, and the scopes of an owner.

A request is identified before anything else about it is read. A token is 32 random bytes; the store holds its SHA-256. A
service that runs without tokens (an emulator on loopback) takes every caller for an operator, but refuses what pages of other
sites can send: a web page must not be able to use a service on its reader's machine. Another port is another site, too.
"""

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime

from forewarn.core.errors import Forbidden, Invalid, ServiceError, Unauthorized
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import Actor, ApprovalMode, Event, Source
from forewarn.core.operator_model import Role, Token
from forewarn.operator.api.failed_attempts import FailedAttempts
from forewarn.operator.host_header import host_of, is_loopback

SECRET_PREFIX = "fw_"  # noqa: S105 - how a token begins, not one
ENVIRONMENT_TOKEN = "FOREWARN_TOKEN"  # noqa: S105 - the name of a variable
WRONG = "this token is not known, or was revoked: make one with `forewarn token create`"
EXPIRED = "this token has expired: make another with `forewarn token create`"
MISSING = "a token is needed: send `Authorization: Bearer TOKEN`; "
IN_STATE_DIR = "on the service's own machine the operator's token is in the state directory, in operator.token"
IN_ENVIRONMENT = f"it is the one that was in {ENVIRONMENT_TOKEN} where this was started"

CHANGE_TYPES = frozenset({"application/json", "application/toml"})
NOT_FOR_CALENDAR = "this token is not for the calendar: make one with `forewarn token create --role calendar`"
CALENDAR_ONLY = "this token reads the calendar and nothing else: use another token"
# Of the API. A token for the calendar makes no call of the API.
EVERYONE = frozenset(Role) - {Role.CALENDAR}
OPERATORS = frozenset({Role.OPERATOR})
OWNERS = frozenset({Role.OPERATOR, Role.OWNER})


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a request. `within` are the scopes that its token is bound to, None for the whole fleet.

    `secret` is what only the caller knows: its token, or the session id of its login. `token_digest` is the token's hash.
    """

    token_id: str
    name: str
    role: Role
    within: tuple[str, ...] | None
    secret: bytes
    origin: str
    token_digest: str = ""

    @property
    def actor(self) -> Actor:
        return Actor(self.name, self.origin)

    def sees(self, scope: str) -> bool:
        return self.within is None or scope in self.within

    def manages(self, token: Token) -> bool:
        """Return whether the caller sees and revokes the token: an owner only those for the calendar of its own scopes."""
        if self.role is Role.OWNER:
            return token.role is Role.CALENDAR and bool(token.scopes) and all(map(self.sees, token.scopes))
        return self.role in OPERATORS

    @property
    def sees_hooks(self) -> bool:
        return self.role in OWNERS

    def require_scope(self, scope: str) -> None:
        if not self.sees(scope):
            raise Forbidden(f"scope {scope} is not among yours: {', '.join(self.within or ())}")


def why_not_approve(caller: Identity, event: Event) -> str:
    """Return why this caller may not approve the event, or ""."""
    if caller.role is Role.OWNER and event.approval_mode is ApprovalMode.OPERATOR:
        return f"event {event.id} is approved by operators alone: its scope has approval = operator"
    return ""


def why_not_cancel(caller: Identity, event: Event) -> str:
    """Return why this caller may not cancel the event, or ""."""
    if caller.role is Role.OWNER and event.source is not Source.USER:
        return f"event {event.id} is the platform's: an owner cancels user events only"
    return ""


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def secret_text(random_bytes: bytes) -> str:
    return SECRET_PREFIX + base64.urlsafe_b64encode(random_bytes).decode().rstrip("=")


def sealed(caller: Identity, nonce: str, secret: bytes) -> bytes:
    """Encrypt a new token's 32 bytes with a pad that only the caller's own secret can make; sealing twice decrypts them.

    So the response to a repeated request can be saved for a day without a readable secret in the store.
    """
    pad = hmac.new(caller.secret, f"receipt {nonce}".encode(), hashlib.sha256).digest()
    return bytes(a ^ b for a, b in zip(secret, pad, strict=True))


class Access:
    """Identifies callers by their tokens."""

    def __init__(
        self,
        tokens: Callable[[], Iterable[Token]],
        *,
        now: Callable[[], datetime],
        failures: FailedAttempts,
        environment_token: str = "",
        free: bool = False,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        """`tokens` reads those of the store; `environment_token` is an operator's too; `free` needs no token.

        `now` is the service's time, by which tokens expire. `failures` counts and limits requests with a wrong token.
        `reachable` tells, without using the store, whether the store is likely to answer.
        """
        self._tokens = tokens
        self._now = now
        self.failures = failures
        self._uses_lock = threading.Lock()
        self._uses: dict[str, datetime] = {}
        self._reachable = reachable
        self._environment_digest = digest(environment_token) if environment_token else ""
        self._free = free
        self._cached: tuple[Token, ...] = ()

    def identify(self, headers: Mapping[str, str], peer: str) -> Identity:
        return self._identify(headers, peer, self._read)

    def identify_calendar(self, secret: str, headers: Mapping[str, str], peer: str) -> Identity:
        """Identify a reader of the calendar by the token in its address; no other kind of token will do."""
        if self._free:
            return _free_identity(headers, peer)
        if not secret:
            raise Unauthorized(
                f"the calendar needs `?token=TOKEN` in its address; {NOT_FOR_CALENDAR.partition(': ')[2]}"
            )
        if self._environment_digest and hmac.compare_digest(self._environment_digest, digest(secret)):
            raise Forbidden(NOT_FOR_CALENDAR)
        token = self._find(secret, peer, self._read)
        if token.role is not Role.CALENDAR:
            raise Forbidden(NOT_FOR_CALENDAR)
        return self._caller(token, secret.encode(), peer)

    def is_doubtful(self, headers: Mapping[str, str], peer: str) -> bool:
        """Return whether a token is probably wrong: the store is not read, so a new token may seem wrong.

        True only for an address with too many wrong tokens.
        """
        secret = _bearer_token(headers)
        if self._free or not secret or not self.failures.too_many(peer):
            return False
        wanted = digest(secret)
        known = [self._environment_digest, *(t.digest for t in self._cached if not self._has_expired(t))]
        return not any(hmac.compare_digest(each, wanted) for each in known)

    def identify_login(self, token_id: str, session_id: str, peer: str) -> Identity:
        """Return the caller of a login, or raise Unauthorized if the token of the login is no longer valid."""
        if self._environment_digest and token_id == self._environment_id:
            return self._environment_identity(session_id.encode(), peer)
        for token in self._read():
            if token.id == token_id and not self._has_expired(token):
                return self._caller(token, session_id.encode(), peer)
        raise Unauthorized(WRONG)

    def identify_for_monitoring(self, headers: Mapping[str, str], peer: str) -> Identity:
        """Identify a caller of health and metrics; by the cached tokens while the store is away."""
        return self._identify(headers, peer, self._read_or_cached)

    def check_body(self, body: bytes, content_type: str) -> None:
        """Refuse, without tokens, a body of a type that browsers send for a page of another site without asking first."""
        if self._free and body and content_type.partition(";")[0].strip().lower() not in CHANGE_TYPES:
            raise Invalid(
                f"Content-Type: {content_type[:100]!r} is refused: a service without tokens takes application/json, or"
                " application/toml for a fleet"
            )

    def cache_tokens(self) -> None:
        """Cache the tokens so that monitoring works while the store is away."""
        self._read_or_cached()

    def still_known(self, caller: Identity) -> bool:
        """Return whether a caller of a while ago could still make a request."""
        if self._free or caller.token_id == self._environment_id:
            return True
        return any(token.id == caller.token_id and not self._has_expired(token) for token in self._tokens())

    def take_uses(self) -> dict[str, datetime]:
        """Return when tokens were last used, by id, since the last call."""
        with self._uses_lock:
            uses, self._uses = self._uses, {}
        return uses

    def put_back_uses(self, uses: Mapping[str, datetime]) -> None:
        """Return uses that could not be saved."""
        with self._uses_lock:
            self._uses = {**uses, **self._uses}

    def _read_or_cached(self) -> tuple[Token, ...]:
        if self._reachable():
            with suppress(ServiceError):
                self._read()
        return self._cached

    def _read(self) -> tuple[Token, ...]:
        self._cached = tuple(self._tokens())
        return self._cached

    def _identify(self, headers: Mapping[str, str], peer: str, tokens: Callable[[], Iterable[Token]]) -> Identity:
        if self._free:
            return _free_identity(headers, peer)
        secret = _bearer_token(headers)
        if not secret:
            raise Unauthorized(MISSING + self._where_to_find(tokens))
        # Before the store is read, which may be away: this caller is known all the same.
        if self._environment_digest and hmac.compare_digest(self._environment_digest, digest(secret)):
            return self._environment_identity(secret.encode(), peer)
        token = self._find(secret, peer, tokens)
        if token.role is Role.CALENDAR:
            raise Forbidden(CALENDAR_ONLY)
        return self._caller(token, secret.encode(), peer)

    def _find(self, secret: str, peer: str, tokens: Callable[[], Iterable[Token]]) -> Token:
        """Return the valid token with this secret, or count the failure and raise Unauthorized."""
        wanted, match = digest(secret), None
        # Compares every token, also after a match: the time it takes says nothing about the match.
        for token in tokens():
            if hmac.compare_digest(token.digest, wanted):
                match = token
        if match is None:
            self.failures.add(peer, "the token is not known")
            raise Unauthorized(WRONG)
        if self._has_expired(match):
            self.failures.add(peer, f"the token {match.id[:8]} of {match.name!r} has expired")
            raise Unauthorized(EXPIRED)
        return match

    def _has_expired(self, token: Token) -> bool:
        return token.expires is not None and token.expires <= self._now()

    def _caller(self, token: Token, secret: bytes, peer: str) -> Identity:
        with self._uses_lock:
            self._uses[token.id] = self._now()
        within = token.scopes or None
        origin = f"{peer} by token {token.id[:8]}"
        return Identity(token.id, token.name, token.role, within, secret, origin, token.digest)

    @property
    def _environment_id(self) -> str:
        return f"environment {self._environment_digest[:16]}"

    def _environment_identity(self, secret: bytes, peer: str) -> Identity:
        origin = f"{peer} by token of {ENVIRONMENT_TOKEN}"
        return Identity(self._environment_id, "operator", Role.OPERATOR, None, secret, origin, self._environment_digest)

    def _where_to_find(self, tokens: Callable[[], Iterable[Token]]) -> str:
        """A service keeps a token in its state directory; an emulator off loopback has only the environment's."""
        only_environment = self._environment_digest and not any(True for _ in tokens())
        return IN_ENVIRONMENT if only_environment else IN_STATE_DIR


def _free_identity(headers: Mapping[str, str], peer: str) -> Identity:
    _refuse_other_sites(headers)
    return Identity("free", "operator", Role.OPERATOR, None, b"", f"{peer} without a token")


def _bearer_token(headers: Mapping[str, str]) -> str:
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def refuse_foreign_host(headers: Mapping[str, str]) -> None:
    """Refuse every name but loopback names: also a foreign name that resolves to loopback."""
    host = host_of(headers.get("host", ""))
    if not is_loopback(host):
        raise Forbidden(f"Host {host[:100]!r} is not this machine: use http://localhost or a loopback address")


def _refuse_other_sites(headers: Mapping[str, str]) -> None:
    """Refuse a request that a page of another site or port sends. A link from such a page may lead here."""
    refuse_foreign_host(headers)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    same = origin is None or origin.lower().partition("://")[2] == headers.get("host", "").lower()
    if not same or (site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"):
        raise Forbidden(
            f"Origin {(origin or site)[:100]!r} is another site, and so is another port: a service without tokens answers its"
            " own pages and programs alone"
        )
