"""Bodies about hooks and their deliveries."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from forewarn.core.hooks import ALL_KINDS
from forewarn.core.operator_model import MAX_HOOK_URL_CHARS, HookShape
from forewarn.operator.api.bodies.common import RequestBody, ResponseBody


class HookIn(RequestBody):
    """A hook to create. Without a scope it is for the whole fleet; without `on` it gets the usual kinds of entries."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HOOK_URL_CHARS)]
    scope: Annotated[str, msgspec.Meta(max_length=64)] = ""
    on: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=20)]],
        msgspec.Meta(max_length=len(ALL_KINDS), description=f"some of {', '.join(ALL_KINDS)}"),
    ] = []
    shape: HookShape = HookShape.CLOUDEVENTS


class RotateIn(RequestBody):
    """How long the secret before signs too, besides the new one."""

    keep_s: Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400)] = 86_400


class ReplayIn(RequestBody):
    """The audit entry to go on with: an earlier one is sent again with all that follow, a later one skips entries."""

    from_entry: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class HookGap(ResponseBody):
    """Audit entries after `after`, up to `until`, that were deleted before they could be delivered."""

    after: int
    until: int


class HookOut(ResponseBody):
    """A hook, without its secret. Entries up to `cursor` are delivered, or not of the kinds in `on`.

    `failing_since`, `failures` and `error` are about the attempts since the last delivery, which was at `delivered`.
    `next_attempt` is known for a failing hook, on the node that sends. `old_secrets_until` may be in the past.
    """

    id: str
    url: str
    scope: str
    on: list[str]
    shape: HookShape
    state: Literal["active", "failing", "disabled"]
    created: datetime
    created_by: str
    cursor: int
    delivered: datetime | None
    failing_since: datetime | None
    failures: int
    error: str
    disabled: datetime | None
    gap: HookGap | None
    old_secrets_until: datetime | None
    next_attempt: datetime | None = None


class NewHook(HookOut, kw_only=True):
    """A hook with its new secret, which is shown only once."""

    secret: str


class HookTestOut(ResponseBody):
    """How the attempt to send a test message ended. `status` is 0 if the receiver did not answer."""

    delivered: bool
    status: int
    error: str
    took_ms: int


class HookDeliveryOut(ResponseBody):
    """The last attempt to deliver an audit entry."""

    entry: int
    type: str
    at: datetime
    attempts: int
    delivered: bool
    status: int
    error: str
    took_ms: int
