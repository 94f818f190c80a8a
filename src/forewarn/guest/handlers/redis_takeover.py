"""How a replica takes over from this machine's Redis: by `FAILOVER`, or through Sentinel. Writes are paused meanwhile.

Redis itself pauses writes for `FAILOVER`. Sentinel does not, and leaves two masters for some ten seconds. So the handler pauses
writes on the old master, again at every check, until it follows the master that the Sentinels name. Either pause ends by itself
if the agent dies. The next agent waits for the outcome of the earlier failover before it asks the Sentinels for another.
"""

from __future__ import annotations

import contextlib
from typing import List, Optional, Tuple

from forewarn.guest.errors import Interrupted, StepFailed
from forewarn.guest.handlers.redis_protocol import ErrorReply
from forewarn.guest.handlers.redis_replication import (
    POLL_S,
    RESPONSE_WITHIN_S,
    ServerInfo,
    Spec,
    follow,
    master_by_sentinels,
    no_answer,
    own_server,
    send,
    send_to_sentinel,
    server_info,
    split_address,
)
from forewarn.guest.steps import Run

# How long writes are paused at most while a replica takes over by FAILOVER, or receives the last of the data.
PAUSE_S = 10.0
# How long to wait for the outcome of a failover that an earlier agent requested.
EARLIER_FAILOVER_S = 10.0


def take_over_by_failover(spec: Spec, run: Run) -> None:
    """Request the failover; the caller confirms that it happened."""
    run.wait_until(lambda: (_no_failover(spec, run), ""), POLL_S)  # an earlier agent may have requested one
    if not own_server(spec, run).is_master:
        return
    online = _online_replicas(spec, run)
    run.keep(master=online[0])
    try:
        run.require(lambda: _request_failover(spec, run, online[0]), POLL_S)
    except (Interrupted, StepFailed):
        abort_failover(spec, run)
        raise


