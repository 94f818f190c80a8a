"""The preview of a maintenance: its calendar, with the earliest and the latest start of each wave and of the work on each host.

Owns what the calendar assumes. At the earliest, every event is approved when it is published, and work takes no time. At the
latest, no event is approved, in other maintenances either, and its work takes the requested duration. So does the work on a
host; in place, machines are shut down and started in no time. Machines that leave a host go to hosts that have no turn in the
maintenance. An event of a drill ends when its hold time is over, in both cases. Nothing fails, nothing else is requested,
and an operator lets the maintenance continue at once.
"""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from forewarn.core.change import Snapshot
from forewarn.core.model import Event, Machine, Maintenance
from forewarn.core.preview_run import PlayedHost, PlayedWave, PreviewRun, work_s

# Reasons that say nothing about a calendar: the ticker or an executor comes next, or other events of the wave or the host wait.
_NOT_SHOWN = frozenset({"ticker", "wave", "executor", "host-not-empty"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveForecast:
    """One wave of the calendar. A time is None if the wave would wait for something that time alone does not end.

    `may_wait_for` are the codes of what the wave waits for in one case or the other. A wave that `returns` brings machines back
    to their host.
    """

    wave: int
    groups: tuple[str, ...]
    events: int
    machines: int
    hosts: tuple[str, ...]
    earliest: datetime | None
    latest: datetime | None
    may_wait_for: tuple[str, ...]
    returns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostForecast:
    """The turn of a host, with the machines that are on it now: when the work on it begins, and when its turn ends."""

    turn: int
    host: str
    machines: int
    earliest: datetime | None
    latest: datetime | None
    earliest_end: datetime | None
    latest_end: datetime | None
    may_wait_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The calendar of a maintenance, and when it ends. The work of each event, and on each host, is assumed to take `work_s`."""

    work_s: int
    waves: tuple[WaveForecast, ...]
    hosts: tuple[HostForecast, ...] = ()
    earliest_end: datetime | None
    latest_end: datetime | None


def forecast(snapshot: Snapshot, maintenance_id: str, now: datetime) -> Forecast:
    """Return the calendar of a maintenance that was submitted at `now`, as the snapshot after the submission shows it."""
    maintenance = snapshot.maintenances[maintenance_id]
    if maintenance.host_mode is not None:
        return _host_forecast(snapshot, maintenance, now)
    waves: dict[int, list[Event]] = {}
    for event in snapshot.events.values():
        if event.maintenance_id == maintenance_id:
            waves.setdefault(event.wave, []).append(event)
    numbers = sorted(waves)
    in_order = [waves[number] for number in numbers]
    first, earliest_end = PreviewRun(snapshot, maintenance, now, at_once=True).play(in_order)
    last, latest_end = PreviewRun(snapshot, maintenance, now, at_once=False).play(in_order)
    paused = _first_after_pause(maintenance, numbers)
    return Forecast(
        work_s=maintenance.drill_hold_s or work_s(maintenance.duration_s),
        waves=tuple(
            _wave(snapshot, waves[number], first[at], last[at], {"continue"} if number == paused else set())
            for at, number in enumerate(numbers)
        ),
        earliest_end=earliest_end,
        latest_end=latest_end,
    )


def _first_after_pause(maintenance: Maintenance, numbers: list[int]) -> int | None:
    """Return the wave that waits for an operator's continue."""
    after = maintenance.strategy.pause_after
    return next((number for number in numbers if after and number > after), None)


def _wave(snapshot: Snapshot, events: list[Event], first: PlayedWave, last: PlayedWave, more: set[str]) -> WaveForecast:
    machines = [snapshot.machines.get((event.scope, name)) for event in events for name in event.resources]
    return WaveForecast(
        wave=events[0].wave,
        groups=tuple(dict.fromkeys(event.group for event in events if event.group)),
        events=len(events),
        machines=len(machines),
        hosts=tuple(sorted({m.host for m in machines if m is not None and m.host})),
        earliest=first.start,
        latest=last.start,
        may_wait_for=_shown(first.codes | last.codes | more),
        returns=events[0].returns,
    )


def _shown(codes: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(codes - _NOT_SHOWN))


def _host_forecast(snapshot: Snapshot, maintenance: Maintenance, now: datetime) -> Forecast:
    """Return the calendar of the hosts in their turn. The events of later hosts are planned from the machines now on them."""
    on_hosts: dict[str, list[Machine]] = defaultdict(list)
    for machine in snapshot.machines.values():
        on_hosts[machine.host].append(machine)
    orders = [order for order in snapshot.orders.values() if order.host and order.maintenance_id == maintenance.id]
    turns = [(order, on_hosts[order.host]) for order in sorted(orders, key=lambda order: order.position)]
    first, earliest_end = PreviewRun(snapshot, maintenance, now, at_once=True).play_hosts(turns)
    last, latest_end = PreviewRun(snapshot, maintenance, now, at_once=False).play_hosts(turns)
    # Both plan the same waves, as far as they come.
    pairs = [
        pair
        for early, late in zip(first, last, strict=True)
        for pair in zip_longest(early.waves, late.waves, fillvalue=PlayedWave())
    ]
    waves = [(list(early.events or late.events), early, late) for early, late in pairs]
    paused = _first_after_pause(maintenance, [events[0].wave for events, _, _ in waves])
    return Forecast(
        work_s=work_s(maintenance.duration_s),
        waves=tuple(
            _wave(snapshot, events, early, late, {"continue"} if events[0].wave == paused else set())
            for events, early, late in waves
        ),
        hosts=tuple(
            _host(turn, order.host, len(machines), first[turn - 1], last[turn - 1])
            for turn, (order, machines) in enumerate(turns, start=1)
        ),
        earliest_end=earliest_end,
        latest_end=latest_end,
    )


def _host(turn: int, host: str, machines: int, first: PlayedHost, last: PlayedHost) -> HostForecast:
    return HostForecast(
        turn=turn,
        host=host,
        machines=machines,
        earliest=first.start,
        latest=last.start,
        earliest_end=first.end,
        latest_end=last.end,
        may_wait_for=_shown(first.codes | last.codes),
    )
