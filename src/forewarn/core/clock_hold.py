"""Holding the clock after it jumped forward, and releasing it when an operator confirms the time.

While the clock is held, no event starts because of time that passed after the last trusted reading.
"""

from datetime import datetime, timedelta

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Refused
from forewarn.core.formatting import iso_seconds
from forewarn.core.model import Actor, AuditEntry, ClockHold

# Two nodes measure the same jump with a difference of at most the largest step that does not count as a jump.
SAME_JUMP_S = 30


def hold_clock(snapshot: Snapshot, hold: ClockHold, *, since: datetime, unread_s: float, now: datetime) -> Change:
    """Hold the clock, unless an operator has already confirmed this jump.

    `since` is the reading before the jump, `unread_s` how many real seconds ago it was. A node that was disconnected may
    notice a jump after it was confirmed.
    """
    known = snapshot.confirmed
    if known is not None and known.confirmed is not None:
        # The confirmed jump lies between this node's two readings and explains all but a small part of the difference.
        # The times alone do not show that: after the confirmation the clock may have been set back.
        confirmed_ago = now - known.confirmed
        during = since <= known.trusted and timedelta() <= confirmed_ago <= timedelta(seconds=unread_s)
        if during and hold.jumped_s - known.jumped_s <= SAME_JUMP_S:
            return Change(at=now)
    entry = AuditEntry(
        at=now,
        who="clock",
        origin=hold.node,
        action="clock jumped forward",
        detail=f"by {hold.jumped_s} s after {iso_seconds(hold.trusted)}",
    )
    return Change(at=now, hold=hold, audit=(entry,))


def confirm_clock(snapshot: Snapshot, *, now: datetime, actor: Actor) -> Change:
    """Release the hold: an operator has checked the clock, and events that are due may start."""
    if snapshot.hold is None:
        raise Refused("the clock is not held: there is nothing to confirm")
    entry = AuditEntry(
        at=now,
        who=actor.name,
        origin=actor.origin,
        action="clock confirmed",
        detail=f"it had jumped by {snapshot.hold.jumped_s} s",
    )
    return Change(at=now, releases_hold=snapshot.hold, audit=(entry,))
