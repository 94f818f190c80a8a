"""The emulator: the real service in this process, in memory, with a clock a test can move and a log of what guests did.

Not a second implementation: `server` wires it as it does for `serve`. What is added is the log of requests, faults, and
expectations, all at the listener's one seam (`listening`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any
from uuid import UUID

from forewarn.app.operator_token import MIN_TOKEN_CHARS, environment_token
from forewarn.app.server import running
from forewarn.app.service import Service, new_id
from forewarn.core.errors import Invalid, InvalidSettings, NotFound, Refused
from forewarn.core.fleet import Fleet
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import (
    Actor,
    EventType,
    MaintenanceRequest,
    OnFailure,
    Order,
    OrderState,
    Source,
    Targets,
)
from forewarn.core.transitions import Verb
from forewarn.endpoint.connection import ConnectionFactory
from forewarn.endpoint.protocol import ANY_HOST
from forewarn.operator.api.access import ENVIRONMENT_TOKEN
from forewarn.operator.api.calls import CALLS
from forewarn.service.clock import Clock, ManualClock, clock_for
from forewarn.service.settings import Settings, load, on_loopback
from forewarn.store.memory import MemoryStore
from forewarn.testing.default_machines import SCOPE, fleet_of
from forewarn.testing.emulator_api import emulator_calls
from forewarn.testing.expectations import WITHIN_S, Expectations
from forewarn.testing.faults import Fault, Playbook, listed, parse_faults, read_faults
from forewarn.testing.recorded_connection import RecordedConnection
from forewarn.testing.recording_file import read_recording
from forewarn.testing.replay import Replay, ReplayedConnection
from forewarn.testing.request_log import Asked, RequestLog

MAX_MACHINES = 250
START = datetime(2030, 1, 1, tzinfo=UTC)
OPERATOR = Actor("operator", "emulator")
# What makes it an emulator is not for others to set.
OWN_SETTINGS = (
    "store",
    "state_dir",
    "fleet",
    "prune",
    "clock",
    "guest",
    "operator",
    "token_free",
    "every_caller",
)
# Where time is moved, guests hear of many changes in a second: a limit by the second is a test's to ask for.
DEFAULTS = {"disable_after": "0", "rate_limit": "0", "executor": "simulated"}

Faults = Path | str | Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A maintenance that was scheduled: its events in the order of their waves. `id` is the first one's."""

    maintenance_id: str
    event_ids: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.event_ids[0]

    def __str__(self) -> str:
        return self.id


