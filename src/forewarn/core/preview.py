"""The preview of a maintenance: when each wave may start, computed by the rules of `advance` on a clock that is moved ahead.

Owns what the calendar assumes. At the earliest, every event is approved when it is published, and work takes no time. At the
latest, nobody approves an event, also of other maintenances, and its work takes the requested duration. Nothing fails, nobody
requests anything else, and an operator lets the maintenance continue at once. A wave is played with the wave before it alone,
because no rule looks further back: the cost grows with the number of events, not with its square.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

from forewarn.core.advance import advance
from forewarn.core.budgets import machines_down
from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.model import OPEN, UNSTARTED, VISIBLE, Actor, Approval, Event, Maintenance, Order, OrderState, Status
from forewarn.core.waiting import wave_reasons

# If the request does not say how long the work takes.
ASSUMED_WORK_S = 300
# What one wave may take: more steps mean that something wakes the maintenance again and again.
MAX_STEPS_PER_WAVE = 1_000
_PREVIEW = Actor("reader")
# The order of an event whose machines are shut down for the work on their host is planned.
_AT_WORK = frozenset({OrderState.PLANNED, OrderState.OPEN, OrderState.RUNNING})
# Reasons that say nothing about a calendar: the ticker comes next, or other events of the wave wait.
_NOT_SHOWN = frozenset({"ticker", "wave"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveForecast:
    """One wave of the calendar. A time is None if the wave would wait for something that no passing of time ends.

    `may_wait_for` are the codes of what the wave waits for in one case or the other.
    """

    wave: int
    groups: tuple[str, ...]
    events: int
    machines: int
    hosts: tuple[str, ...]
    earliest: datetime | None
    latest: datetime | None
    may_wait_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The calendar of a maintenance, and when its last wave ends. The work of each event is assumed to take `work_s`."""

    work_s: int
    waves: tuple[WaveForecast, ...]
    earliest_end: datetime | None
    latest_end: datetime | None


def forecast(snapshot: Snapshot, maintenance_id: str, now: datetime) -> Forecast:
    """Return the calendar of a maintenance that was submitted at `now`, as the snapshot after the submission shows it."""
    maintenance = snapshot.maintenances[maintenance_id]
    waves: dict[int, list[Event]] = {}
    for event in snapshot.events.values():
        if event.maintenance_id == maintenance_id:
            waves.setdefault(event.wave, []).append(event)
    numbers = sorted(waves)
    in_order = [waves[number] for number in numbers]
    first, earliest_end = _Run(snapshot, maintenance, now, at_once=True).play(in_order)
    last, latest_end = _Run(snapshot, maintenance, now, at_once=False).play(in_order)
    paused = next((number for number in numbers if number > (maintenance.strategy.pause_after or numbers[-1])), None)
    return Forecast(
        work_s=_work_s(maintenance.duration_s),
        waves=tuple(
            _wave(snapshot, waves[number], first[at], last[at], {"continue"} if number == paused else set())
            for at, number in enumerate(numbers)
        ),
        earliest_end=earliest_end,
        latest_end=latest_end,
    )


@dataclass(frozen=True, slots=True)
class _Played:
    """When a wave started, and the codes of what it waited for."""

    start: datetime | None = None
    codes: frozenset[str] = frozenset()


def _wave(snapshot: Snapshot, events: list[Event], first: _Played, last: _Played, more: set[str]) -> WaveForecast:
    machines = [snapshot.machines.get((event.scope, name)) for event in events for name in event.resources]
    return WaveForecast(
        wave=events[0].wave,
        groups=tuple(dict.fromkeys(event.group for event in events if event.group)),
        events=len(events),
        machines=len(machines),
        hosts=tuple(sorted({m.host for m in machines if m is not None and m.host})),
        earliest=first.start,
        latest=last.start,
        may_wait_for=tuple(sorted((first.codes | last.codes | more) - _NOT_SHOWN)),
    )


