"""`patroni`: a member that leads hands over before the event; the new leader is confirmed by asking the members, not by what the
call answered. Nothing is done on a replica. After the event the member must run and stream again; it does not fail back.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import keys_of, readable_secret, text, values
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers.patroni_members import (
    LEADING,
    LOOK_S,
    Member,
    Spec,
    candidates,
    cluster,
    itself,
    patience_s,
    receivers,
    switch,
)
from forewarn.guest.handlers.polling import for_a_while
from forewarn.guest.steps import Run

UNDOES_AGAIN = True
# A switchover is given so long to show before it is asked for again, or another candidate is asked for.
SETTLE_S = 10.0
REFUSED, NOT_POSSIBLE = range(400, 500), 412


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    for key, what in (
        ("url", "where this machine's Patroni answers"),
        ("member", "this machine's name in the cluster"),
    ):
        if key not in table:
            raise ConfigError(f"{where}: {key} is missing: write {what}")
    spec = Spec(**values(table, where, url=_url, max_lag=_bytes))
    if spec.candidate == spec.member:
        raise ConfigError(f"{where}.candidate: {spec.member!r} is this machine itself: name another member")
    return spec


def check(spec: Spec) -> List[str]:
    complaint = readable_secret(spec.login_file) if spec.login_file else ""
    names = [each.name for each in cluster(spec, spec.url)]
    wrong = [complaint] if complaint else []
    if not names:
        return [*wrong, f"Patroni does not answer at {spec.url}"]
    unknown = [each for each in (spec.member, spec.candidate) if each and each not in names]
    return wrong + [f"the cluster has no member {each!r}: it has {', '.join(names)}" for each in unknown]


def prepare(spec: Spec, run: Run) -> None:
    told = ""
    if run.kept.get("asked") == run.event.get("EventId"):
        _settled(spec, run)
    if _leads(spec, run):
        run.keep(asked=run.event.get("EventId"))
        told = _switched(spec, run)
    why = run.until(lambda: _looked(spec, run), LOOK_S)
    if why:
        raise OutOfTime(f"no other leader was confirmed: {why}" + (f" (Patroni had answered {told})" if told else ""))


def verify(spec: Spec, run: Run) -> Optional[bool]:
    return _looked(spec, run)[0]


def recover(spec: Spec, run: Run) -> None:
    why = run.until(lambda: _back(spec, run), LOOK_S)
    if why:
        raise OutOfTime(f"{spec.member} is not back: {why}")


def _settled(spec: Spec, run: Run) -> None:
    for_a_while(run, SETTLE_S, LOOK_S, lambda: _looked(spec, run))


def _leads(spec: Spec, run: Run) -> bool:
    """As the cluster has it; a Patroni that does not answer just now is waited for."""
    members: List[Member] = []

    def look() -> Tuple[Optional[bool], str]:
        members[:] = cluster(spec, spec.url, seconds=patience_s(run))
        return bool(members), f"Patroni does not answer at {spec.url}"

    run.must(look, LOOK_S)
    if spec.member not in [each.name for each in members]:
        raise StepFailed(f"the cluster has no member {spec.member!r}: this machine cannot tell whether it leads")
    return any(each.leads and each.name == spec.member for each in members)


def _switched(spec: Spec, run: Run) -> str:
    """Ask for it, of one candidate after the other until this member leads no more; what was answered last."""
    told, refusals = "", []
    for candidate in candidates(spec, run):
        status, said = switch(spec, run, candidate)
        if status == NOT_POSSIBLE:
            refusals.append(f"{candidate}: {said}")
            continue
        if status in REFUSED:
            raise StepFailed(f"Patroni refuses a switchover: {status}: {said}")
        told = f"{status}: {said}" if status else said
        if not for_a_while(run, SETTLE_S, LOOK_S, lambda: _gave_way(spec, run)):
            break
    if not told:
        raise StepFailed(f"no member can take over: {'; '.join(refusals)}")
    return told


def _gave_way(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Whether our own server leads no more, which is not yet to say that another does."""
    me = itself(spec, spec.url, seconds=patience_s(run))
    leads = me.get("role") in LEADING and me.get("state") == "running"
    return bool(me) and not leads, f"{spec.member} leads as before"


def _looked(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Whether another leads: by its own words, by ours, and by those of every member that answers."""
    me = itself(spec, spec.url, seconds=patience_s(run))
    members = cluster(spec, spec.url, seconds=patience_s(run))
    if not me or not members:
        return None, f"Patroni does not answer at {spec.url}"
    if me.get("role") in LEADING:
        return False, f"{spec.member} itself is still {me['role']}"
    leader = next((each for each in members if each.leads), None)
    if leader is None or leader.name == spec.member:
        return False, f"{spec.member} still leads" if leader else "the cluster has no leader"
    other = itself(spec, leader.url, seconds=patience_s(run))
    if other.get("role") not in LEADING or other.get("state") != "running":
        return False, f"{leader.name} is said to lead, and says that it is {other.get('role', 'nothing at all')}"
    for each in members:
        seen = cluster(spec, each.url, seconds=patience_s(run)) if each.name != spec.member else []
        if seen and not any(one.leads and one.name == leader.name for one in seen):
            return False, f"{each.name} does not see {leader.name} lead"
        if not seen and each is leader:
            return None, f"{leader.name} does not answer"
    return True, ""


def _back(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Whether it runs, and leads or is streamed to: said by whoever streams."""
    me = itself(spec, spec.url, seconds=patience_s(run))
    if me.get("state") != "running":
        return False, f"its server is {me['state']}" if me.get("state") else f"Patroni does not answer at {spec.url}"
    members = cluster(spec, spec.url, seconds=patience_s(run))
    if any(each.leads and each.name == spec.member for each in members):
        return me.get("role") in LEADING, f"it should lead, and says that it is {me.get('role')}"
    others = [each for each in members if each.name != spec.member]
    streamed = any(spec.member in receivers(spec, each.url, seconds=patience_s(run)) for each in others)
    return streamed, "nobody streams to it"


def _url(value: Any, where: str) -> str:
    parts = urlsplit(text(value, where))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
        raise ConfigError(f'{where}: {value!r} is no address of a REST API: write it like "http://10.0.0.4:8008"')
    return f"{parts.scheme}://{parts.netloc}"


def _bytes(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{where}: {value!r} is no number of bytes")
    return value
