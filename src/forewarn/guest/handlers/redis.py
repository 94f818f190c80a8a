"""`redis`: a master hands over to a replica before the event; both sides have said so themselves. Nothing is done on a replica.

After the event it must be a replica with a link again. It does not fail back: who is master then stays it.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from forewarn.guest.config_values import address, keys_of, readable_secret, values, words
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers.redis_protocol import Complaint
from forewarn.guest.handlers.redis_replication import Spec, agreed, mine, must, say_to, say_to_sentinel, side, split
from forewarn.guest.handlers.redis_takeover import LOOK_S, by_failover, by_sentinel, call_off
from forewarn.guest.steps import Run

UNDOES_AGAIN = True


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    if "address" not in table:
        raise ConfigError(
            f'{where}: address is missing: write where this machine\'s Redis listens, like "10.0.0.4:6379"'
        )
    spec = Spec(**values(table, where, address=address, replica=address, sentinels=words))
    for number, each in enumerate(spec.sentinels):
        address(each, f"{where}.sentinels[{number}]")
    if bool(spec.sentinels) != bool(spec.master):
        raise ConfigError(f"{where}: `sentinels` and `master`, the name they know it by, belong together")
    if spec.sentinels and spec.replica:
        raise ConfigError(f"{where}.replica: the Sentinels choose who takes over: leave it out, or leave them out")
    if spec.user and not spec.password_file:
        raise ConfigError(
            f"{where}.user: password_file is missing: a password is a secret and stands in a file of its own"
        )
    return spec


def check(spec: Spec) -> List[str]:
    secrets = [readable_secret(name) for name in (spec.password_file, spec.sentinel_password_file) if name]
    wrong = [complaint for complaint in secrets if complaint]
    for each in () if wrong else (spec.address, *spec.sentinels):
        try:
            if each == spec.address:
                say_to(spec, ("INFO",))
            else:
                say_to_sentinel(spec, each, ("GET-MASTER-ADDR-BY-NAME", spec.master))
        except (OSError, Complaint, StepFailed) as error:
            wrong.append(f"{each} does not answer as it should: {error}")
    return wrong


def prepare(spec: Spec, run: Run) -> None:
    run.must(lambda: (side(spec, run) is not None, f"{spec.address}, this machine's Redis, does not answer"), LOOK_S)
    me = mine(spec, run)
    run.keep(run_id=me.run_id)
    if not me.is_master:
        run.keep(master=me.follows)
    elif spec.sentinels:
        by_sentinel(spec, run)
    else:
        by_failover(spec, run)
    why = run.until(lambda: _looked(spec, run), LOOK_S)
    if why:
        call_off(spec)
        raise OutOfTime(f"no other master was confirmed: {why}")


def verify(spec: Spec, run: Run) -> Optional[bool]:
    return _looked(spec, run)[0]


def recover(spec: Spec, run: Run) -> None:
    why = run.until(lambda: _back(spec, run), LOOK_S)
    if why:
        raise OutOfTime(f"{spec.address} is not back: {why}")


def _looked(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Whether another is master, by its own words and ours; and if not, what is seen instead."""
    me = side(spec, run)
    if me is None:
        return None, f"{spec.address} does not answer"
    if me.is_master:
        return False, f"{me.address} is still master"
    leader = agreed(spec, run) if spec.sentinels else me.follows
    if not leader:
        return None, "the Sentinels do not agree on a master"
    other = side(spec, run, leader)
    if other is None:
        return None, f"{leader}, said to be master, does not answer"
    if not other.is_master or other.run_id == me.run_id:
        return False, f"{leader}, said to be master, is none"
    return True, ""


def _back(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """A replica with a link. One that came up as a second master, as its own file may say, is made to follow the other."""
    me = side(spec, run)
    if me is None:
        return None, "it does not answer"
    if not me.is_master:
        return me.linked, f"it has no link to {me.follows}"
    leader = agreed(spec, run) if spec.sentinels else str(run.kept.get("master", ""))
    if not leader:
        return not spec.sentinels, "the Sentinels do not agree on a master"
    other = side(spec, run, leader)
    if other is None:
        return None, f"it is master, and {leader}, which took over, does not answer"
    if other.run_id == me.run_id or not other.is_master:
        return True, ""  # somebody has made it master again
    if me.run_id == run.kept.get("run_id"):
        return _second_master(spec, leader)
    must(spec, run, "REPLICAOF", *split(leader))
    return False, f"it follows {leader} and has no link to it yet"


def _second_master(spec: Spec, leader: str) -> Tuple[Optional[bool], str]:
    """Never restarted since, it is master because somebody wants it so: following the other would wipe out what it has."""
    if spec.sentinels:
        return False, f"it is master, while the Sentinels name {leader}: they have it follow"
    raise StepFailed(
        f"{spec.address} was made master by hand while {leader} is master too: "
        "nothing is changed, for one of them would lose its data: make one follow the other by REPLICAOF"
    )
