"""The calendar: planned, announced and lately ended maintenance, one entry for each wave, in the scopes that a token names.

Everything about it is bounded: the events that are read, the entries, the names and the text of an entry.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from urllib.parse import parse_qs

from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.formatting import cut
from forewarn.core.model import ENDED, OPEN, Event, Maintenance, MaintenanceStatus, Scope, Status
from forewarn.core.window_rules import may_limit
from forewarn.operator.api.icalendar import CalendarEntry, EntryStatus, calendar_text
from forewarn.store import EventQuery, MaintenanceQuery, Store
from forewarn.store.queries import MAX_PAGE

CALENDAR = "/v1/calendar.ics"
# How long ended maintenance stays: a calendar program that reads once a day still learns that it was cancelled.
KEPT_DAYS = 7
MAX_EVENTS = 10_000
MAX_ENTRIES = 500
MAX_NAMES = 20
MAX_SUMMARY_NAMES = 3
MAX_DESCRIPTION_CHARS = 300
OPEN_MAINTENANCES = (MaintenanceStatus.PLANNED, MaintenanceStatus.RUNNING, MaintenanceStatus.PAUSED)
SENTENCES = {
    Status.PLANNED: "It is not announced yet. It starts at this time at the earliest.",
    Status.SCHEDULED: "It is announced. It starts at this time, or earlier if it is approved.",
    Status.STARTED: "It has started. Its end is an estimate.",
    Status.COMPLETED: "It is done.",
    Status.CANCELLED: "It is cancelled.",
    Status.ABANDONED: "It was abandoned: the work was not done.",
}
# Statuses in the order in which a wave passes them; the three that are last are final.
_STEPS = ({Status.PLANNED}, {Status.SCHEDULED}, {Status.STARTED}, ENDED)
_ORDER = {status: step for step, statuses in enumerate(_STEPS) for status in statuses}


def token_in(query: bytes) -> str:
    """Return the token in the query of the calendar's address, or "" if there is not exactly one."""
    tokens = parse_qs(query.decode("latin-1")).get("token", [])
    return tokens[0] if len(tokens) == 1 else ""


def calendar_of(
    store: Store,
    within: tuple[str, ...] | None,
    now: datetime,
    *,
    page: int = MAX_PAGE,
    max_events: int = MAX_EVENTS,
) -> bytes:
    """Return the calendar of these scopes, or of the whole fleet; reads at most `page` rows at once."""
    events, are_all = _events(store, within, now, page, max_events)
    opened = store.maintenances(MaintenanceQuery(statuses=OPEN_MAINTENANCES, within=within, limit=page))
    maintenances = {maintenance.id: maintenance for maintenance in opened}
    if len(opened) == page or not are_all:
        events, are_all = _with_predecessors(store, within, events, maintenances), False
    scopes, rules = store.scopes(), store.fleet_rules()
    of_maintenance: dict[str, dict[str, Scope]] = defaultdict(dict)
    for event in events:
        if event.scope in scopes:
            of_maintenance[event.maintenance_id][event.scope] = scopes[event.scope]
    limited = {i for i, each in maintenances.items() if may_limit(rules, each, of_maintenance[i].values(), now)}
    entries = entries_of(events, maintenances, limited)
    name = f"Maintenance of {cut(', '.join(within), MAX_DESCRIPTION_CHARS)}" if within else "Maintenance"
    about = "Planned and announced maintenance, from forewarn."
    if len(entries) > MAX_ENTRIES:
        about += f" Only {MAX_ENTRIES} of its entries are here: use a token of fewer scopes."
    elif not are_all:
        about += " There is too much to show all of it here: use a token of fewer scopes."
    return calendar_text(name, about, entries[:MAX_ENTRIES]).encode()


def _events(
    store: Store, within: tuple[str, ...] | None, now: datetime, page: int, max_events: int
) -> tuple[list[Event], bool]:
    """Return at most `max_events` open and lately ended events, and whether they are all.

    They are read one status after the other, so that planned events, which may be many, do not displace started ones.
    """
    queries = [
        EventQuery(statuses=(status,), within=within) for status in (Status.STARTED, Status.SCHEDULED, Status.PLANNED)
    ]
    queries.append(EventQuery(statuses=tuple(ENDED), since=now - timedelta(days=KEPT_DAYS), within=within))
    events: list[Event] = []
    while queries:
        most = min(page, max_events - len(events))
        if most == 0:
            return events, False
        found = store.events(replace(queries[0], limit=most))
        events += found.events
        queries[:1] = [] if found.next_before is None else [replace(queries[0], before=found.next_before)]
    return events, True


