"""The saved responses of requests with an Idempotency-Key.

A call describes the response it wants to be saved as data. `render_receipt` is given to Control at its construction and makes
the response from the description and from what the core decided. It is pure: the call renders its own response from the same
parts, so the first response and each repetition have the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from forewarn.core.fleet_difference import Difference
from forewarn.core.operator_model import Hook, Token
from forewarn.operator.api import bodies, views
from forewarn.operator.api.access import digest
from forewarn.service.control import Submission
from forewarn.service.decisions import Once


@dataclass(frozen=True, slots=True)
class SaveMaintenance:
    """Save the maintenance as a caller bound to these scopes sees it; None for all scopes."""

    within: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SaveEvent:
    """Save the only event of the maintenance."""

    within: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SaveToken:
    """Save the token with its secret, sealed so that only its caller can read it."""

    sealed: bytes


@dataclass(frozen=True, slots=True)
class SaveHook:
    """Save the hook with its secret, sealed so that only its caller can read it."""

    sealed: bytes


class SavedHook(msgspec.Struct):
    """The saved response to a request for a hook. `digest` is the hash of its secret."""

    hook: bodies.HookOut
    sealed: bytes
    digest: str


class SavedToken(msgspec.Struct):
    """The saved response to a request for a token. `digest` is the hash of the new token."""

    token: bodies.TokenOut = msgspec.field(name="told")
    sealed: bytes
    digest: str = ""


def render_receipt(once: Once, made: Submission | Difference | Token | Hook) -> tuple[int, str]:
    status, body = _response(once.response, made)
    return status, msgspec.json.encode(body).decode()


def _response(wanted: object, made: Submission | Difference | Token | Hook) -> tuple[int, Any]:
    match made, wanted:
        case Submission(), SaveMaintenance(within=within):
            return 201, views.submission_out(made, within)
        case Submission(), SaveEvent(within=within):
            return 202, views.only_event(views.submission_out(made, within))
        case Token(), SaveToken(sealed=sealed):
            return 201, SavedToken(token=views.body_of(bodies.TokenOut, made), sealed=sealed, digest=made.digest)
        case Hook(), SaveHook(sealed=sealed):
            return 201, SavedHook(hook=views.hook_out(made), sealed=sealed, digest=digest(made.secrets[0]))
        case Difference(), None:
            return 200, views.change_out(made, dry_run=False)
    raise TypeError(f"no response to save for {type(made).__name__} and {wanted!r}")
