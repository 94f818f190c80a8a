"""What the members of a Patroni cluster say by their REST APIs: read within limits, each asked for itself.

Questions carry no login; only the one request that changes something does (`switch`).
"""

from __future__ import annotations

import base64
import json
from http.client import HTTPException
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple
from urllib.parse import urlsplit

from forewarn.guest.config_values import secret_in
from forewarn.guest.errors import EndpointError, OutOfTime, StepFailed
from forewarn.guest.steps import Run
from forewarn.guest.transport import Transport

# One that does not answer within this does not answer.
ASK_S = 2.0
# Patroni answers when it is done, which takes a while. Its answer is not waited for longer than this: the cluster tells.
SWITCH_S = 5.0
MAX_MEMBERS = 32
LOOK_S = 0.2
LEADING = ("leader", "standby_leader", "master", "primary")


class Spec(NamedTuple):
    # This machine's own Patroni, and its name in the cluster.
    url: str
    member: str
    # Who is to lead; without it the best there is.
    candidate: str = ""
    max_lag: int = 1024 * 1024
    # `user:password` of the REST API, and whom to trust for https.
    login_file: str = ""
    ca_file: str = ""


class Member(NamedTuple):
    """As the cluster has it."""

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

    def why_not(self, max_lag: int, streamed_to: Set[str]) -> str:
        """ "" when it could lead; else what is in the way."""
        if self.must_not_lead:
            return "its tags say nofailover"
        if self.state not in ("running", "streaming"):
            return f"it is {self.state or 'in no known state'}"
        if self.lag is None:
            return "its lag is not known"
        if self.lag > max_lag:
            return f"it lags {self.lag} bytes behind"
        # What the cluster knows of its lag may be old, and what was not streamed to it when the leader ends is lost.
        return "" if self.name in streamed_to else "the leader does not stream to it"


def patience_s(run: Run) -> float:
    return max(0.1, min(ASK_S, run.left_s()))


def cluster(spec: Spec, url: str, *, seconds: float = ASK_S) -> List[Member]:
    """The cluster as the member at this address sees it; [] when it does not answer."""
    said = _asked(spec, url, "/cluster", seconds).get("members")
    rows = said if isinstance(said, list) else []
    return [_member(row) for row in rows[:MAX_MEMBERS] if isinstance(row, dict)]


def itself(spec: Spec, url: str, *, seconds: float = ASK_S) -> Dict[str, Any]:
    """What a member says of its own server; {} when it does not answer."""
    return _asked(spec, url, "/patroni", seconds)


def receivers(spec: Spec, url: str, *, seconds: float = ASK_S) -> Set[str]:
    """To whom the member at this address streams, as it says itself."""
    senders = itself(spec, url, seconds=seconds).get("replication")
    rows = [each for each in senders if isinstance(each, dict)] if isinstance(senders, list) else []
    return {str(each.get("application_name")) for each in rows if each.get("state") == "streaming"}


def candidates(spec: Spec, run: Run) -> List[str]:
    """Those who could lead, the best first: synchronous, then with least to catch up, then preferred by its tags.

    One that starts or lags just now is waited for; one that must not lead is not.
    """
    able: List[Member] = []

    def look() -> Tuple[Optional[bool], str]:
        members = cluster(spec, spec.url, seconds=patience_s(run))
        others = [each for each in members if each.name != spec.member and spec.candidate in ("", each.name)]
        streamed_to = receivers(spec, spec.url, seconds=patience_s(run))
        able[:] = [each for each in others if not each.why_not(spec.max_lag, streamed_to)]
        reasons = [f"{each.name}: {each.why_not(spec.max_lag, streamed_to)}" for each in others]
        nobody = f"there is no {spec.candidate!r}" if spec.candidate else "there is no other"
        nobody = nobody if members else f"Patroni does not answer at {spec.url}"
        why = f"no member can take over: {'; '.join(reasons) or nobody}"
        if all(each.must_not_lead for each in others) and members:
            raise StepFailed(why)
        return bool(able), why

    why = run.until(look, LOOK_S)
    if why:
        raise OutOfTime(why)
    return [each.name for each in sorted(able, key=_rank)]


def _rank(member: Member) -> Tuple[Any, ...]:
    priority = member.tags.get("failover_priority", 1)
    return member.role != "sync_standby", member.lag, -priority if isinstance(priority, int) else 0, member.name


def switch(spec: Spec, run: Run, candidate: str) -> Tuple[int, str]:
    """Ask for it: the status and what was said; 0: no answer, which says nothing."""
    headers = {"Content-Type": "application/json"}
    if spec.login_file:
        headers["Authorization"] = "Basic " + base64.b64encode(secret_in(spec.login_file).encode()).decode()
    # Naming the leader makes it harmless to ask twice: Patroni refuses if another leads by then.
    body = json.dumps({"leader": spec.member, "candidate": candidate}).encode()
    seconds = max(0.1, min(SWITCH_S, run.left_s()))
    transport = Transport(ca_file=spec.ca_file)
    try:
        answer = transport.request("POST", spec.url, "/switchover", headers=headers, body=body, timeout_s=seconds)
    except (EndpointError, ValueError):
        return 0, "no answer"
    finally:
        transport.close()
    said = "".join(each for each in answer.body.decode("utf-8", "replace")[:200] if each.isprintable())
    return answer.status, said


def _asked(spec: Spec, url: str, path: str, seconds: float) -> Dict[str, Any]:
    transport = Transport(ca_file=spec.ca_file)
    try:
        parts = urlsplit(url)  # of another member, as the cluster has it: it need not be one
        endpoint = f"{parts.scheme}://{parts.netloc}"
        answer = transport.request("GET", endpoint, path, headers={}, timeout_s=seconds)
        said = json.loads(answer.body)
    except (EndpointError, HTTPException, ValueError, RecursionError):
        return {}
    finally:
        transport.close()
    return said if isinstance(said, dict) else {}


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
