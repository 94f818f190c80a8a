"""The emulator: the real service in this process, in memory, with a movable clock and a log of what guests did.

It is not a second implementation: it starts the service as `serve` does. The request log, faults and expectations are added at
one interface, the connection to a guest (`emulated_connection`).
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.app.server import running
from forewarn.app.service import Service, new_id, read_fleet_file
from forewarn.core.durations import duration_text
from forewarn.core.errors import Invalid, InvalidSettings, NotFound, Refused
from forewarn.core.fleet import Fleet
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    Actor,
    EventType,
    MaintenanceRequest,
    OnFailure,
    Order,
    OrderState,
    Source,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.endpoint.connection import ConnectionFactory
from forewarn.service.clock import Clock
from forewarn.store.memory import MemoryStore
from forewarn.testing.approvals import Approvals, OnApproval
from forewarn.testing.default_machines import FIRST_HOST, SCOPE, default_fleet, machine_hosts
from forewarn.testing.durations import Duration, seconds_of
from forewarn.testing.emulated_connection import EmulatedConnection, EmulatorParts
from forewarn.testing.emulator_settings import check_settings, emulator_clock, emulator_settings, seeded_ids
from forewarn.testing.expectations import WITHIN_S, Expectations
from forewarn.testing.faults import DOCUMENT, Fault, FaultPlan, machine_list, parse_faults, read_faults
from forewarn.testing.refusals import Refusals
from forewarn.testing.request_log import LoggedRequest, RequestLog
from forewarn.testing.reset import end_maintenances, remove_rules
from forewarn.testing.short_notice import ShortNotice

if TYPE_CHECKING:
    from forewarn.operator.api.calls import Call
    from forewarn.testing.replay import Replay
    from forewarn.testing.scenarios.player import ScenarioRun

MAX_MACHINES = 250
MAX_PORT = 65_534
# A test computes a moment before it passes it as `not_before`, and a system clock moves on meanwhile.
NOT_BEFORE_LATE_S = 1.0
OPERATOR = Actor("operator", "emulator")

T = TypeVar("T")
Faults = Path | str | Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduled maintenance with its events in the order of their waves. `id` is the id of the first event."""

    maintenance_id: str
    event_ids: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.event_ids[0]

    def __str__(self) -> str:
        return self.id


