"""Readiness: which machines approved the events of a drill in time, how long they needed, and which never polled.

A machine is ready if it approved before NotBefore. It is not measured if its event was cancelled, or started earlier because an
operator approved it.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import Event, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReadiness:
    """One machine of a drill. `ready` is None if it was not measured; `seen` is when it first saw the event, if it did."""

    scope: str
    name: str
    event_id: str
    ready: bool | None
    needed_s: int | None
    seen: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """The machines of a drill, counted. `share` is that of the ready machines among the measured, None if there are none."""

    machines: int = 0
    measured: int = 0
    ready: int = 0
    share: float | None = None
    slowest_s: int | None = None


def machine_readiness(
    events: Iterable[Event], first_seen: Mapping[str, Mapping[str, datetime]]
) -> list[MachineReadiness]:
    """Return the readiness of each machine; `first_seen` says by event and machine when a guest first saw the event."""
    return [
        _of_machine(event, name, first_seen.get(event.id, {}).get(name)) for event in events for name in event.resources
    ]


def _of_machine(event: Event, name: str, seen: datetime | None) -> MachineReadiness:
    approved = next((a.at for a in event.approvals if a.machine == name), None)
    in_time = approved is not None and event.not_before is not None and approved < event.not_before
    needed_s = None
    if approved is not None and event.published is not None:
        needed_s = int((approved - event.published) / timedelta(seconds=1))
    return MachineReadiness(
        scope=event.scope,
        name=name,
        event_id=event.id,
        ready=True if in_time else False if _had_its_notice(event) else None,
        needed_s=needed_s,
        seen=seen,
    )


def _had_its_notice(event: Event) -> bool:
    """Whether the event waited for every machine until its NotBefore."""
    if event.started is None or event.not_before is None or event.status is Status.CANCELLED:
        return False
    return event.started >= event.not_before


def drill_result(machines: Iterable[MachineReadiness]) -> DrillResult:
    found = list(machines)
    measured, ready = [m for m in found if m.ready is not None], [m for m in found if m.ready]
    return DrillResult(
        machines=len(found),
        measured=len(measured),
        ready=len(ready),
        share=len(ready) / len(measured) if measured else None,
        slowest_s=max((m.needed_s for m in ready if m.needed_s is not None), default=None),
    )
