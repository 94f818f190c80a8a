"""`patroni`: has a member that leads hand over before the event, and confirms the new leader by asking the members.

The answer to the switchover request proves nothing. Nothing is done on a replica. After the event the member must run and
stream again; it does not fail back.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import check_keys, read_values, secret_file_problem, text
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers.patroni_members import (
    LEADING,
    POLL_S,
    RESPONSE_WITHIN_S,
    Member,
    Spec,
    candidates,
    members_seen_by,
    own_status,
    request_switchover,
    standbys_streamed_to,
)
from forewarn.guest.steps import Run

UNDOES_AGAIN = True
# How long a switchover may take to show before it is requested again, or of another candidate.
SWITCHOVER_SHOWS_S = 10.0
REFUSED, NOT_POSSIBLE = range(400, 500), 412


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(
        table,
        Spec._fields,
        where,
        url="write where this machine's Patroni answers",
        member="write this machine's name in the cluster",
    )
    spec = Spec(**read_values(table, where, url=_url, max_lag=_bytes))
    if spec.candidate == spec.member:
        raise ConfigError(f"{where}.candidate: {spec.member!r} is this machine itself: name another member")
    return spec


def check(spec: Spec) -> List[str]:
    problem = secret_file_problem(spec.login_file) if spec.login_file else ""
    names = [each.name for each in members_seen_by(spec, spec.url)]
    problems = [problem] if problem else []
    if not names:
        return [*problems, f"Patroni does not answer at {spec.url}"]
    unknown = [each for each in (spec.member, spec.candidate) if each and each not in names]
    return problems + [f"the cluster has no member {each!r}: it has {', '.join(names)}" for each in unknown]


def prepare(spec: Spec, run: Run) -> None:
    last_answer = ""
    if run.kept.get("asked") == run.event_key:
        run.wait_at_most(SWITCHOVER_SHOWS_S, POLL_S, lambda: _another_leads(spec, run))
    if _leads(spec, run):
        run.keep(asked=run.event_key)
        last_answer = _switch_over(spec, run)
    why = run.wait_until(lambda: _another_leads(spec, run), POLL_S)
    if why:
        raise OutOfTime(
            f"no other leader was confirmed: {why}" + (f" (Patroni had answered {last_answer})" if last_answer else "")
        )


def verify(spec: Spec, run: Run) -> Optional[bool]:
    return _another_leads(spec, run)[0]


def recover(spec: Spec, run: Run) -> None:
    run.require(lambda: _is_back(spec, run), POLL_S, f"{spec.member} is not back")


def _leads(spec: Spec, run: Run) -> bool:
    """Return whether this member leads, as the cluster lists it; wait for a Patroni that does not answer."""
    members: List[Member] = []

    def answers() -> Tuple[Optional[bool], str]:
        members[:] = members_seen_by(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
        return bool(members), f"Patroni does not answer at {spec.url}"

    run.require(answers, POLL_S)
    if spec.member not in [each.name for each in members]:
        raise StepFailed(f"the cluster has no member {spec.member!r}: this machine cannot tell whether it leads")
    return any(each.leads and each.name == spec.member for each in members)


def _switch_over(spec: Spec, run: Run) -> str:
    """Request the switchover to one candidate after the other until this member stops leading; return the last answer."""
    last_answer, refusals = "", []
    for candidate in candidates(spec, run):
        status, answer = request_switchover(spec, run, candidate)
        if status == NOT_POSSIBLE:
            refusals.append(f"{candidate}: {answer}")
            continue
        if status in REFUSED:
            raise StepFailed(f"Patroni refuses a switchover: {status}: {answer}")
        last_answer = f"{status}: {answer}" if status else answer
        if not run.wait_at_most(SWITCHOVER_SHOWS_S, POLL_S, lambda: _stopped_leading(spec, run)):
            break
    if not last_answer:
        raise StepFailed(f"no member can take over: {'; '.join(refusals)}")
    return last_answer


def _stopped_leading(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether our own server stopped leading; another need not lead yet."""
    own = own_status(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    leads = own.get("role") in LEADING and own.get("state") == "running"
    return bool(own) and not leads, f"{spec.member} leads as before"


def _another_leads(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether another member leads, by its own account, by ours, and by that of every member that answers."""
    own = own_status(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    members = members_seen_by(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    if not own or not members:
        return None, f"Patroni does not answer at {spec.url}"
    if own.get("role") in LEADING:
        return False, f"{spec.member} itself is still {own['role']}"
    leader = next((each for each in members if each.leads), None)
    if leader is None or leader.name == spec.member:
        return False, f"{spec.member} still leads" if leader else "the cluster has no leader"
    other = own_status(spec, leader.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    if other.get("role") not in LEADING or other.get("state") != "running":
        return False, f"{leader.name} is listed as leader, and says that it is {other.get('role', 'nothing at all')}"
    for each in members:
        seen = (
            members_seen_by(spec, each.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
            if each.name != spec.member
            else []
        )
        if seen and not any(one.leads and one.name == leader.name for one in seen):
            return False, f"{each.name} does not see {leader.name} lead"
        if not seen and each is leader:
            return None, f"{leader.name} does not answer"
    return True, ""


def _is_back(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether the member runs, and leads or is streamed to by the account of the member that streams."""
    own = own_status(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    if own.get("state") != "running":
        return False, f"its server is {own['state']}" if own.get("state") else f"Patroni does not answer at {spec.url}"
    members = members_seen_by(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
    if any(each.leads and each.name == spec.member for each in members):
        return own.get("role") in LEADING, f"it should lead, and says that it is {own.get('role')}"
    others = [each for each in members if each.name != spec.member]
    streamed = any(
        spec.member in standbys_streamed_to(spec, each.url, seconds=run.timeout_s(RESPONSE_WITHIN_S)) for each in others
    )
    return streamed, "no member streams to it"


def _url(value: Any, where: str) -> str:
    parts = urlsplit(text(value, where))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.username:
        raise ConfigError(f'{where}: {value!r} is not the address of a REST API: write it like "http://10.0.0.4:8008"')
    return f"{parts.scheme}://{parts.netloc}"


def _bytes(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{where}: {value!r} is not a number of bytes")
    return value
