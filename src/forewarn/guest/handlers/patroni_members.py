"""What the members of a Patroni cluster say through their REST APIs, each for itself, read within limits.

Only the one request that changes something carries a login (`request_switchover`).
"""

from __future__ import annotations

import base64
import json
from http.client import HTTPException
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import read_secret
from forewarn.guest.errors import EndpointError, StepFailed
from forewarn.guest.steps import Run
from forewarn.guest.transport import Transport, request_once

# A member that does not answer within this does not answer.
RESPONSE_WITHIN_S = 2.0
# Patroni answers only when the switchover is done. After this the agent stops waiting: the cluster shows the result.
SWITCHOVER_WITHIN_S = 5.0
MAX_MEMBERS = 32
POLL_S = 0.2
LEADING = ("leader", "standby_leader", "master", "primary")


class Spec(NamedTuple):
    # The REST API of this machine's own Patroni, and its name in the cluster.
    url: str
    member: str
    # The member that is to lead; without it the best one.
    candidate: str = ""
    max_lag: int = 1024 * 1024
    # A file with `user:password` for the REST API, and one with the certificates to trust for https.
    login_file: str = ""
    ca_file: str = ""


class Member(NamedTuple):
    """A member, as the cluster lists it."""

    name: str
    role: str
    state: str
    url: str
    lag: Optional[int]
    tags: Mapping[str, Any]

    @property
    def leads(self) -> bool:
        return self.role in LEADING

    @property
    def must_not_lead(self) -> bool:
        return bool(self.tags.get("nofailover")) or self.tags.get("failover_priority") == 0

    def why_not_leader(self, max_lag: int, streamed_to: Set[str]) -> str:
        """Return why this member cannot become leader, or ""."""
        if self.must_not_lead:
            return "its tags say nofailover"
        if self.state not in ("running", "streaming"):
            return f"it is {self.state or 'in no known state'}"
        if self.lag is None:
            return "its lag is not known"
        if self.lag > max_lag:
            return f"it lags {self.lag} bytes behind"
        # The lag in the list may be old, and what was not streamed when the leader stops is lost.
        return "" if self.name in streamed_to else "the leader does not stream to it"


def members_seen_by(spec: Spec, url: str, *, seconds: float = RESPONSE_WITHIN_S) -> List[Member]:
    """Return the cluster as the member at this address sees it, or [] when it does not answer."""
    members = _get(spec, url, "/cluster", seconds).get("members")
    rows = members if isinstance(members, list) else []
    return [_member(row) for row in rows[:MAX_MEMBERS] if isinstance(row, dict)]


def own_status(spec: Spec, url: str, *, seconds: float = RESPONSE_WITHIN_S) -> Dict[str, Any]:
    """Return what a member says about its own server, or {} when it does not answer."""
    return _get(spec, url, "/patroni", seconds)


def standbys_streamed_to(spec: Spec, url: str, *, seconds: float = RESPONSE_WITHIN_S) -> Set[str]:
    """Return the names of the standbys to which the member at this address streams, by its own account."""
    connections = own_status(spec, url, seconds=seconds).get("replication")
    rows = [each for each in connections if isinstance(each, dict)] if isinstance(connections, list) else []
    return {str(each.get("application_name")) for each in rows if each.get("state") == "streaming"}


def candidates(spec: Spec, run: Run) -> List[str]:
    """Return the members that could lead, the best first: synchronous, then least lag, then preferred by tags.

    Wait for a member that is starting or lagging, but not for one that must not lead.
    """
    able_members: List[Member] = []

    def any_able() -> Tuple[Optional[bool], str]:
        members = members_seen_by(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
        others = [each for each in members if each.name != spec.member and spec.candidate in ("", each.name)]
        streamed_to = standbys_streamed_to(spec, spec.url, seconds=run.timeout_s(RESPONSE_WITHIN_S))
        able_members[:] = [each for each in others if not each.why_not_leader(spec.max_lag, streamed_to)]
        reasons = [f"{each.name}: {each.why_not_leader(spec.max_lag, streamed_to)}" for each in others]
        none = f"there is no {spec.candidate!r}" if spec.candidate else "there is no other"
        none = none if members else f"Patroni does not answer at {spec.url}"
        why = f"no member can take over: {'; '.join(reasons) or none}"
        if all(each.must_not_lead for each in others) and members:
            raise StepFailed(why)
        return bool(able_members), why

    run.require(any_able, POLL_S)
    return [each.name for each in sorted(able_members, key=_rank)]


def _rank(member: Member) -> Tuple[Any, ...]:
    priority = member.tags.get("failover_priority", 1)
    return member.role != "sync_standby", member.lag, -priority if isinstance(priority, int) else 0, member.name


def request_switchover(spec: Spec, run: Run, candidate: str) -> Tuple[int, str]:
    """Request the switchover and return status and text of the answer; 0 means no answer, which proves nothing."""
    headers = {"Content-Type": "application/json"}
    if spec.login_file:
        headers["Authorization"] = "Basic " + base64.b64encode(read_secret(spec.login_file).encode()).decode()
    # With the leader named, a second request is harmless: Patroni refuses it if another member leads by then.
    body = json.dumps({"leader": spec.member, "candidate": candidate}).encode()
    seconds = run.timeout_s(SWITCHOVER_WITHIN_S)
    url = f"{spec.url}/switchover"
    try:
        answer = request_once("POST", url, headers=headers, body=body, timeout_s=seconds, ca_file=spec.ca_file)
    except (EndpointError, ValueError):
        return 0, "no answer"
    answer_text = "".join(each for each in answer.body.decode("utf-8", "replace")[:200] if each.isprintable())
    return answer.status, answer_text


def _get(spec: Spec, url: str, path: str, seconds: float) -> Dict[str, Any]:
    transport = Transport(ca_file=spec.ca_file)
    try:
        parts = urlsplit(url)  # may come from another member, so it may be malformed
        endpoint = f"{parts.scheme}://{parts.netloc}"
        answer = transport.request("GET", endpoint, path, headers={}, timeout_s=seconds)
        content = json.loads(answer.body)
    except (EndpointError, HTTPException, ValueError, RecursionError):
        return {}
    finally:
        transport.close()
    return content if isinstance(content, dict) else {}


def _member(row: Mapping[str, Any]) -> Member:
    lag, tags = row.get("lag"), row.get("tags")
    return Member(
        name=str(row.get("name", "")),
        role=str(row.get("role", "")),
        state=str(row.get("state", "")),
        url=str(row.get("api_url", "")),
        lag=lag if isinstance(lag, int) and not isinstance(lag, bool) else None,
        tags=tags if isinstance(tags, dict) else {},
    )