class _Run:
    """One way in which the maintenance may go on, beside the other maintenances of its scopes."""

    def __init__(self, snapshot: Snapshot, maintenance: Maintenance, now: datetime, *, at_once: bool) -> None:
        self._snapshot = snapshot
        # An operator lets it continue at once.
        self._maintenance = replace(maintenance, continued_after=maintenance.strategy.pause_after)
        self._now = now
        self._at_once = at_once
        numbers = count(1)
        self._new_id: Callable[[], str] = lambda: f"preview-{next(numbers)}"
        # Of the other maintenances, what happens in these scopes counts. The work on their hosts takes no time.
        others = (each for each in snapshot.events.values() if each.maintenance_id != maintenance.id)
        self._others = [each for each in others if each.scope in snapshot.scopes]
        self._orders: dict[str, Order] = dict(snapshot.orders)
        self._rivals = {each.id: each for each in snapshot.maintenances.values() if each.id != maintenance.id}
        self._ended: list[Event] = []
        # The fleet's use was read before the submission, which may have published the first wave.
        down = _visible_machines(snapshot.events.values()) - _visible_machines(self._others)
        self._use = replace(snapshot.fleet_use, machines=snapshot.fleet_use.machines + len(down))

    def play(self, waves: list[list[Event]]) -> tuple[list[_Played], datetime | None]:
        """Return how each wave goes, and when the last one ends. After a wave that never ends, nothing is known."""
        played: list[_Played] = []
        for wave in waves:
            draft = self._draft(wave)
            codes = self._play_wave(draft)
            mine = [e for e in self._mine(draft) if e.started is not None]
            played.append(_Played(min((e.started for e in mine if e.started), default=None), frozenset(codes)))
            if any(event.status in OPEN for event in self._mine(draft)):
                return played + [_Played() for _ in waves[len(played) :]], None
            self._keep(draft)
        return played, self._now if any(event.started for event in self._ended) else None

    def _draft(self, wave: list[Event]) -> Draft:
        events = [*self._others, *self._ended, *wave]
        keys = [(event.scope, name) for event in wave for name in event.resources]
        known = self._snapshot.machines
        maintenances = {**self._rivals, self._maintenance.id: self._maintenance}
        return Draft(
            replace(
                self._snapshot,
                machines={key: known[key] for key in keys if key in known},
                maintenances=maintenances,
                events={event.id: event for event in events},
                orders={event.id: self._orders[event.id] for event in events if event.id in self._orders},
                fleet_use=self._use,
            ),
            self._now,
            _PREVIEW,
        )

    def _mine(self, draft: Draft) -> list[Event]:
        """Return the events of the wave that is played, and those that replaced them."""
        before = {event.id for event in self._ended}
        return [event for event in draft.events_of(self._maintenance.id) if event.id not in before]

    def _play_wave(self, draft: Draft) -> set[str]:
        """Move the clock of the draft until the wave has ended, or nothing more moves it; return what it waited for."""
        moving = [each.id for each in draft.maintenances.values() if each.ended is None]
        codes: set[str] = set()
        for _ in range(MAX_STEPS_PER_WAVE):
            before = self._state(draft, moving)
            advance(draft, moving, 0, self._new_id)
            mine = self._mine(draft)
            if not any(event.status in OPEN for event in mine):
                break
            if any(event.status in UNSTARTED for event in mine):
                codes |= {reason.code for reason in wave_reasons(draft, draft.maintenances[self._maintenance.id])}
            self._act(draft)
            if self._state(draft, moving) != before:
                continue
            moments = [m.wake_at for each in moving if (m := draft.maintenances[each]).wake_at is not None]
            moments += [self._end_of_work(event) for event in _at_work(draft)]
            ahead = [moment for moment in moments if moment is not None and moment > draft.now]
            if not ahead:
                break
            draft.now = min(ahead)
        return codes

    def _state(self, draft: Draft, moving: Iterable[str]) -> object:
        maintenances = [draft.maintenances[each] for each in moving]
        return [(m.observed_published_at, m.cancelled) for m in maintenances], [
            (event.status, len(event.approvals)) for event in draft.events.values()
        ]

    def _act(self, draft: Draft) -> None:
        """Do what guests and executors do at this moment."""
        for event in list(draft.events.values()) if self._at_once else ():
            if event.status is Status.SCHEDULED and all(approval.machine for approval in event.approvals):
                draft.approve(event, Approval(event_id=event.id, machine="", who=_PREVIEW.name, at=draft.now))
        for event in _at_work(draft):
            now = draft.now_in(event.scope)
            if now >= self._end_of_work(event):
                draft.put_order(replace(draft.orders[event.id], state=OrderState.DONE, ended=now))
                draft.put(replace(event, status=Status.COMPLETED, ended=now))

    def _end_of_work(self, event: Event) -> datetime:
        work_s = 0 if self._at_once else _work_s(event.duration_s)
        return (event.started or self._now) + timedelta(seconds=work_s)

    def _keep(self, draft: Draft) -> None:
        """Keep what the next wave depends on: the time, the events that have just ended, and the other maintenances."""
        self._now = draft.now
        mine = self._mine(draft)
        if any(event.started for event in mine):
            self._ended = mine
        # Also events that were planned again.
        self._others = [event for event in draft.events.values() if event.maintenance_id != self._maintenance.id]
        self._orders |= draft.orders
        self._use = replace(self._use, machines=machines_down(draft))
        self._rivals = {each: draft.maintenances[each] for each in self._rivals}


def _work_s(duration_s: int) -> int:
    return duration_s if duration_s >= 0 else ASSUMED_WORK_S


def _visible_machines(events: Iterable[Event]) -> set[tuple[str, str]]:
    return {(event.scope, name) for event in events if event.status in VISIBLE for name in event.resources}


def _at_work(draft: Draft) -> list[Event]:
    """Return the started events whose work goes on."""
    return [
        event
        for event in draft.events.values()
        if event.status is Status.STARTED and draft.orders[event.id].state in _AT_WORK
    ]
