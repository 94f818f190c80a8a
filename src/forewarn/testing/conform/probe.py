"""The probe: which kinds of events the agent sees, approves and prepares for if they name its own machine.

A behaviour is tested with a kind that the agent handles. Otherwise an agent that ignores an event because of its kind would
seem to ignore it because of its machine.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forewarn.core.event_types import EVENT_TYPES
from forewarn.testing.conform.agent_process import AgentFailed
from forewarn.testing.conform.event_kinds import EventKind

if TYPE_CHECKING:
    from forewarn.testing.conform.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class KindResult:
    """What the agent did about an event of this kind. `reason` says what was missing, if anything was.

    `ended` means that the agent's process ended and must not, `served` that it got a document. `took_s` is how long the agent
    took to act.
    """

    kind: EventKind
    seen: bool = False
    approved: bool = False
    prepared: bool = False
    ended: bool = False
    served: bool = True
    took_s: float = 0.0
    reason: str = ""
    output: str = ""
    timeline: tuple[str, ...] = ()

    @property
    def handled(self) -> bool:
        return self.approved or self.prepared


def probe(trial: "Trial", kind: EventKind) -> KindResult:
    """Start the agent with one event of its own, and wait for what the agent claims to do about it."""
    event = trial.schedule_held(kind, trial.machine)
    reason = ""
    took_s = 0.0
    try:
        trial.start()
        trial.wait_seen(event)
        seen_s = time.monotonic()
        if "approval" in trial.claims:
            trial.wait_approved(event)
        elif "prepare" in trial.claims:
            trial.wait_prepared()
        took_s = time.monotonic() - seen_s
        if not trial.prepared:
            trial.wait_next_poll(event)
    except AgentFailed as error:
        reason = str(error)
    seen = trial.seen(event) is not None
    if not seen and trial.served:
        reason = f"its api-version does not show {kind.type}: {EVENT_TYPES[kind.type].first_api_version} and later do"
    return KindResult(
        kind=kind,
        seen=seen,
        approved=bool(trial.approvals(event)),
        prepared=bool(trial.prepared),
        ended=trial.agent.has_ended and not trial.setup.restarts,
        served=trial.served,
        took_s=took_s,
        reason=reason,
    )


def kind_list(results: Sequence[KindResult]) -> str:
    return ", ".join(str(each.kind) for each in results) or "none"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why the results of the probe fail a behaviour, and the result that shows it best."""

    reason: str
    result: KindResult


def find_unapproved(results: Sequence[KindResult], *, declared: bool) -> Finding | None:
    """The agent should approve each kind that it declares, and at least one."""
    missing = [each for each in results if not each.approved]
    if len(missing) == len(results):
        return Finding(f"it approved no event of its own: {results[0].reason}", results[0])
    if missing and declared:
        return Finding(f"it did not approve {kind_list(missing)}: {missing[0].reason}", missing[0])
    return None


def find_unprepared(results: Sequence[KindResult], *, declared: bool) -> Finding | None:
    """The agent should prepare for at least one kind: for some there may be nothing to prepare."""
    del declared
    if any(each.prepared for each in results):
        return None
    return Finding("its prepare hook wrote no line for any event of its own", results[0])


def find_unhandled(results: Sequence[KindResult], *, declared: bool) -> Finding | None:
    """The agent should approve or prepare for each of these kinds."""
    del declared
    missing = [each for each in results if not each.handled]
    return Finding(f"it neither approved nor prepared for it: {missing[0].reason}", missing[0]) if missing else None