class Emulator:
    """A context manager. `machines` are vm-0, vm-1 … of one scope, 127.0.0.1, 127.0.0.2 …; one alone is whoever calls.

    `clock` is `manual`, `system` or a rate like `60x`. `seed` fixes the ids, the dice of the faults, and on the manual clock
    the start, 2030-01-01. `port` is the guests', the operators' is the next; 0 takes any two. `guest` and
    `operator` are other addresses for them, HOST:PORT; off loopback operators need FOREWARN_TOKEN. `enabled=False` waits for the
    first poll, as the service does. `replay` is a recording: its machine is whoever calls, and sees that alone. Other settings
    as in a configuration file: `disable_after="24h"`, `rate_limit=5`; by default both are off.
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
        replay: Path | None = None,
        enabled: bool = True,
        **settings: object,
    ) -> None:
        if machines is not None and fleet is not None:
            raise InvalidSettings("machines: a fleet says which machines there are: leave one of the two out")
        machines = 1 if machines is None else machines
        if not 1 <= machines <= MAX_MACHINES:
            raise InvalidSettings(
                f"machines: {machines} are too few or too many: use 1 to {MAX_MACHINES}, or a fleet file"
            )
        if not 0 <= port < 65_535:
            raise InvalidSettings(f"port: {port} and the next must be ports: use 1 to 65534, or 0 for any two")
        if wrong := sorted(settings.keys() & set(OWN_SETTINGS)):
            raise InvalidSettings(f"{wrong[0]}: an emulator has its own: leave it out")
        recording = read_recording(replay) if replay is not None else None
        if recording is not None:
            if fleet is not None or machines != 1:
                raise InvalidSettings(
                    "replay: a recording is what one machine saw: leave out other machines and fleets"
                )
            fleet = fleet_of(1, recording.head.machine)
        self._machines = machines
        self._fleet = Path(fleet) if isinstance(fleet, str) else fleet
        self._guest = guest or f"127.0.0.1:{port}"
        self._operator = operator or f"127.0.0.1:{port + 1 if port else 0}"
        self._enabled = enabled
        self._settings = {**DEFAULTS, **{key: _text(value) for key, value in settings.items()}}
        self.seed = seed if seed is not None else int(new_id()[:8], 16)
        self._new_id = seeded_ids(seed) if seed is not None else new_id
        self.clock = _clock(clock, seeded=seed is not None)
        self.replay = Replay(recording, self.clock) if recording is not None else None
        self.log = RequestLog(self.clock.now)
        self.expectations = Expectations(self.log)
        self._playbook = self._playbook_of(faults or ())
        self._open = ExitStack()

    # -- coming and going

    def __enter__(self) -> "Emulator":
        try:
            self._start()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _start(self) -> None:
        flags = {
            **self._settings,
            "store": "memory:",
            "guest": self._guest,
            "allow_any_interface": True,
            "operator": self._operator,
            "behind_tls_proxy": True,  # see `_reached`
            "every_caller": self._every_caller(),
        }
        # Not the environment: what is set there is meant for a service, and a test must not depend on it.
        settings = _reached(load(flags, {}))
        self.service = Service(settings, clock=self.clock, store=MemoryStore(), new_id=self._new_id)
        self._open.callback(self.service.close)
        self.service.control.listen(self.log.heard)
        self._apply_fleet()
        self._playbook.refuse_strangers(self.machine_names())
        connection: ConnectionFactory = partial(RecordedConnection, self.log, self._choose_fault)
        if self.replay is not None:
            self.replay.nudge = self.service.ticker.nudge
            self.service.ticker.add_chore(self.replay)
            connection = partial(ReplayedConnection, self.replay, self.log, self._choose_fault)
        guests, self.operator_url = self._open.enter_context(
            running(self.service, connection=connection, calls=(*CALLS, *emulator_calls(self)), write_address=False)
        )
        self.endpoint = guests.listener.urls[0]

    def _every_caller(self) -> str | None:
        """The one machine, where there is only one."""
        if isinstance(self._fleet, Fleet) and len(self._fleet.machines) == 1:
            return "/".join(next(iter(self._fleet.machines)))
        return f"{SCOPE}/vm-0" if self._machines == 1 and self._fleet is None else None

    def _apply_fleet(self) -> None:
        if isinstance(self._fleet, Path):
            self.service.apply_fleet_file(self._fleet)
        else:
            self.service.control.apply_fleet(self._fleet or fleet_of(self._machines), OPERATOR)
        if self._enabled:
            for name in sorted(self.service.store.scopes()):
                self.service.control.enable(name, OPERATOR)

    @property
    def environment(self) -> dict[str, str]:
        """What guests and the command line need to find it."""
        return {"FOREWARN_ENDPOINT": self.endpoint, "FOREWARN_SERVER": self.operator_url}

    def machine_names(self) -> list[str]:
        """Each as `scope/name`."""
        return sorted(f"{m.scope}/{m.name}" for m in self.service.store.machine_identities())

    # -- what an operator does

    def schedule(
        self,
        type: str,  # noqa: A002 - the protocol's word
        *machines: str,
        scope: str = "",
        update_domain: int | None = None,
        hosts: Sequence[str] = (),
        source: str = "Platform",
        not_before: datetime | timedelta | None = None,
        earliest: datetime | timedelta | None = None,
        duration_s: int = -1,
        description: str = "",
        emergency: bool = False,
        on_failure: str = "hold",
    ) -> Scheduled:
        """A maintenance of these machines (or a scope, or hosts); `user` events with `source="User"`.

        A timedelta counts from now.
        """
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
            not_before=self._moment(not_before),
            earliest=self._moment(earliest),
            duration_s=duration_s,
            description=description,
            emergency=emergency,
            on_failure=_one_of(OnFailure, on_failure, "on_failure"),
        )
        if self.replay is not None:
            raise Refused("an emulator that replays shows the recording alone: schedule on one without `replay`")
        control = self.service.control
        maintenance_id = control.submit(request, OPERATOR)
        self.service.ticker.cycle_until_idle()  # what starts at once has started when this returns
        _, events = control.maintenance(maintenance_id)
        return Scheduled(maintenance_id, tuple(event.id for event in events))

    def approve(self, event: Scheduled | str) -> None:
        """As the operator, for everybody."""
        self.service.control.approve_event(_id(event), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def cancel(self, event: Scheduled | str) -> None:
        self.service.control.cancel_event(_id(event), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def finish(self, event: Scheduled | str) -> None:
        """The work of a started event is done, or was done after all."""
        event_id, control = _id(event), self.service.control
        if self._order(event_id).state is OrderState.FAILED:
            control.resolve_failure(event_id, Verb.FINISH, OPERATOR)
        else:
            control.report_order(event_id, Outcome(ok=True), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def fail(self, event: Scheduled | str, reason: str = "it was told to fail") -> None:
        """The work of a started event failed: it stays Started until it is finished."""
        event_id = _id(event)
        self._order(event_id)
        self.service.control.report_order(event_id, Outcome(ok=False, reason=reason), OPERATOR)
        self.service.ticker.cycle_until_idle()

    def _order(self, event_id: str) -> Order:
        """Of a started event; an approval that just came has started it."""
        self.service.ticker.cycle_until_idle()
        event, order = self.service.control.event(event_id)
        if order is None:
            raise Refused(f"event {event_id} is {event.status}, not Started: approve it, or advance the clock")
        return order

    def status(self, event: Scheduled | str) -> str:
        """Planned, Scheduled, Started, Completed, Cancelled or Abandoned."""
        self.service.ticker.cycle_until_idle()
        found, _ = self.service.control.event(_id(event))
        return str(found.status)

    # -- time

    def advance(self, seconds: float = 0.0, **more: float) -> datetime:
        """Move a manual or scaled clock, `advance(90)` or `advance(minutes=2)`; everything due happens at its own time."""
        return self.service.ticker.advance(seconds + timedelta(**more).total_seconds())

    # -- what guests did

    def requests(
        self, *, machine: str | None = None, method: str = "", event: Scheduled | str | None = None, since: int = 0
    ) -> list[Asked]:
        """The log, oldest first: of a machine, of a method, approving or showing an event, after request number `since`."""
        wanted = self._known_event(event) if event is not None else ""
        self._known_machine(machine)
        return [
            r
            for r in self.log.requests()
            if r.number > since and r.is_of(machine) and method in ("", r.method)
            if not wanted or wanted in r.approves or any(shown == wanted for shown, _ in r.events)
        ]

    def wait_seen(
        self, event: Scheduled | str, by: str | None = None, *, status: str = "", within_s: float = WITHIN_S
    ) -> Asked:
        __tracebackhide__ = True
        return self.expectations.seen(
            self._known_event(event), by=self._known_machine(by), status=status, within_s=within_s
        )

    def expect_approval(
        self, event: Scheduled | str, within_s: float = WITHIN_S, times: int = 1, *, by: str | None = None
    ) -> list[Asked]:
        __tracebackhide__ = True
        return self.expectations.approval(
            self._known_event(event), by=self._known_machine(by), times=times, within_s=within_s
        )

    def expect_no_approval(self, event: Scheduled | str, within_s: float = 0.0, *, by: str | None = None) -> None:
        __tracebackhide__ = True
        self.expectations.no_approval(self._known_event(event), by=self._known_machine(by), within_s=within_s)

    def expect_no_more(self) -> None:
        """No event was approved again since `expect_approval`; the fixture asks at the end of a test."""
        __tracebackhide__ = True
        self.expectations.no_more()

    def expect_poll(
        self, by: str | None = None, *, within_s: float = WITHIN_S, times: int = 1, since: int | None = None
    ) -> list[Asked]:
        __tracebackhide__ = True
        return self.expectations.poll(by=self._known_machine(by), times=times, within_s=within_s, since=since)

    def timeline(self) -> str:
        return "\n".join(self.log.timeline())

    def trace(self) -> str:
        """The requests without the real time: the same seed and guests, the same bytes."""
        return self.log.trace()

    # -- faults

    def set_faults(self, faults: Faults) -> None:
        """From now on these: a file, or tables as in one. Numbers and times count anew."""
        playbook = self._playbook_of(faults)
        playbook.refuse_strangers(self.machine_names())
        self._playbook = playbook

    def _playbook_of(self, faults: Faults) -> Playbook:
        parsed = read_faults(Path(faults)) if isinstance(faults, str | Path) else parse_faults(faults)
        return Playbook(parsed, began=self.clock.now(), seed=self.seed)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self._playbook.faults

    def _choose_fault(self, machine: str, method: str) -> Fault | None:
        chosen = self._playbook.choose(machine=machine, method=method, now=self.clock.now())
        return chosen or (self.replay.fault if self.replay is not None else None)

    # -- names and moments

    def _known_event(self, event: Scheduled | str) -> str:
        """Its id; one that never was is a mistake of the test's, and no expectation on it would ever fail."""
        event_id = _id(event).upper()
        if self.replay is None:
            self.service.control.event(event_id)
        elif event_id not in self.replay.event_ids:
            raise NotFound(f"event {event_id} is not in the recording")
        return event_id

    def _known_machine(self, name: str | None) -> str | None:
        """`vm-0`, `scope/vm-0`, or None for anybody; one that is not there is a mistake as well."""
        names = self.machine_names() if name is not None else []
        if name is not None and not any(name in (each, each.partition("/")[2]) for each in names):
            raise NotFound(f"there is no machine {name!r}: {listed(names)}")
        return name

    def _key(self, name: str) -> tuple[str, str]:
        scope, slash, rest = name.partition("/")
        if slash:
            return scope, rest
        found = self.service.store.machines_named(name)
        return found[0].key if len(found) == 1 else (SCOPE, name)

    def _moment(self, moment: datetime | timedelta | None) -> datetime | None:
        return self.clock.now() + moment if isinstance(moment, timedelta) else moment


