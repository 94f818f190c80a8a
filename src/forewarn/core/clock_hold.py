"""A clock that jumped forward: no event starts because of it until an operator confirms the time."""

from datetime import datetime

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Refused
from forewarn.core.model import Actor, AuditEntry, Hold

# Two nodes that measure one jump differ by the steps that are too small to hold anything.
SAME_JUMP_S = 30


def hold_clock(snapshot: Snapshot, hold: Hold, *, since: datetime, now: datetime) -> Change:
    """From here on, what time alone would let start waits for an operator; unless one has confirmed this very jump.

    `since` is what the clock said when it was last looked at: a node that was cut off for a while notices later than others.
    """
    known = snapshot.confirmed
    if known is not None and known.confirmed is not None:
        # They looked before it jumped, they see no less than was confirmed, and little more than that is left to explain.
        during = since <= known.trusted and known.confirmed <= now
        if during and hold.jumped_s - known.jumped_s <= SAME_JUMP_S:
            return Change(at=now)
    detail = f"by {hold.jumped_s} s after {hold.trusted:%Y-%m-%dT%H:%M:%SZ}"
    noted = AuditEntry(at=now, who="clock", origin=hold.node, action="clock jumped forward", detail=detail)
    return Change(at=now, hold=hold, audit=(noted,))


def confirm_clock(snapshot: Snapshot, *, now: datetime, actor: Actor) -> Change:
    """An operator has looked: the clock is right, and what is due by it may start."""
    if snapshot.hold is None:
        raise Refused("the clock is not held: there is nothing to confirm")
    detail = f"it had jumped by {snapshot.hold.jumped_s} s"
    noted = AuditEntry(at=now, who=actor.name, origin=actor.origin, action="clock confirmed", detail=detail)
    return Change(at=now, releases_hold=snapshot.hold, audit=(noted,))