def _with_predecessors(
    store: Store, within: tuple[str, ...] | None, events: Sequence[Event], maintenances: Mapping[str, Maintenance]
) -> list[Event]:
    """Leave out planned events of a maintenance that was not read completely: their times follow from the waves before."""
    open_count = Counter(e.maintenance_id for e in events if e.status in OPEN)
    waves = store.wave_progress(open_count.keys() & maintenances.keys(), within)
    complete = {i for i, of_one in waves.items() if open_count[i] == sum(wave.unended for wave in of_one)}
    return [e for e in events if e.status is not Status.PLANNED or e.maintenance_id in complete]


def entries_of(
    events: Iterable[Event], maintenances: Mapping[str, Maintenance], limited: Collection[str] = ()
) -> list[CalendarEntry]:
    """Return an entry for each wave whose time is known: open waves by their start, then ended ones.

    A wave is published when the wave before has ended. Its earliest start is estimated from that, with the notice of the wave
    before; not in a maintenance whose starts windows or no-go times may limit.
    """
    entries = []
    in_order = sorted(events, key=lambda e: (e.maintenance_id, e.wave, e.position))
    for maintenance_id, group in groupby(in_order, key=lambda e: e.maintenance_id):
        of_one = list(group)
        notice_s = EVENT_TYPES[of_one[0].type].minimum_notice_s
        maintenance = maintenances.get(maintenance_id)
        earliest = None  # start of the next wave
        changed = [maintenance.created] if maintenance is not None else []
        for _, wave in groupby(of_one, key=lambda e: e.wave):
            whole = list(wave)
            changed += [at for e in whole for at in (e.published, e.started, e.ended) if at is not None]
            # Events that were planned again are shown by those that replace them, even if these are cancelled.
            shown = [e for e in whole if e.status is not Status.CANCELLED]
            shown = shown or [e for e in whole if not e.replaced_by] or whole
            start, end = _times(shown, maintenance, earliest)
            if start is not None and changed:
                entries.append((all(e.status in ENDED for e in shown), _entry(shown, whole, start, end, max(changed))))
            last = end or start
            if whole[0].published is not None:
                notice_s = max(e.minimum_notice_s for e in whole)
            earliest = None if last is None or maintenance_id in limited else last + timedelta(seconds=notice_s)
    return [entry for _, entry in sorted(entries, key=lambda each: (each[0], each[1].start, each[1].uid))]


def _times(
    wave: Sequence[Event], maintenance: Maintenance | None, earliest: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """Return when the wave starts and ends, as far as it is known or can be estimated."""
    started = [e.started for e in wave if e.started is not None]
    if started:
        start = min(started)
        ended = [e.ended for e in wave if e.ended is not None]
        if len(ended) == len(wave):
            return start, max(ended)
    else:
        known = [e.not_before for e in wave if e.not_before is not None]
        if not known and earliest is not None:
            known = [earliest]
        known += [e.requested_not_before for e in wave if e.requested_not_before is not None]
        if maintenance is not None:
            known += [at for at in (maintenance.not_before, maintenance.earliest) if at is not None]
        if not known:
            return None, None
        start = max(known)
    duration_s = max(e.duration_s for e in wave)
    return start, start + timedelta(seconds=duration_s) if duration_s > 0 else None


def _entry(
    wave: Sequence[Event], whole: Sequence[Event], start: datetime, end: datetime | None, changed: datetime
) -> CalendarEntry:
    """Return the entry of a wave. `whole` also has its events that were cancelled or planned again."""
    first = min(wave, key=lambda e: _ORDER[e.status])
    names = [f"{e.scope}/{name}" for e in wave for name in e.resources]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    planned = " (not announced yet)" if first.status is Status.PLANNED else ""
    about = [
        cut(first.description, MAX_DESCRIPTION_CHARS),
        SENTENCES[first.status],
        f"Machines: {', '.join(names[:MAX_NAMES])}{more}",
        f"Maintenance {first.maintenance_id}, wave {first.wave}",
    ]
    status = {Status.PLANNED: EntryStatus.TENTATIVE, Status.CANCELLED: EntryStatus.CANCELLED}
    return CalendarEntry(
        uid=f"{first.maintenance_id}-{first.wave}@forewarn",
        # A wave whose window closed is planned again: its new events have later positions. Cancelled events count too, so that
        # the number never decreases.
        sequence=len(_STEPS) * max(e.position for e in whole) + _ORDER[first.status],
        changed=changed,
        start=start,
        end=end,
        status=status.get(first.status, EntryStatus.CONFIRMED),
        summary=f"{first.type}: {_machines(wave, names)}{planned}",
        description="\n".join(line for line in about if line),
        category=first.type,
    )


def _machines(wave: Sequence[Event], names: Sequence[str]) -> str:
    if len(names) <= MAX_SUMMARY_NAMES:
        return ", ".join(names)
    scopes = {e.scope for e in wave}
    return f"{len(names)} machines of {wave[0].scope if len(scopes) == 1 else f'{len(scopes)} scopes'}"