def _reached(settings: Settings) -> Settings:
    """On loopback without a token; elsewhere, in a container's network, with one, and in the clear: the work is pretended.

    There guests call it by whatever name that network gives it.
    """
    free = on_loopback(settings.operator)
    if not free and not environment_token():
        raise InvalidSettings(
            f"operator: {settings.operator} is not on loopback, and others could give orders there: set {ENVIRONMENT_TOKEN} to a"
            f" token of at least {MIN_TOKEN_CHARS} characters, and give it to those who may"
        )
    by_name = not all(on_loopback(listener.partition("@")[0]) for listener in settings.guest)
    hosts = (ANY_HOST,) if by_name else settings.allowed_hosts
    return replace(settings, behind_tls_proxy=False, token_free=free, allowed_hosts=hosts)


def seeded_ids(seed: int) -> Callable[[], str]:
    """Upper-case GUIDs, the same for the same seed."""
    dice = Random(seed)  # noqa: S311 - repeatable on purpose
    return lambda: str(UUID(int=dice.getrandbits(128), version=4)).upper()


def _clock(text: str, *, seeded: bool) -> Clock:
    try:
        return ManualClock(START) if seeded and text == "manual" else clock_for(text)
    except Invalid as error:
        raise InvalidSettings(f"clock: {error}") from None


def _id(event: Scheduled | str) -> str:
    return event if isinstance(event, str) else event.id


def _one_of(enum: Any, value: str, key: str) -> Any:
    try:
        return enum(value)
    except ValueError:
        raise Invalid(f"{key}: {value!r} is not one of {', '.join(each.value for each in enum)}") from None


def _text(value: object) -> object:
    """Settings are read as the command line has them: a plain number is text there."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
