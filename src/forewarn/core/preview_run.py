"""One way in which a maintenance may go on: the rules of `advance`, played on a clock that is moved ahead.

`preview` says what is assumed. A wave is played with the wave before it alone, and a host with the host before it, because no
rule reads further back: the cost grows with the number of events, not with its square.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, groupby

from forewarn.core.advance import advance
from forewarn.core.budgets import machines_down
from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.fast_init import replace
from forewarn.core.host_orders import current_host, is_stopped
from forewarn.core.host_waiting import host_reasons
from forewarn.core.host_work import finish_host
from forewarn.core.model import (
    OPEN,
    UNSTARTED,
    VISIBLE,
    Actor,
    Approval,
    Event,
    HostMode,
    Machine,
    Maintenance,
    Order,
    OrderState,
    Phase,
    Status,
)
from forewarn.core.verb_steps import machines_stopped
from forewarn.core.waiting import current_wave, wave_reasons

# If the request does not say how long the work takes.
ASSUMED_WORK_S = 300
# What one wave may take: more steps mean that something wakes the maintenance again and again.
MAX_STEPS_PER_WAVE = 1_000
# How often in a row waves may miss their windows while nothing starts or completes: only an operator ends such a wait.
MAX_MISSED_WINDOWS = 30
_PREVIEW = Actor("reader")
# The order of an event whose machines are shut down for the work on their host is planned.
_AT_WORK = frozenset({OrderState.PLANNED, OrderState.OPEN, OrderState.RUNNING})
_HOST_AT_WORK = frozenset({OrderState.OPEN, OrderState.RUNNING})
# The codes of what a host waits for, among those of the waves.
_OF_HOST = 0


@dataclass(frozen=True, slots=True)
class PlayedWave:
    """When a wave started, and the codes of what it waited for. Only a wave of a host has `events`."""

    start: datetime | None = None
    codes: frozenset[str] = frozenset()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class PlayedHost:
    """The turn of a host: its waves, when the work on the host began, when the turn ended, and what the host waited for."""

    waves: tuple[PlayedWave, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    codes: frozenset[str] = frozenset()


class PreviewRun:
    """One way in which the maintenance may go on, beside the other maintenances of its scopes."""

    def __init__(
        self,
        snapshot: Snapshot,
        maintenance: Maintenance,
        now: datetime,
        *,
        at_once: bool,
        max_steps_per_wave: int = MAX_STEPS_PER_WAVE,
    ) -> None:
        self._snapshot = snapshot
        self._max_steps_per_wave = max_steps_per_wave
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
        self._rival_hosts = {o.id: o for o in snapshot.orders.values() if o.host and o.maintenance_id != maintenance.id}
        self._ended: list[Event] = []
        # The fleet's use was read before the submission, which may have published the first wave.
        down = _visible_machines(snapshot.events.values()) - _visible_machines(self._others)
        self._use = replace(snapshot.fleet_use, machines=snapshot.fleet_use.machines + len(down))

    def play(self, waves: list[list[Event]]) -> tuple[list[PlayedWave], datetime | None]:
        """Return how each wave goes, and when the last one ends. After a wave that never ends, nothing is known."""
        played: list[PlayedWave] = []
        for wave in waves:
            draft = self._draft(wave)
            codes = self._play_turn(draft, self._max_steps_per_wave)
            played.append(PlayedWave(_first_start(self._mine(draft)), frozenset().union(*codes.values())))
            if self._goes_on(draft):
                return played + [PlayedWave() for _ in waves[len(played) :]], None
            self._keep(draft)
        return played, self._now if any(event.started for event in self._ended) else None

    def play_hosts(self, hosts: list[tuple[Order, list[Machine]]]) -> tuple[list[PlayedHost], datetime | None]:
        """Return the turn of each host with these machines, and when the last one ends. Unknown turns have no times."""
        planned: dict[str, list[Event]] = defaultdict(list)
        for event in self._snapshot.events.values():
            if event.maintenance_id == self._maintenance.id:
                planned[event.host].append(event)
        played: list[PlayedHost] = []
        for order, machines in hosts:
            draft = self._draft(planned[order.host], order, machines)
            codes = self._play_turn(draft, self._max_steps_per_wave * (1 + len(machines)))
            played.append(self._played_host(draft, order, codes))
            if self._goes_on(draft):
                return played + [PlayedHost() for _ in hosts[len(played) :]], None
            self._keep(draft)
        return played, max((each.end for each in played if each.end is not None), default=None)

    def _played_host(self, draft: Draft, order: Order, codes: dict[int, set[str]]) -> PlayedHost:
        events = sorted((e for e in self._mine(draft) if not e.replaced_by), key=lambda e: e.wave)
        waves = tuple(
            PlayedWave(_first_start(wave := tuple(found)), frozenset(codes[number]), wave)
            for number, found in groupby(events, key=lambda e: e.wave)
        )
        done = draft.orders[order.id].state is OrderState.DONE
        return PlayedHost(
            waves,
            draft.orders[order.id].issued if done else None,
            draft.now if done and not self._goes_on(draft) else None,
            frozenset(codes[_OF_HOST]),
        )

    def _draft(self, events: list[Event], order: Order | None = None, machines: Iterable[Machine] = ()) -> Draft:
        """Return a draft with some events of the maintenance, or with one of its hosts and the machines on it."""
        known = self._snapshot.machines
        keys = [(event.scope, name) for event in events for name in event.resources]
        everything = [*self._others, *self._ended, *events]
        orders = {event.id: self._orders[event.id] for event in everything if event.id in self._orders}
        if order is not None:
            keys += [machine.key for machine in machines]
            orders |= self._rival_hosts
            orders[order.id] = order
        return Draft(
            replace(
                self._snapshot,
                machines={key: known[key] for key in keys if key in known},
                maintenances={**self._rivals, self._maintenance.id: self._maintenance},
                events={event.id: event for event in everything},
                orders=orders,
                read_hosts=frozenset({order.host} if order is not None else ()),
                fleet_use=self._use,
            ),
            self._now,
            _PREVIEW,
        )

    def _mine(self, draft: Draft) -> list[Event]:
        """Return the events of the wave or the host that is played, and those that replaced them."""
        before = {event.id for event in self._ended}
        return [event for event in draft.events_of(self._maintenance.id) if event.id not in before]

    def _goes_on(self, draft: Draft) -> bool:
        """Whether the wave or the turn of the host has not ended."""
        if any(event.status in OPEN for event in self._mine(draft)):
            return True
        return self._maintenance.host_mode is not None and current_host(draft, self._maintenance) is not None

    def _play_turn(self, draft: Draft, max_steps: int) -> dict[int, set[str]]:
        """Move the clock of the draft until the turn has ended, or nothing more moves it; return what each wave waited for."""
        moving = [each.id for each in draft.maintenances.values() if each.ended is None]
        codes: dict[int, set[str]] = defaultdict(set)
        progress, replaced, missed_windows = _progress(draft), _replaced(draft), 0
        for _ in range(max_steps):
            before = self._state(draft, moving)
            advance(draft, moving, 0, self._new_id)
            last_progress, last_replaced = progress, replaced
            progress, replaced = _progress(draft), _replaced(draft)
            if progress > last_progress:
                missed_windows = 0
            elif replaced > last_replaced:
                missed_windows += 1
            if missed_windows > MAX_MISSED_WINDOWS or not self._goes_on(draft):
                break
            self._note_codes(draft, codes)
            self._act(draft)
            if self._state(draft, moving) != before:
                continue
            moments = [m.wake_at for each in moving if (m := draft.maintenances[each]).wake_at is not None]
            moments += [self._end_of_work(event) for event in self._at_work(draft)]
            moments += [self._end_of_host_work(order) for order in _hosts_at_work(draft)]
            ahead = [moment for moment in moments if moment is not None and moment > draft.now]
            if not ahead:
                break
            draft.now = min(ahead)
        return codes

    def _note_codes(self, draft: Draft, codes: dict[int, set[str]]) -> None:
        """Add what the current wave waits for at this moment, and what the host waits for."""
        maintenance = draft.maintenances[self._maintenance.id]
        wave = current_wave(draft, maintenance)
        if wave and wave[0].status in UNSTARTED:
            codes[wave[0].wave] |= {reason.code for reason in wave_reasons(draft, maintenance)}
        for order in draft.host_orders_of(maintenance.id):
            codes[_OF_HOST] |= {reason.code for reason in host_reasons(draft, maintenance, order, order)}

    def _state(self, draft: Draft, moving: Iterable[str]) -> object:
        maintenances = [draft.maintenances[each] for each in moving]
        return (
            [(m.observed_published_at, m.cancelled) for m in maintenances],
            [(event.status, len(event.approvals)) for event in draft.events.values()],
            [(order.state, order.phase) for order in draft.orders.values()],
        )

    def _act(self, draft: Draft) -> None:
        """Do what guests and executors do at this moment."""
        for event in list(draft.events.values()) if self._at_once else ():
            if event.status is Status.SCHEDULED and all(approval.machine for approval in event.approvals):
                draft.approve(event, Approval(event_id=event.id, machine="", who=_PREVIEW.name, at=draft.now))
        for event in self._at_work(draft):
            if draft.now_in(event.scope) >= self._end_of_work(event):
                self._end_work(draft, event)
        for order in _hosts_at_work(draft):
            if draft.now >= self._end_of_host_work(order):
                finish_host(draft, order, reason="")

    def _end_work(self, draft: Draft, event: Event) -> None:
        order, now = draft.orders[event.id], draft.now_in(event.scope)
        if order.phase is Phase.STOP and self._is_mine(event):
            machines_stopped(draft, event, order)
            return
        draft.put_order(replace(order, state=OrderState.DONE, ended=now))
        draft.put(replace(event, status=Status.COMPLETED, ended=now))
        if draft.maintenances[event.maintenance_id].host_mode is HostMode.EVACUATE:
            for machine in (draft.machines.get((event.scope, name)) for name in event.resources):
                if machine is not None:  # without `to_host`, it leaves for a host that has no turn
                    draft.put_machine(replace(machine, host=event.to_host))

    def _at_work(self, draft: Draft) -> list[Event]:
        """Return the started events whose work goes on. Machines that are shut down on the played host wait for its work."""
        return [
            event
            for event in draft.events.values()
            if event.status is Status.STARTED
            and draft.orders[event.id].state in _AT_WORK
            and not (self._is_mine(event) and is_stopped(draft, event))
        ]

    def _is_mine(self, event: Event) -> bool:
        return event.maintenance_id == self._maintenance.id

    def _end_of_work(self, event: Event) -> datetime:
        # In place, the work on the host takes the time. To shut machines down and start them takes none.
        in_place = self._is_mine(event) and self._maintenance.host_mode is HostMode.IN_PLACE
        seconds = 0 if self._at_once or in_place else work_s(event.duration_s)
        return (event.started or self._now) + timedelta(seconds=seconds)

    def _end_of_host_work(self, order: Order) -> datetime:
        return order.issued + timedelta(seconds=0 if self._at_once else work_s(self._maintenance.duration_s))

    def _keep(self, draft: Draft) -> None:
        """Keep what the next wave or host depends on: the time, what has just ended, and the other maintenances."""
        self._now = draft.now
        mine = self._mine(draft)
        if any(event.started for event in mine):
            self._ended = mine
        # Also events that were planned again.
        self._others = [event for event in draft.events.values() if event.maintenance_id != self._maintenance.id]
        self._orders |= draft.orders
        self._rival_hosts = {each: draft.orders.get(each, known) for each, known in self._rival_hosts.items()}
        self._use = replace(self._use, machines=machines_down(draft))
        self._rivals = {each: draft.maintenances[each] for each in self._rivals}


def work_s(duration_s: int) -> int:
    return duration_s if duration_s >= 0 else ASSUMED_WORK_S


def _first_start(events: Iterable[Event]) -> datetime | None:
    return min((event.started for event in events if event.started is not None), default=None)


def _progress(draft: Draft) -> int:
    """Return a number that grows when an event starts or completes."""
    return sum((e.started is not None) + (e.status is Status.COMPLETED) for e in draft.events.values())


def _replaced(draft: Draft) -> int:
    """Return a number that grows when a wave that missed its window is planned again."""
    return sum(bool(e.replaced_by) for e in draft.events.values())


def _visible_machines(events: Iterable[Event]) -> set[tuple[str, str]]:
    return {(event.scope, name) for event in events if event.status in VISIBLE for name in event.resources}


def _hosts_at_work(draft: Draft) -> list[Order]:
    """Return the orders of hosts whose work goes on. While the store is held, no order is handed out."""
    if draft.before.store_hold is not None:
        return []
    return [order for order in draft.orders.values() if order.host and order.state in _HOST_AT_WORK]
