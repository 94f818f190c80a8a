"""How a replica takes over from this machine's Redis: by `FAILOVER`, or through Sentinel. Nobody can write meanwhile.

Redis itself pauses writes for `FAILOVER`. Sentinel does not, and leaves two masters for some ten seconds: here writes are paused
on the old one, anew with every look, until it follows the one that the Sentinels name. Either pause ends by itself, should the
agent die; the next one looks at what the Sentinels made of it before it tells them anything.
"""

from __future__ import annotations

import contextlib
from typing import List, Optional, Tuple

from forewarn.guest.errors import OutOfTime, StepFailed
from forewarn.guest.handlers.polling import for_a_while
from forewarn.guest.handlers.redis_protocol import Complaint
from forewarn.guest.handlers.redis_replication import (
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
from forewarn.guest.steps import Run

LOOK_S = 0.1
# So long at most nobody can write while a replica takes over by FAILOVER, or is to receive the last of the data.
PAUSE_S = 10.0
# What an agent before us told the Sentinels is given so long to show.
SETTLE_S = 10.0


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
    if run.kept.get("told") == run.event.get("EventId"):
        for_a_while(run, SETTLE_S, LOOK_S, lambda: _held(spec, run) or _named(spec, run, me))
    if not _named(spec, run, me)[0]:
        _promote(spec, run)
    # From here on what our server acknowledges would be lost: it stays paused until it follows, whatever happens.
    why = run.until(lambda: _held(spec, run) or _followed(spec, run, me), LOOK_S)
    if why:
        raise OutOfTime(f"no replica took over: {why}")
    _unpause(spec)


def _promote(spec: Spec, run: Run) -> None:
    """Tell a Sentinel, once the replicas have everything and while nobody can write."""
    _able(spec, run)
    try:
        why = for_a_while(run, PAUSE_S, LOOK_S, lambda: _held(spec, run) or _caught_up(spec, run))
        if not why:
            run.keep(told=run.event.get("EventId"))
            why = _begun(spec, run)
        if why:
            raise StepFailed(f"no replica took over: {why}")
    except StepFailed:
        _unpause(spec)
        raise


def _held(spec: Spec, run: Run) -> Optional[Tuple[None, str]]:
    """Nobody can write for longer than one look takes, however many do not answer; else what is the matter."""
    pause_s = PAUSE_S + ASK_S * (len(spec.sentinels) + 2)
    try:
        say_to(spec, ("CLIENT", "PAUSE", str(int(1000 * pause_s)), "WRITE"), seconds=patience_s(run))
    except OSError as error:
        return None, f"{spec.address} did not answer CLIENT PAUSE: {error}"
    except Complaint as error:
        raise StepFailed(f"{spec.address} refuses CLIENT PAUSE: {error}") from None
    return None


def _unpause(spec: Spec) -> None:
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
    online = [each for each in mine(spec, run).replicas if each.online]
    behind = [each.address for each in online if each.behind > 0]
    return bool(online) and not behind, f"{', '.join(behind)} lack something" if online else "no replica is online"


def _begun(spec: Spec, run: Run) -> str:
    """ "" once a Sentinel has begun, now or before, or may have; else why not."""
    refusals = []
    for each in spec.sentinels:
        try:
            say_to_sentinel(spec, each, ("GET-MASTER-ADDR-BY-NAME", spec.master), seconds=patience_s(run))
        except (OSError, Complaint) as error:
            refusals.append(f"Sentinel {each} says: {error}")
            continue  # one that is not there has heard nothing
        try:
            say_to_sentinel(spec, each, ("FAILOVER", spec.master), seconds=patience_s(run))
        except OSError:
            pass  # it may have heard: told to another as well, there would be two failovers
        except Complaint as error:
            if not str(error).startswith("INPROG"):
                refusals.append(f"Sentinel {each} says: {error}")
                continue
        return ""
    return "; ".join(refusals)


def _named(spec: Spec, run: Run, me: Side) -> Tuple[Optional[bool], str]:
    """Whether the Sentinels name another, who says so too; and whom they name."""
    leader = agreed(spec, run)
    other = side(spec, run, leader) if leader else None
    good = other is not None and other.is_master and other.run_id != me.run_id
    return good, leader if good else f"the Sentinels name {leader or 'nobody'}"


def _followed(spec: Spec, run: Run, me: Side) -> Tuple[Optional[bool], str]:
    good, leader = _named(spec, run, me)
    if good:
        must(spec, run, "REPLICAOF", *split(leader))
    return good, leader
