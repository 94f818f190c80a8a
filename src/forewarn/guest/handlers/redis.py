"""`redis`: has a master hand over to a replica before the event, confirmed by both servers. Does nothing on a replica.

After the event the server must be a replica with a link again. It does not fail back: the new master stays master.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from forewarn.guest.config_values import address, check_keys, read_values, secret_file_problem, strings
from forewarn.guest.errors import ConfigError, Interrupted, OutOfTime, StepFailed
from forewarn.guest.handlers.redis_protocol import ErrorReply
from forewarn.guest.handlers.redis_replication import (
    POLL_S,
    Spec,
    follow,
    master_by_sentinels,
    own_server,
    send,
    send_to_sentinel,
    server_info,
)
from forewarn.guest.handlers.redis_takeover import abort_failover, take_over_by_failover, take_over_by_sentinel
from forewarn.guest.steps import Run

UNDOES_AGAIN = True


def parse(table: Mapping[str, Any], where: str) -> Spec:
    what = 'write where this machine\'s Redis listens, like "10.0.0.4:6379"'
    check_keys(table, Spec._fields, where, address=what)
    spec = Spec(**read_values(table, where, address=address, replica=address, sentinels=strings))
    for number, each in enumerate(spec.sentinels):
        address(each, f"{where}.sentinels[{number}]")
    if bool(spec.sentinels) != bool(spec.master):
        raise ConfigError(f"{where}: write both `sentinels` and `master`, the name they know it by, or neither")
    if spec.sentinels and spec.replica:
        raise ConfigError(f"{where}.replica: the Sentinels choose who takes over: leave it out, or leave them out")
    if spec.user and not spec.password_file:
        raise ConfigError(
            f"{where}.user: password_file is missing: a password is a secret and belongs in a file of its own"
        )
    return spec


def check(spec: Spec) -> List[str]:
    secrets = [secret_file_problem(name) for name in (spec.password_file, spec.sentinel_password_file) if name]
    problems = [problem for problem in secrets if problem]
    for each in () if problems else (spec.address, *spec.sentinels):
        try:
            if each == spec.address:
                send(spec, ("INFO",))
            else:
                send_to_sentinel(spec, each, ("GET-MASTER-ADDR-BY-NAME", spec.master))
        except (OSError, ErrorReply, StepFailed) as error:
            problems.append(f"{each} does not answer as it should: {error}")
    return problems


def prepare(spec: Spec, run: Run) -> None:
    own = own_server(spec, run)
    run.keep(run_id=own.run_id)
    if not own.is_master:
        run.keep(master=own.follows)
    elif spec.sentinels:
        take_over_by_sentinel(spec, run)
    else:
        take_over_by_failover(spec, run)
    try:
        why = run.wait_until(lambda: _another_is_master(spec, run), POLL_S)
    except Interrupted:
        abort_failover(spec, run)
        raise
    if why:
        abort_failover(spec, run)
        raise OutOfTime(f"no other master was confirmed: {why}")


def verify(spec: Spec, run: Run) -> Optional[bool]:
    return _another_is_master(spec, run)[0]


def recover(spec: Spec, run: Run) -> None:
    run.require(lambda: _is_back(spec, run), POLL_S, f"{spec.address} is not back")


def _another_is_master(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether another server is master, by its own INFO and ours, and if not, what was seen instead."""
    own = server_info(spec, run)
    if own is None:
        return None, f"{spec.address} does not answer"
    if own.is_master:
        return False, f"{own.address} is still master"
    leader = master_by_sentinels(spec, run) if spec.sentinels else own.follows
    if not leader:
        return None, "the Sentinels do not agree on a master"
    other = server_info(spec, run, leader)
    if other is None:
        return None, f"{leader}, which should be master, does not answer"
    if not other.is_master or other.run_id == own.run_id:
        return False, f"{leader}, which should be master, is not"
    return True, ""


def _is_back(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether the server is a replica with a link. Make a second master, as its own file may say, follow the other."""
    own = server_info(spec, run)
    if own is None:
        return None, "it does not answer"
    if not own.is_master:
        return own.linked, f"it has no link to {own.follows}"
    leader = master_by_sentinels(spec, run) if spec.sentinels else str(run.kept.get("master", ""))
    if not leader:
        return not spec.sentinels, "the Sentinels do not agree on a master"
    other = server_info(spec, run, leader)
    if other is None:
        return None, f"it is master, and {leader}, which took over, does not answer"
    if other.run_id == own.run_id or not other.is_master:
        return True, ""  # an operator has made it master again
    if own.run_id == run.kept.get("run_id"):
        return _second_master(spec, leader)
    return False, follow(spec, run, leader) or f"it follows {leader} and has no link to it yet"


def _second_master(spec: Spec, leader: str) -> Tuple[Optional[bool], str]:
    """Refuse to demote a master that was not restarted: it was made master on purpose, and following would delete its data."""
    if spec.sentinels:
        return False, f"it is master, while the Sentinels name {leader}; they will make it follow"
    raise StepFailed(
        f"{spec.address} was made master by hand while {leader} is master too: "
        "nothing is changed, because one of them would lose its data: make one follow the other by REPLICAOF"
    )
