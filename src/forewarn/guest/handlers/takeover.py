"""How a replica takes over from this machine's Redis: by `FAILOVER`, or through Sentinel. Nobody can write meanwhile.

Redis itself pauses writes for `FAILOVER`. Sentinel does not, and leaves two masters for some ten seconds: here writes are paused
on the old one, which follows the new one as soon as the Sentinels name it. Either pause ends by itself, should the agent die.
"""

from __future__ import annotations

import contextlib
from typing import List, Optional, Tuple

from forewarn.guest.errors import OutOfTime, StepFailed
from forewarn.guest.handlers.replication import (
    ASK_S,
    Side,
    Spec,
    agreed,
    mine,
    must,
    patience_s,
    say_to,
    say_to_sentinel,
    side,
    split,
)
from forewarn.guest.handlers.resp import Complaint
from forewarn.guest.steps import Run

LOOK_S = 0.1
# So long at most nobody can write while a replica takes over.
PAUSE_S = 10.0


def by_failover(spec: Spec, run: Run) -> None:
    """Asked for; not confirmed."""
    run.until(lambda: (_calm(spec, run), ""), LOOK_S)  # an agent before us may have asked
    if not mine(spec, run).is_master:
        return
    able = _able(spec, run)
    run.keep(master=able[0])
    must(spec, run, "FAILOVER", "TO", *split(able[0]), "TIMEOUT", _pause_ms(run))


def call_off(spec: Spec) -> None:
    """What is half done would go on after its time, and nobody could write meanwhile."""
    with contextlib.suppress(OSError, Complaint, StepFailed):
        say_to(spec, ("FAILOVER", "ABORT"), seconds=1.0)


def by_sentinel(spec: Spec, run: Run) -> None:
    """A Sentinel promotes a replica, the others name it, and our own server follows it."""
    me = mine(spec, run)
    _able(spec, run)
    must(spec, run, "CLIENT", "PAUSE", _pause_ms(run), "WRITE")
    try:
        why = run.until(lambda: _caught_up(spec, run), LOOK_S) or _begun(spec, run)
        why = why or run.until(lambda: _named(spec, run, me), LOOK_S)
        if why:
            raise StepFailed(f"no replica took over: {why}")
        must(spec, run, "REPLICAOF", *split(agreed(spec, run)))
    finally:
        with contextlib.suppress(OSError, Complaint, StepFailed):
            say_to(spec, ("CLIENT", "UNPAUSE"), seconds=ASK_S)


def _able(spec: Spec, run: Run) -> List[str]:
    """The replicas that are online, the one with most of the data first; one that is not yet is waited for."""
    able: List[str] = []

    def look() -> Tuple[Optional[bool], str]:
        known = [each for each in mine(spec, run).replicas if spec.replica in ("", each.address)]
        able[:] = [each.address for each in sorted(known, key=lambda each: (each.behind, each.address)) if each.online]
        who = f"{spec.replica} is not" if spec.replica else "none is"
        why = f"no replica can take over: {who} online at {spec.address}"
        if not known:
            raise StepFailed(why)
        return bool(able), why

    why = run.until(look, LOOK_S)
    if why:
        raise OutOfTime(why)
    return able


def _calm(spec: Spec, run: Run) -> bool:
    me = mine(spec, run)
    return me.calm or not me.is_master


def _pause_ms(run: Run) -> str:
    return str(int(1000 * max(0.1, min(PAUSE_S, run.left_s()))))


def _caught_up(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """All of them: nobody can tell whom a Sentinel will choose."""
    behind = [each.address for each in mine(spec, run).replicas if each.online and each.behind > 0]
    return not behind, f"{', '.join(behind)} lack something"


def _begun(spec: Spec, run: Run) -> str:
    """ "" once a Sentinel has begun, now or before; else why not."""
    refusals = []
    for each in spec.sentinels:
        try:
            say_to_sentinel(spec, each, ("FAILOVER", spec.master), seconds=patience_s(run))
            return ""
        except (OSError, Complaint) as error:
            if str(error).startswith("INPROG"):
                return ""
            refusals.append(f"Sentinel {each} says: {error}")
    return "; ".join(refusals)


def _named(spec: Spec, run: Run, me: Side) -> Tuple[Optional[bool], str]:
    """Whether the Sentinels name another, who says so too."""
    leader = agreed(spec, run)
    other = side(spec, run, leader) if leader else None
    good = other is not None and other.is_master and other.run_id != me.run_id
    return good, f"the Sentinels name {leader or 'nobody'}"
