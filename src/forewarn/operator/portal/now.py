"""The page Now: open events by maintenance and wave. What is the same for many events of a wave is shown once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from forewarn.core.errors import Invalid
from forewarn.core.host_orders import OVER
from forewarn.core.model import OPEN, UNFINISHED, EventType, Status
from forewarn.operator.api.bodies import (
    EventOut,
    HostWorkOut,
    MaintenanceOut,
    OpenWaveOut,
    OpenWavesOut,
    WaitingOut,
)
from forewarn.operator.portal.buttons import bulk_buttons
from forewarn.operator.portal.chart import Chart, ChartRow, chart_of
from forewarn.operator.portal.failures import failures_now
from forewarn.operator.portal.page_request import PageRequest, RenderedPage

EVENTS = 20
MAX_PLANNED = 10
FILTERS = ("status", "scope", "host", "type", "q")
OPEN_FIRST = (Status.STARTED, Status.SCHEDULED, Status.PLANNED)
# The sentences for reasons that differ only in names and numbers.
SAME_REASON = {
    "approval": "approvals are missing",
    "wave": "the events of a wave start together, and some are not ready",
}


@dataclass(slots=True)
class EventLine:
    """Events of a wave that are shown alike; `reasons` are those that not all events of the group have."""

    events: list[EventOut]
    row: ChartRow
    reasons: list[WaitingOut]


@dataclass(frozen=True, slots=True)
class Group:
    """The events of one wave with one status, as far as they are on the page; `event_count` counts them on all pages."""

    first: EventOut
    event_count: int
    shown: int
    created: datetime | None
    reasons: list[WaitingOut]
    lines: list[EventLine]


@dataclass(frozen=True, slots=True)
class PlannedWaves:
    """The waves of a maintenance that are not published yet; `reasons`: what holds back the first wave, if none is published."""

    maintenance: OpenWaveOut
    waves: list[int]
    event_count: int
    reasons: list[WaitingOut]


@dataclass(frozen=True, slots=True)
class HostsAtWork:
    """A maintenance, and those of its hosts whose turn has not ended."""

    maintenance: MaintenanceOut
    hosts: list[HostWorkOut]


def now(request: PageRequest) -> RenderedPage:
    search = {name: request.query.get(name, "").strip() for name in FILTERS}
    if search["status"] not in OPEN:
        search["status"] = ""
    status, rest = search["status"], {name: value for name, value in search.items() if name != "status"}
    found: OpenWavesOut = request.api.get("/v1/waves", **rest)
    # Planned events, which may be many, are summed up unless they are requested.
    statuses = [Status(status)] if status else [Status.STARTED, Status.SCHEDULED]
    events, cursor = _events(request, statuses, found.counts, rest)
    chart = chart_of(events, request.now)
    groups = _groups(events, chart, found.waves)
    planned = _planned(request, found.waves) if not status and not request.query.get("cursor") else []
    counts = request.api.get("/v1/counts")
    variables = {
        "counts": counts,
        "failures": failures_now(request, counts),
        "search": search,
        "filtered": any(rest.values()),
        "types": list(EventType),
        "statuses": OPEN_FIRST,
        "chart": chart,
        "groups": groups,
        "events": events,
        "event_count": sum(found.counts[each] for each in statuses),
        "host_work": _host_work(request) if not search["status"] and not any(rest.values()) else [],
        "planned": planned[:MAX_PLANNED],
        "more_planned": len(planned) > MAX_PLANNED or (bool(planned) and found.more),
        "planned_count": found.counts[Status.PLANNED] if planned else 0,
        "all_planned": f"/?{urlencode({'status': 'Planned', **{key: value for key, value in rest.items() if value}})}",
        "bulk_buttons": bulk_buttons(request.api, ("approve", "cancel")),
        **request.other_pages(cursor),
    }
    return RenderedPage("now.html", variables)


def _host_work(request: PageRequest) -> list[HostsAtWork]:
    """Return the maintenances that work on hosts and have not ended. A caller who sees no hosts gets none."""
    rows = request.api.get("/v1/maintenances", status=sorted(UNFINISHED), on_hosts="true", limit=MAX_PLANNED).items
    ids = [row.id for row in rows if row.host_progress is not None]
    found = [request.api.get(f"/v1/maintenances/{each}", limit=0) for each in ids]
    return [HostsAtWork(each, [host for host in each.hosts if host.state not in OVER]) for each in found]


def _events(
    request: PageRequest, statuses: Sequence[Status], counts: Mapping[Status, int], search: Mapping[str, Any]
) -> tuple[list[EventOut], str | None]:
    """Return a page of events, one status after the other, and the next page's cursor."""
    begin, _, cursor = request.query.get("cursor", "").partition(".")
    if begin and begin not in statuses:
        raise Invalid("cursor: this is not one of ours: follow the link to the next page, unchanged")
    events: list[EventOut] = []
    for status in statuses[statuses.index(Status(begin)) if begin else 0 :]:
        if not counts[status]:
            continue
        if len(events) == EVENTS:
            return events, f"{status}."
        after = cursor if status == begin else ""
        page = request.api.get("/v1/events", status=status, limit=EVENTS - len(events), cursor=after, **search)
        events += page.items
        if page.next_cursor is not None:
            return events, f"{status}.{page.next_cursor}"
    return events, None


