"""Bodies about tokens, the caller, the audit and the clock."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from forewarn.core.durations import MAX_DURATION_S
from forewarn.core.operator_model import Role
from forewarn.operator.api.bodies.common import Name, RequestBody, ResponseBody


class TokenIn(RequestBody):
    """A token to create. An owner's token names its scopes; one for the calendar may, and else reads the whole fleet.

    Without `valid_for_s` it is valid until it is revoked.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    role: Role
    scopes: Annotated[list[Name], msgspec.Meta(max_length=32)] = []
    valid_for_s: Annotated[int, msgspec.Meta(ge=60, le=MAX_DURATION_S)] | None = None


class TokenOut(ResponseBody):
    """A token, without its secret. `last_used` may be a minute old; both times are null where there is none."""

    id: str
    name: str
    role: Role
    scopes: list[str]
    created: datetime
    created_by: str
    expires: datetime | None = None
    last_used: datetime | None = None


class NewToken(TokenOut, kw_only=True):
    """A new token, with its secret, which is shown only once."""

    token: str


class CallerOut(ResponseBody):
    """The holder of the token of this request; `scopes` are those of an owner, null for everyone else."""

    name: str
    role: Role
    scopes: list[str] | None


class AuditOut(ResponseBody):
    """Who did what, when and from where."""

    id: int
    at: datetime
    who: str
    action: str
    origin: str
    scope: str
    maintenance_id: str
    event_id: str
    detail: str
    hash: str


class ChainMarkOut(ResponseBody):
    """An entry of the audit and its hash."""

    id: int
    hash: str


class AuditChainOut(ResponseBody):
    """Where the hash chain of the audit begins and ends.

    Entries up to `start` were pruned, or are older than the chain. `head` is the newest entry.
    """

    start: ChainMarkOut
    head: ChainMarkOut


class AdvanceIn(RequestBody):
    """How far to move the clock."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]


class HeldOut(ResponseBody):
    """The clock jumped forward: unapproved starts wait until an operator confirms it."""

    trusted: datetime
    noticed: datetime
    jumped_s: int


class ClockOut(ResponseBody):
    """The service's time."""

    now: datetime
    kind: Literal["system", "manual", "scaled"]
    held: HeldOut | None = None