def _request_failover(spec: Spec, run: Run, replica: str) -> Tuple[Optional[bool], str]:
    """Send the request, again if no answer came; return whether our server has received one."""
    command = ("FAILOVER", "TO", *split_address(replica), "TIMEOUT", _pause_ms(run))
    try:
        send(spec, command, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    except (OSError, ErrorReply) as error:
        own = server_info(spec, run)
        if own is not None and not (own.is_master and own.no_failover):
            return True, ""  # it received this request, or an earlier one whose answer was lost
        if own is not None and isinstance(error, ErrorReply):
            raise StepFailed(f"{spec.address} refuses FAILOVER: {error}") from None
        return None, f"{spec.address} did not answer FAILOVER: {error}"
    return True, ""


def abort_failover(spec: Spec, run: Run) -> None:
    """Abort an unfinished failover, which would otherwise go on and pause writes after the step's time."""
    with contextlib.suppress(OSError, ErrorReply, StepFailed):
        send(spec, ("FAILOVER", "ABORT"), seconds=run.last_timeout_s(RESPONSE_WITHIN_S))


def take_over_by_sentinel(spec: Spec, run: Run) -> None:
    """Have a Sentinel promote a replica, wait until the Sentinels name it, and make our own server follow it."""
    own = own_server(spec, run)
    if run.kept.get("told") == run.event_key:
        run.finish = True
        run.wait_at_most(
            EARLIER_FAILOVER_S, POLL_S, lambda: _pause_writes(spec, run) or _sentinels_name_another(spec, run, own)
        )
    if not _sentinels_name_another(spec, run, own)[0]:
        _promote(spec, run)
    # From here on our server would lose what it acknowledges: writes stay paused until it follows the new master.
    run.finish = True
    run.require(lambda: _pause_writes(spec, run) or _follow_new_master(spec, run, own), POLL_S, "no replica took over")
    _unpause(spec, run)


def _promote(spec: Spec, run: Run) -> None:
    """Request the failover of a Sentinel once the replicas have everything, while writes are paused."""
    _online_replicas(spec, run)
    try:
        why = run.wait_at_most(PAUSE_S, POLL_S, lambda: _pause_writes(spec, run) or _caught_up(spec, run))
        if not why:
            run.keep(told=run.event_key)
            why = _start_failover(spec, run)
        if why:
            raise StepFailed(f"no replica took over: {why}")
    except (StepFailed, Interrupted):
        _unpause(spec, run)
        raise


def _pause_writes(spec: Spec, run: Run) -> Optional[Tuple[None, str]]:
    """Pause writes for longer than one check takes; return None, or what went wrong."""
    pause_s = PAUSE_S + RESPONSE_WITHIN_S * (len(spec.sentinels) + 2)
    try:
        send(spec, ("CLIENT", "PAUSE", str(int(1000 * pause_s)), "WRITE"), seconds=run.timeout_s(RESPONSE_WITHIN_S))
    except OSError as error:
        return None, f"{spec.address} did not answer CLIENT PAUSE: {error}"
    except ErrorReply as error:
        raise StepFailed(f"{spec.address} refuses CLIENT PAUSE: {error}") from None
    return None


def _unpause(spec: Spec, run: Run) -> None:
    with contextlib.suppress(OSError, ErrorReply, StepFailed):
        send(spec, ("CLIENT", "UNPAUSE"), seconds=run.last_timeout_s(RESPONSE_WITHIN_S))


def _online_replicas(spec: Spec, run: Run) -> List[str]:
    """Return the replicas that are online, the one with most of the data first; wait for one to come online."""
    online: List[str] = []

    def any_online() -> Tuple[Optional[bool], str]:
        own = server_info(spec, run)
        if own is None:
            return None, no_answer(spec)
        known = [each for each in own.replicas if spec.replica in ("", each.address)]
        online[:] = [
            each.address for each in sorted(known, key=lambda each: (each.behind, each.address)) if each.online
        ]
        who = f"{spec.replica} is not" if spec.replica else "none is"
        why = f"no replica can take over: {who} online at {spec.address}"
        if not known:
            raise StepFailed(why)
        return bool(online), why

    run.require(any_online, POLL_S)
    return online


def _no_failover(spec: Spec, run: Run) -> bool:
    own = server_info(spec, run)
    return own is not None and (own.no_failover or not own.is_master)


def _pause_ms(run: Run) -> str:
    return str(int(1000 * run.timeout_s(PAUSE_S)))


def _caught_up(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether all replicas have everything: a Sentinel may choose any of them."""
    own = server_info(spec, run)
    if own is None:
        return None, no_answer(spec)
    online = [each for each in own.replicas if each.online]
    behind = [each.address for each in online if each.behind > 0]
    return bool(
        online
    ) and not behind, f"{', '.join(behind)} have not received everything" if online else "no replica is online"


def _start_failover(spec: Spec, run: Run) -> str:
    """Return "" once a Sentinel has started a failover or may have, else why none has."""
    refusals = []
    for each in spec.sentinels:
        try:
            send_to_sentinel(
                spec, each, ("GET-MASTER-ADDR-BY-NAME", spec.master), seconds=run.timeout_s(RESPONSE_WITHIN_S)
            )
        except (OSError, ErrorReply) as error:
            refusals.append(f"Sentinel {each} says: {error}")
            continue  # a Sentinel that does not answer has received nothing
        try:
            send_to_sentinel(spec, each, ("FAILOVER", spec.master), seconds=run.timeout_s(RESPONSE_WITHIN_S))
        except OSError:
            pass  # it may have received the command; a second Sentinel would start a second failover
        except ErrorReply as error:
            if not str(error).startswith("INPROG"):
                refusals.append(f"Sentinel {each} says: {error}")
                continue
        return ""
    return "; ".join(refusals)


def _sentinels_name_another(spec: Spec, run: Run, own: ServerInfo) -> Tuple[Optional[bool], str]:
    """Return whether the Sentinels name another master that confirms it, and its address or what they name."""
    leader = master_by_sentinels(spec, run)
    other = server_info(spec, run, leader) if leader else None
    good = other is not None and other.is_master and other.run_id != own.run_id
    return good, leader if good else f"the Sentinels name {leader or 'no master'}"


def _follow_new_master(spec: Spec, run: Run, own: ServerInfo) -> Tuple[Optional[bool], str]:
    """Make our server follow the master that the Sentinels name, once that master confirms it."""
    good, leader = _sentinels_name_another(spec, run, own)
    why_not = follow(spec, run, leader) if good else ""
    return (None, why_not) if why_not else (good, leader)