def _groups(events: Sequence[EventOut], chart: Chart, waves: Iterable[OpenWaveOut]) -> list[Group]:
    known = {(wave.status, wave.maintenance_id, wave.wave): wave for wave in waves}
    groups = []
    rows = zip(events, chart.rows, strict=True)
    for key, group in groupby(rows, key=lambda row: (row[0].status, row[0].maintenance_id, row[0].wave)):
        members = sorted(group, key=lambda row: (row[0].scope, row[0].update_domain))
        wave = known.get(key)
        shared, lines = _lines(members)
        groups.append(
            Group(
                first=members[0][0],
                event_count=wave.events if wave else len(members),
                shown=len(members),
                created=wave.created if wave else None,
                reasons=shared,
                lines=lines,
            )
        )
    return groups


def _lines(members: Sequence[tuple[EventOut, ChartRow]]) -> tuple[list[WaitingOut], list[EventLine]]:
    """Return the reasons that all events have, and a line for the events that are otherwise the same."""
    lines: dict[object, EventLine] = {}
    for event, row in members:
        reasons = tuple(_identity(reason) for reason in event.waiting_for)
        approvals = tuple(approval.when for approval in event.approved_by)
        line = lines.setdefault(
            (event.published, event.not_before, event.started, approvals, reasons),
            EventLine([], row, event.waiting_for),
        )
        line.events.append(event)
    for line in lines.values():
        line.reasons = [_common(reason, line.events) for reason in line.reasons]
    if len(lines) == 1:
        return [], list(lines.values())
    shared = shared_reasons([event for event, _ in members])
    for line in lines.values():
        line.reasons = other_reasons(line.reasons, shared)
    return shared, list(lines.values())


def shared_reasons(events: Sequence[EventOut]) -> list[WaitingOut]:
    """Return the reasons that all these events have, in words that hold for all of them."""
    by_all = set.intersection(*({_identity(reason) for reason in event.waiting_for} for event in events))
    return [_common(reason, events) for reason in events[0].waiting_for if _identity(reason) in by_all]


def other_reasons(reasons: Sequence[WaitingOut], shared: Sequence[WaitingOut]) -> list[WaitingOut]:
    """Return the reasons without the shared ones."""
    known = {_identity(reason) for reason in shared}
    return [reason for reason in reasons if _identity(reason) not in known]


def _identity(reason: WaitingOut) -> object:
    """Return what two events have in common if they wait for the same reason."""
    return reason.code if reason.code in SAME_REASON else (reason.code, reason.message, reason.until)


def _common(reason: WaitingOut, events: Sequence[EventOut]) -> WaitingOut:
    """Return the reason in words that hold for all these events."""
    messages = {each.message for event in events for each in event.waiting_for if each.code == reason.code}
    if len(messages) == 1 or reason.code not in SAME_REASON:
        return reason
    return WaitingOut(code=reason.code, message=SAME_REASON[reason.code], until=reason.until)


def _planned(request: PageRequest, waves: Sequence[OpenWaveOut]) -> list[PlannedWaves]:
    by_maintenance: dict[str, list[OpenWaveOut]] = {}
    for wave in waves:
        if wave.status is Status.PLANNED:
            by_maintenance.setdefault(wave.maintenance_id, []).append(wave)
    announced = {wave.maintenance_id for wave in waves if wave.status is not Status.PLANNED}
    unannounced = [each for each in list(by_maintenance)[:MAX_PLANNED] if each not in announced]
    reasons = {each: _first_reasons(request, each) for each in unannounced}
    return [
        PlannedWaves(
            each[0], sorted(wave.wave for wave in each), sum(wave.events for wave in each), reasons.get(known, [])
        )
        for known, each in by_maintenance.items()
    ]


def _first_reasons(request: PageRequest, maintenance_id: str) -> list[WaitingOut]:
    """Return what the first event of the maintenance waits for, if it is not published yet."""
    maintenance: MaintenanceOut = request.api.get(f"/v1/maintenances/{maintenance_id}", limit=1)
    events = [event for wave in maintenance.waves for event in wave.events]
    return [reason for event in events if event.status is Status.PLANNED for reason in event.waiting_for]