class Emulator:
    """An emulator, as a context manager.

    `machines` is the number of machines: vm-0, vm-1 … in one scope, at 127.0.0.1, 127.0.0.2 …; if there is only one, every
    caller is that machine. `clock` is `manual`, `system` or a rate like `60x`. `seed` fixes the ids, the random choices of
    faults, and the start of a manual clock (2030-01-01). Guests use `port` and operators the next one; 0 takes any two free
    ports. `guest` and `operator` (HOST:PORT) replace these addresses; off loopback operators need FOREWARN_TOKEN. With
    `enabled=False` a scope is enabled by its first poll, as in the service. `replay` is a recording: every caller is its
    machine and sees only the recording. Other settings are those of a configuration file, such as `disable_after="24h"` or
    `rate_limit=5`, which are both off by default.
    """

    def __init__(
        self,
        machines: int | None = None,
        *,
        fleet: Path | str | Fleet | None = None,
        clock: str = "manual",
        seed: int | None = None,
        port: int = 0,
        guest: str = "",
        operator: str = "",
        faults: Faults | None = None,
        replay: Path | str | None = None,
        enabled: bool = True,
        **settings: object,
    ) -> None:
        if machines is not None and fleet is not None:
            raise InvalidSettings("machines: the fleet defines the machines: leave out one of the two")
        machines = 1 if machines is None else machines
        if not isinstance(machines, int) or not 1 <= machines <= MAX_MACHINES:
            raise InvalidSettings(f"machines: {machines!r} is not from 1 to {MAX_MACHINES}: use a fleet file for more")
        if not isinstance(port, int) or not 0 <= port <= MAX_PORT:
            raise InvalidSettings(f"port: {port!r} is not from 1 to {MAX_PORT}, or 0 for any two free ports")
        check_settings(settings)
        self.clock = emulator_clock(clock, seeded=seed is not None)
        self.replay = _open_replay(Path(replay), self.clock) if replay is not None else None
        if self.replay is not None:
            if fleet is not None or machines != 1:
                raise InvalidSettings("replay: a recording is of one machine: leave out other machines and fleets")
            fleet = default_fleet(1, self.replay.recording.head.machine)
        self._fleet_is_file = isinstance(fleet, str | Path)
        self._fleet = (
            read_fleet_file(Path(fleet)) if isinstance(fleet, str | Path) else fleet or default_fleet(machines)
        )
        self._hosts = machine_hosts(self._fleet) if self._every_caller() is None else {}
        self._guests = (
            [guest] if guest else [f"{FIRST_HOST}:{port}", *(f"{host}:{port}" for host in self._hosts.values())]
        )
        self._operator = operator or f"127.0.0.1:{port + 1 if port else 0}"
        self._enabled = enabled
        self._settings = settings
        self.seed = seed if seed is not None else int(new_id()[:8], 16)
        self._new_id = seeded_ids(seed) if seed is not None else new_id
        self._short_notice = ShortNotice()
        self.log = RequestLog(self.clock.now)
        self.approvals = Approvals()
        self.expectations = Expectations(self.log, self.approvals.raise_failure)
        self._parts = EmulatorParts(
            log=self.log,
            choose_fault=self._choose_fault,
            approvals=self.approvals,
            machine_hosts=frozenset(self._hosts.values()),
        )
        self._initial_faults = faults or ()
        self._fault_plan = self._new_fault_plan(self._initial_faults)
        self.scenario: ScenarioRun | None = None
        self._service: Service | None = None
        self._ended = False
        self._urls: list[str] = []
        self._operator_url = ""
        self._running = ExitStack()

    # -- start and end

    def __enter__(self) -> "Emulator":
        try:
            self._start()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        self.approvals.end()
        self._running.close()
        self._service, self._urls, self._operator_url, self._ended = None, [], "", True
        if error is None:
            self.approvals.raise_failure()

    def _start(self) -> None:
        settings = emulator_settings(
            self._settings, guest=self._guests, operator=self._operator, every_caller=self._every_caller()
        )
        self._service = Service(settings, clock=self.clock, store=MemoryStore(), new_id=self._new_id)
        self._running.callback(self.service.close)
        self.service.control.listen(self.log.add_change)
        self._apply_fleet()
        self._fault_plan.check_machines(self.machine_names())
        connection = self._connection()
        if self.replay is not None:
            self.replay.nudge = self.service.ticker.nudge
            self.service.ticker.call_periodically(self.replay)
            connection = self.replay.connections(self._parts)
        guest_server, self._operator_url = self._running.enter_context(
            running(self.service, connection=connection, more_calls=self._api_calls, write_address=False)
        )
        self._urls = guest_server.listener.urls
        self._loop = guest_server.endpoint.loop
        self._refusals = Refusals(
            guest_server.endpoint, guest_server.listener, lambda: self._fault_plan, self.clock.now
        )
        self._refusals.apply()
        self.service.ticker.call_periodically(self._refusals)
        self.service.ticker.cycle()  # /readyz answers 200 from now on
        self.service.ticker.nudge()

    def _connection(self) -> ConnectionFactory:
        return partial(EmulatedConnection, self._parts)

    def _api_calls(self) -> "tuple[Call, ...]":
        from forewarn.testing.emulator_api import emulator_calls  # it imports the whole API

        return emulator_calls(self)

    def _every_caller(self) -> str | None:
        """Return the only machine as `scope/name`, or None if there are several or a file defines them."""
        machines = [] if self._fleet_is_file else list(self._fleet.machines)
        return "/".join(machines[0]) if len(machines) == 1 else None

    def _apply_fleet(self) -> None:
        control = self.service.control
        control.apply_fleet(self._short_notice.allowed_in(self._fleet), OPERATOR, prune=True)
        for name in sorted(self.service.store.scopes()):
            (control.enable if self._enabled else control.disable)(name, OPERATOR)

    @property
    def service(self) -> Service:
        """The service; it exists only inside the `with` block."""
        return self._while_running(self._service)

    @property
    def endpoint(self) -> str:
        """The URL for guests."""
        return self._while_running(self._urls)[0]

    @property
    def operator_url(self) -> str:
        return self._while_running(self._operator_url)

    def _while_running(self, part: T | None) -> T:
        """Return a part that exists only while the emulator runs."""
        if not part:
            state = "has ended" if self._ended else "has not started"
            raise Refused(
                f"the emulator {state}: use it inside `with Emulator(…) as emulator:`, or in the test that has the fixture"
            )
        return part

    @property
    def endpoints(self) -> dict[str, str]:
        """The URLs at which a caller from this computer is one machine, by `scope/name`."""
        url, *others = self._while_running(self._urls)
        if (every_caller := self._every_caller()) is not None:
            return {every_caller: url}
        machines = self._fleet.machines.values() if f"//{FIRST_HOST}:" in url else ()
        first = {str(machine): url for machine in machines if FIRST_HOST in machine.addresses}
        return first | dict(zip(self._hosts, others, strict=False))  # a given `guest` is the only listener

    def endpoint_of(self, machine: str) -> str:
        """Return the URL at which every caller is this machine."""
        self._known_machine(machine)
        name = "/".join(self._key(machine))
        if name not in self.endpoints:
            raise Refused(
                f"machine {name} has no URL of its own: it needs an address like {FIRST_HOST[:-1]}2 in the fleet, and the"
                " emulator an address for guests that `guest` does not set"
            )
        return self.endpoints[name]

    def reset(self) -> None:
        """Make the emulator as it was at its start, except for its clock: no events, no log, the same machines and faults.

        Guests stay connected, and see the events disappear. Incarnations and the numbers of requests continue.
        """
        __tracebackhide__ = True
        if self.replay is not None or self.scenario is not None:
            raise Refused("a replay or a scenario cannot be reset: start another emulator")
        self.approvals.end()
        end_maintenances(self.service, OPERATOR)
        self._apply_fleet()
        self.set_faults(self._initial_faults)
        remove_rules(self.service, OPERATOR)
        self.expectations.forget()
        self.log.clear()
        self.approvals.raise_failure()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which guests and the command line find the emulator."""
        return {"FOREWARN_ENDPOINT": self.endpoint, "FOREWARN_SERVER": self.operator_url}

    def machine_names(self) -> list[str]:
        """Return the names of all machines as `scope/name`."""
        return sorted(f"{m.scope}/{m.name}" for m in self.service.store.machine_identities())

    # -- acts of an operator

    def schedule(
        self,
        type: str,  # noqa: A002 - the protocol's word
        *machines: str,
        scope: str = "",
        update_domain: int | None = None,
        hosts: Sequence[str] = (),
        source: str = "Platform",
        not_before: datetime | Duration | None = None,
        earliest: datetime | Duration | None = None,
        notice: Duration | None = None,
        duration_s: Duration = -1,
        description: str = "",
        emergency: bool = False,
        on_failure: str = "hold",
    ) -> Scheduled:
        """Schedule a maintenance of these machines, of a scope, or of hosts. Types may be in any case.

        A duration is like "15m", a timedelta or a number of seconds; as `not_before` and `earliest` it counts from now. `notice`
        is the time from now until NotBefore, also if the protocol promises more.
        """
        now = self.clock.now()
        targets = Targets(
            machines=tuple(self._key(name) for name in machines),
            scope=scope,
            update_domain=update_domain,
            hosts=tuple(hosts),
        )
        request = MaintenanceRequest(
            type=_one_of(EventType, type, "type"),
            targets=targets,
            source=_one_of(Source, source, "source"),
            not_before=_moment(not_before, "not_before", now),
            earliest=_moment(earliest, "earliest", now),
            duration_s=-1 if duration_s == -1 else int(seconds_of(duration_s, "duration_s")),
            description=description,
            emergency=emergency,
            on_failure=_one_of(OnFailure, on_failure, "on_failure"),
        )
        if self.replay is not None:
            raise Refused("a replay shows only the recording: schedule on an emulator without `replay`")
        control = self.service.control
        if notice is None:
            self._check_not_before(request, now)
            maintenance_id = control.submit(request, OPERATOR)
        else:
            with self._short_notice.of(request.type, int(seconds_of(notice, "notice"))):
                maintenance_id = control.submit(request, OPERATOR)
        self.service.ticker.cycle_until_idle()  # an event that starts at once has started when this returns
        _, events = control.maintenance(maintenance_id)
        return Scheduled(maintenance_id, tuple(event.id for event in events))

    def approve(self, event: Scheduled | str) -> None:
        """Approve as the operator, which counts for all machines."""
        self.service.control.approve_event(self._id(event), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def cancel(self, event: Scheduled | str) -> None:
        """Cancel an event that has not started."""
        self.service.control.cancel_event(self._id(event), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def finish(self, event: Scheduled | str) -> None:
        """End the work of a started event successfully, also if it failed before."""
        event_id, control = self._id(event), self.service.control
        if self._order(event_id).state is OrderState.FAILED:
            control.resolve_failure(event_id, Verb.FINISH, OPERATOR)
        else:
            control.report_order(event_id, Outcome(ok=True), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def fail(self, event: Scheduled | str, reason: str = "the test made it fail") -> None:
        """End the work of a started event with a failure. The event stays Started until it is finished."""
        event_id = self._id(event)
        self._order(event_id)
        self.service.control.report_order(event_id, Outcome(ok=False, reason=reason), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def _order(self, event_id: str) -> Order:
        """Return the order of a started event, after the ticker has handled the latest approvals."""
        self.service.ticker.cycle_until_idle()
        event, order = self.service.control.event(event_id)
        if order is None:
            raise Refused(f"event {event_id} is {event.status}, not Started: approve it, or advance the clock")
        return order

    def status(self, event: Scheduled | str) -> str:
        """Return Planned, Scheduled, Started, Completed, Cancelled or Abandoned."""
        self.service.ticker.cycle_until_idle()
        current, _ = self.service.control.event(self._id(event))
        return str(current.status)

    # -- time

    def advance(self, duration: Duration = 0.0, **more: float) -> datetime:
        """Move a manual or scaled clock by `advance(90)`, `advance("15m")` or `advance(minutes=2)`.

        Everything due happens at its own time.
        """
        return self.service.ticker.advance(seconds_of(duration, "advance") + timedelta(**more).total_seconds())

    # -- requests of guests and expectations on them

    def on_approval(self, callback: OnApproval | None) -> OnApproval | None:
        """Call `callback` with each approval, in a thread of its own, before it is recorded and answered; None ends this.

        A callback that raises fails the test. One that returns the status of an error, like 503, answers the guest with it, and
        nothing is recorded. This can be used as a decorator.
        """
        if iscoroutinefunction(callback):
            raise Refused("on_approval: the callback must not be async: it is called in a thread of its own")
        self.approvals.set_callback(callback)
        return callback

    def requests(
        self, *, machine: str | None = None, method: str = "", event: Scheduled | str | None = None, since: int = 0
    ) -> list[LoggedRequest]:
        """Return the logged requests, oldest first.

        Filters: the machine, the method, an event that the request approves or its answer shows, and requests after number
        `since`.
        """
        event_id = self._known_event(event) if event is not None else ""
        self._known_machine(machine)
        return [
            r
            for r in self.log.requests()
            if r.number > since and r.is_from(machine) and method in ("", r.method)
            if not event_id or event_id in r.approves or r.shows(event_id)
        ]

    def wait_seen(
        self, event: Scheduled | str, by: str | None = None, *, status: str = "", within_s: Duration = WITHIN_S
    ) -> LoggedRequest:
        """Wait until a readable document with the event has reached the machine `by`, or any machine."""
        __tracebackhide__ = True
        wait_s = self._wait_s("wait_seen", within_s)
        status = _one_of(Status, status, "status") if status else ""
        return self.expectations.seen(
            self._known_event(event), by=self._known_machine(by), status=status, within_s=wait_s
        )

    def expect_approval(
        self, event: Scheduled | str, within_s: Duration = WITHIN_S, times: int = 1, *, by: str | None = None
    ) -> list[LoggedRequest]:
        """Wait until the event is approved exactly this many times."""
        __tracebackhide__ = True
        wait_s = self._wait_s("expect_approval", within_s)
        return self.expectations.approval(
            self._known_event(event), by=self._known_machine(by), times=times, within_s=wait_s
        )

    def expect_no_approval(self, event: Scheduled | str, within_s: Duration = 0.0, *, by: str | None = None) -> None:
        """Check until the time is up that no request tried to approve the event."""
        __tracebackhide__ = True
        wait_s = self._wait_s("expect_no_approval", within_s)
        self.expectations.no_approval(self._known_event(event), by=self._known_machine(by), within_s=wait_s)

    def expect_no_more(self) -> None:
        """Check that no event was approved again after `expect_approval`. The fixture calls this at the end of a test."""
        __tracebackhide__ = True
        self.expectations.no_more()

    def expect_poll(
        self, by: str | None = None, *, within_s: Duration = WITHIN_S, times: int = 1, since: int | None = None
    ) -> list[LoggedRequest]:
        """Wait until this many polls are answered, from now on or after request number `since`."""
        __tracebackhide__ = True
        wait_s = self._wait_s("expect_poll", within_s)
        return self.expectations.poll(by=self._known_machine(by), times=times, within_s=wait_s, since=since)

    def _wait_s(self, call: str, within_s: Duration) -> float:
        """Return how long a call may wait; raise if the emulator does not run, or if an event loop would stop meanwhile."""
        self._while_running(self._service)
        wait_s = seconds_of(within_s, "within_s")
        if wait_s and _in_event_loop():
            raise Refused(
                f"{call} waits, and the event loop of this test would stop meanwhile: write"
                f" `await asyncio.to_thread(scheduled_events.{call}, …)` with the same arguments, or within_s=0"
            )
        return wait_s

    def timeline(self) -> str:
        """Return the latest requests and changes as text for people."""
        return "\n".join(self.log.timeline())

    def trace(self) -> str:
        """Return the requests without the real time: the same seed and guests give the same bytes."""
        return self.log.trace()

    # -- faults

    def set_faults(self, faults: Faults) -> None:
        """Replace the faults by a file or by tables as in such a file. Request numbers and times count from here."""
        plan = self._new_fault_plan(faults)
        plan.check_machines(self.machine_names())
        self._fault_plan = plan
        self._refusals.apply()
        self.service.ticker.nudge()

    def _new_fault_plan(self, faults: Faults) -> FaultPlan:
        parsed = read_faults(Path(faults)) if isinstance(faults, str | Path) else parse_faults(faults)
        return FaultPlan(parsed, began=self.clock.now(), seed=self.seed)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self._fault_plan.faults

    def _choose_fault(self, machine: str, method: str, path: str) -> Fault | None:
        chosen = self._fault_plan.choose(machine=machine, method=method, path=path, now=self.clock.now())
        return chosen or (self.replay.fault if self.replay is not None and path == DOCUMENT else None)

    # -- names and moments

    def _id(self, event: Scheduled | str) -> str:
        """Return the event's id. The events of a scenario also have its names, such as E1."""
        if not isinstance(event, str):
            return event.id
        if self.scenario is None:
            return event.upper()
        # A guest may see an event before the step that schedules it has ended, which gives the event its name.
        self.service.ticker.cycle_until_idle()
        return self.scenario.event_id(event) or event.upper()

    def _known_event(self, event: Scheduled | str) -> str:
        """Return the event's id; raise NotFound if there is no such event, because `expect_no_approval` would always pass."""
        event_id = self._id(event)
        if self.replay is None:
            self.service.control.event(event_id)
        elif event_id not in self.replay.event_ids:
            raise NotFound(f"event {event_id} is not in the recording")
        return event_id

    def _known_machine(self, name: str | None) -> str | None:
        """Return the name unchanged; raise NotFound if there is no such machine, for the same reason."""
        names = self.machine_names() if name is not None else []
        if name is not None and not any(name in (each, each.partition("/")[2]) for each in names):
            raise NotFound(f"there is no machine {name!r}: {machine_list(names)}")
        return name

    def _key(self, name: str) -> tuple[str, str]:
        scope, slash, rest = name.partition("/")
        if slash:
            return scope, rest
        self._known_machine(name)
        matching = self.service.store.machines_named(name)
        return matching[0].key if len(matching) == 1 else (SCOPE, name)

    def _check_not_before(self, request: MaintenanceRequest, now: datetime) -> None:
        """Raise if NotBefore would be later than requested, because the service gives the notice that the protocol promises."""
        if request.not_before is None or request.emergency:
            return
        scopes = [scope for scope in self.service.store.scopes().values() if scope.enabled]
        named = {*(scope for scope, _ in request.targets.machines), request.targets.scope} - {""}
        notices_s = [scope.notice_s(request.type) for scope in scopes if scope.name in named or not named]
        left_s = (request.not_before - now).total_seconds()
        if notices_s and left_s < max(notices_s) - NOT_BEFORE_LATE_S:
            promised, short = duration_text(max(notices_s)), duration_text(max(0, int(left_s)))
            raise Invalid(
                f"not_before: it is {short} from now, but machines that poll get {promised} of notice before a {request.type}, so"
                f' NotBefore would be later. For short notice write notice="{short}" instead of not_before; otherwise leave'
                " not_before out, or use a later one"
            )


def _open_replay(path: Path, clock: Clock) -> "Replay":
    from forewarn.testing.recording_file import read_recording  # few emulators replay
    from forewarn.testing.replay import Replay

    return Replay(read_recording(path), clock)


def _in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # an event loop runs only if the test has imported it
    try:
        if asyncio is None:
            return False
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _moment(moment: datetime | Duration | None, name: str, now: datetime) -> datetime | None:
    if moment is None or isinstance(moment, datetime):
        return moment
    return now + timedelta(seconds=seconds_of(moment, name))


def _one_of(enum: Any, value: str, key: str) -> Any:
    for each in enum:
        if isinstance(value, str) and each.value.lower() == value.lower():
            return each
    raise Invalid(f"{key}: {value!r} is not one of {', '.join(each.value for each in enum)}")
