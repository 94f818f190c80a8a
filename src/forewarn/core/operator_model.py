"""What the operator side keeps besides maintenances: tokens, logins, receipts of requests, hooks and their deliveries.

Frozen data that validates itself, like `model`.
"""

import re
from datetime import datetime
from enum import StrEnum

from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import check_name, check_text, require

DIGEST = re.compile(r"[0-9a-f]{64}")
# A host name, an IPv4 address or an IPv6 address in brackets; no user name, no fragment.
HOOK_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?][!-\"$-~]*)?")
MAX_TOKEN_NAME_CHARS = 64
MAX_SCOPES_PER_TOKEN = 32
MAX_SESSIONS_PER_TOKEN = 100
MAX_CALENDAR_TOKENS = 1_000
MAX_CALENDAR_TOKENS_PER_SCOPE = 20
MAX_HOOKS = 200
MAX_HOOKS_PER_SCOPE = 10
# The other half is left to operators.
MAX_HOOKS_OF_OWNERS = 100
MAX_HOOK_URL_CHARS = 1_024
MAX_HOOK_SECRETS = 3


class Role(StrEnum):
    """What the holder of a token may do: read everything, do everything, or do everything in the token's scopes.

    A token with the role `calendar` reads the calendar, of its scopes or of the whole fleet, and nothing else.
    """

    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"
    CALENDAR = "calendar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Access to the operator side. `digest` is the hash of the secret; the secret itself is not stored.

    A token without `expires` is valid until it is revoked.
    """

    id: str
    name: str
    role: Role
    scopes: tuple[str, ...] = ()
    digest: str
    created: datetime
    created_by: str = ""
    expires: datetime | None = None

    def __post_init__(self) -> None:
        require(bool(self.name), "the token has no name: name it after its user")
        check_text("name", self.name, MAX_TOKEN_NAME_CHARS)
        if self.role in (Role.OWNER, Role.CALENDAR):
            fewest = 1 if self.role is Role.OWNER else 0
            require(
                fewest <= len(self.scopes) <= MAX_SCOPES_PER_TOKEN,
                f"a token with role {self.role} needs {fewest} to {MAX_SCOPES_PER_TOKEN} scopes, not {len(self.scopes)}",
            )
        else:
            require(not self.scopes, f"only roles owner and calendar take scopes: leave them out for role {self.role}")
        for scope in self.scopes:
            check_name("scope", scope)
        require(DIGEST.fullmatch(self.digest) is not None, "digest is not 64 lower-case hexadecimal digits")


class HookShape(StrEnum):
    """The form of the body of a hook's message."""

    CLOUDEVENTS = "cloudevents"
    SLACK = "slack"
    TEAMS = "teams"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A URL that gets a message for each audit entry of one scope, or of the whole fleet, whose kind is among `kinds`.

    `secrets` sign the messages, newest first: the first always, the second until `old_secrets_until`, no other. Entries up to
    `cursor` are delivered or not of these kinds. `failing_since` is the first of the `failures` since the last delivery,
    `error` the last one. Entries after `gap_after` up to `gap_until` were deleted before they could be delivered. `owner_token`
    is the id of the token of the owner who created or enabled it, if it was an owner: the hook is disabled when this token ends.
    """

    id: str
    url: str
    scope: str = ""
    kinds: tuple[str, ...]
    shape: HookShape = HookShape.CLOUDEVENTS
    secrets: tuple[str, ...]
    old_secrets_until: datetime | None = None
    created: datetime
    created_by: str = ""
    cursor: int = 0
    delivered: datetime | None = None
    failing_since: datetime | None = None
    failures: int = 0
    error: str = ""
    disabled: datetime | None = None
    gap_after: int = 0
    gap_until: int = 0
    version: int = 0
    owner_token: str = ""

    def __post_init__(self) -> None:
        require(
            len(self.url) <= MAX_HOOK_URL_CHARS,
            f"url is {len(self.url)} characters long: at most {MAX_HOOK_URL_CHARS} are allowed",
        )
        require(
            HOOK_URL.fullmatch(self.url) is not None, "url is not like https://HOST/PATH: use plain ASCII, no user name"
        )
        require(1 <= len(self.secrets) <= MAX_HOOK_SECRETS, f"a hook has 1 to {MAX_HOOK_SECRETS} secrets")
        if self.scope:
            check_name("scope", self.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDelivery:
    """The last attempt to deliver an audit entry to a hook. `status` is 0 if the receiver did not answer."""

    hook_id: str
    audit_id: int
    kind: str
    at: datetime
    attempts: int
    delivered: bool
    status: int = 0
    took_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSession:
    """A login of the portal with a token. `digest` is the hash of the session id, which only the browser has."""

    digest: str
    token_id: str
    created: datetime
    expires: datetime

    def __post_init__(self) -> None:
        require(DIGEST.fullmatch(self.digest) is not None, "digest is not 64 lower-case hexadecimal digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The response to a request with an idempotency key, saved with its change. `digest` is the hash of the request."""

    token_id: str
    key: str
    digest: str
    status: int
    body: str
    at: datetime
