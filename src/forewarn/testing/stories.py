"""Stories: text files of commands and their results, played on the real service with a clock that only the story moves.

A story is a list of steps. A step is a command, optional lines of input, `----`, the result, and an empty line; lines that begin
with `#` are comments. Times count from the story's beginning (`+15m`). Ids are shown as M1, M2 … (maintenances) and E1, E2 …
(events) and H1, H2 … (orders of hosts), in the order of their creation. Errors in a story are reported with their line.
"""

import inspect
import re
import shlex
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count

from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.document import NEWEST, api_version
from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError, Invalid, Refused
from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.model import (
    Actor,
    Event,
    EventType,
    GroupBy,
    HostMode,
    MaintenanceRequest,
    OnFailure,
    OrderState,
    Source,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.core.transitions import Verb
from forewarn.service.clock import ManualClock
from forewarn.service.settings import from_values
from forewarn.store import AuditQuery, EventQuery, Focus, Store
from forewarn.testing.story_text import parse_fleet_lines, parse_story, setting

START = datetime(2030, 1, 1, tzinfo=UTC)
MAX_SHOWN = 200
# No decision of a story grows too old, however slow the machine is: it would be made again, with other ids.
STILL = Times(monotonic=lambda: 0.0)
GONE = "gone"
SCHEDULE_OPTIONS = (
    "host", "scope", "ud", "not_before", "earliest", "on_failure", "duration", "description", "mode", "to",
    "not_after", "drill", "group_by", "max_parallel", "canary", "bake", "max_failures", "pause_after",
    "scopes", "label", "name", "host_label",
    "windows",
)  # fmt: skip
_END_STATUSES = frozenset({Status.COMPLETED, Status.CANCELLED, Status.ABANDONED})
UNTIL = {
    "Scheduled": frozenset({Status.SCHEDULED, Status.STARTED}) | _END_STATUSES,
    "Started": frozenset({Status.STARTED}) | _END_STATUSES,
    GONE: _END_STATUSES,
}
Action = Callable[..., Iterable[str] | None]
_GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")
_STAMP = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z")


def play(text: str, store: Store, source: str = "story") -> str:
    """Play a story; return its text with the results that really came."""
    steps, rest = parse_story(text, source)
    player = Player(store)
    played = []
    for step in steps:
        try:
            result = player.play(step.command, step.body)
        except Invalid as error:
            raise Invalid(f"{source}: line {step.line}: {error}") from None
        body = "".join(f"{line}\n" for line in step.body)
        played.append(f"{step.lead}{step.command}\n{body}----\n{result}\n")
    return "".join(played) + rest


def story_ids() -> Callable[[], str]:
    """Return a function that makes the same ids in every run."""
    numbers = count(1)
    return lambda: f"{next(numbers):08X}-0000-4000-8000-000000000000"


class Player:
    """Plays commands on a service of its own, and runs its ticker until it is idle after each command.

    With a `service` the player uses that one, whose ticker runs elsewhere.
    """

    def __init__(self, store: Store, *, service: Service | None = None) -> None:
        self._store = store
        self._clock = ManualClock(START)
        self._start = START if service is None else service.clock.now()
        self._new_id = story_ids()
        self._names: dict[str, str] = {}
        self._ticking = service is None
        self._settings: dict[str, object] = {"executor": "external"}
        self._service = service
        self._operator = Actor("operator", "story")

    @property
    def service(self) -> Service:
        """The service of the story, created at its first use."""
        if self._service is None:
            settings = from_values({"store": "memory:", **self._settings})
            self._service = Service(
                settings, clock=self._clock, store=self._store, new_id=self._new_id, node="here", times=STILL
            )
            self._service.ticker.recover()
        return self._service

    def play(self, command: str, body: Iterable[str] = ()) -> str:
        """Run the command and return its result, in lines; raise Invalid if the command is wrong."""
        try:
            word, *rest = shlex.split(command)
            options = dict(pair.split("=", 1) for pair in rest if "=" in pair)
            arguments = [each for each in rest if "=" not in each]
            action = self._action(word)
            lines = list(_call(word, action, arguments, options, tuple(body)))
            if self._ticking and word != "service":
                self.service.ticker.cycle_until_idle()
        except ForewarnError as error:
            lines = [f"error {error.code}: {error}"]
        except (ValueError, KeyError) as error:
            raise Invalid(f"{command[:MAX_SHOWN]!r}: {error}") from None
        return "".join(f"{self._readable(line)}\n" for line in lines) or "ok\n"

    def _action(self, word: str) -> Action:
        action: Action | None = getattr(self, f"_do_{word.replace('-', '_')}", None)
        if action is None:
            known = sorted(name.removeprefix("_do_") for name in vars(Player) if name.startswith("_do_"))
            raise ValueError(f"there is no command {word!r} for stories: use {', '.join(known)}")
        return action

    @property
    def names(self) -> dict[str, str]:
        """The short name of every id that the story has shown."""
        return dict(self._names)

    def begin(self, now: datetime) -> None:
        """Count times from this moment on."""
        self._start = now

    def since(self, moment: datetime | None) -> str:
        """Return the moment as stories write it, such as `+15m`."""
        return _since(moment, self._start)

    # -- the fleet

    def _do_fleet(self, *, body: tuple[str, ...], prune: str = "no") -> Iterable[str]:
        diff = self.service.control.apply_fleet(parse_fleet_lines(body), self._operator, prune=prune == "yes")
        return [*diff.lines, *(f"! {warning}" for warning in diff.warnings)]

    def _do_enable(self, *scopes: str) -> None:
        for scope in scopes:
            self.service.control.enable(scope, Actor(f"guest of {scope}"))

    def _do_disable(self, *scopes: str) -> None:
        for scope in scopes:
            self.service.control.disable(scope, Actor("idle watch"))

    def _do_budget(self, **limits: str) -> None:
        """Limit how many hosts and machines of the fleet are down at once."""
        self.service.control.set_budget(self._operator, **{key: int(limit) for key, limit in limits.items()})

    def _do_machines(self, scope: str) -> Iterable[str]:
        snapshot = self._store.snapshot(Focus(scopes=(scope,), inventory=True))
        return [
            f"{m} update domain {m.update_domain} on {m.host or 'no host'}" for m in snapshot.machines.values()
        ] or ["no machines"]

    # -- acts of operators

    def _do_schedule(self, type_: str, *targets: str, **options: str) -> Iterable[str]:
        flags = {each for each in targets if each in ("user", "emergency", "return", "all")}
        unknown = [each for each in targets if each not in flags and "/" not in each]
        unknown += [key for key in options if key not in SCHEDULE_OPTIONS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is neither a machine nor one of {', '.join(SCHEDULE_OPTIONS)}")
        machines = tuple(_key(each) for each in targets if "/" in each)
        hosts, scopes, patterns = (tuple(options.get(each, "").split(",")) for each in ("host", "scopes", "name"))
        domain = int(options["ud"]) if "ud" in options else None
        request = MaintenanceRequest(
            type=EventType(type_),
            targets=Targets(
                machines=machines,
                hosts=hosts if "host" in options else (),
                scope=options.get("scope", ""),
                update_domain=domain,
                scopes=scopes if "scopes" in options else (),
                labels=options.get("label", ""),
                names=patterns if "name" in options else (),
                everything="all" in flags,
                host_labels=options.get("host_label", ""),
            ),
            source=Source.USER if "user" in flags else Source.PLATFORM,
            emergency="emergency" in flags,
            not_before=self._moment(options.get("not_before")),
            earliest=self._moment(options.get("earliest")),
            on_failure=OnFailure(options.get("on_failure", "hold")),
            duration_s=int(options.get("duration", "-1")),
            description=options.get("description", ""),
            host_mode=HostMode(options["mode"]) if "mode" in options else None,
            return_machines="return" in flags,
            to_host=options.get("to", ""),
            strategy=Strategy(
                group_by=options.get("group_by", GroupBy.UPDATE_DOMAIN),
                max_parallel=int(options.get("max_parallel", "1")),
                canary=int(options.get("canary", "0")),
                bake_s=parse_duration(options.get("bake", "0")),
                max_failures=options.get("max_failures", ""),
                pause_after=int(options.get("pause_after", "0")),
                windows=tuple(filter(None, options.get("windows", "").split(","))),
            ),
            not_after=self._moment(options.get("not_after")),
            drill_hold_s=int(options.get("drill", "0")),
        )
        return self._name_events(self.service.control.submit(request, self._operator))

    def _do_window(self, verb: str, name: str, when: str = "", *, zone: str = "UTC") -> None:
        """Add, extend or remove a window; `when` are its times, or the time until which it is extended."""
        control, moment = self.service.control, self._moment(when) if verb == "extend" else None
        if verb == "add":
            control.put_window(Window(name=name, spans=tuple(when.split("; ")), zone=zone), self._operator)
        elif moment is not None:
            control.extend_window(name, moment, self._operator)
        else:
            control.remove_window(name, self._operator)

    def _do_no_go(self, verb: str, name: str, **options: str) -> None:
        """Add or remove a no-go time, once from `start` to `end` or weekly as in `when`."""
        if verb == "remove":
            self.service.control.remove_no_go_time(name, self._operator)
            return
        no_go = NoGoTime(
            name=name,
            reason=options["reason"],
            start=self._moment(options.get("start")),
            end=self._moment(options.get("end")),
            spans=tuple(filter(None, options.get("when", "").split("; "))),
            zone=options.get("zone", "UTC"),
            scopes=tuple(filter(None, options.get("scopes", "").split(","))),
            labels=options.get("labels", ""),
        )
        self.service.control.put_no_go_time(no_go, self._operator)

    def _do_restart(self, *machines: str) -> Iterable[str]:
        return self._do_schedule("Reboot", *machines, "user")

    def _do_redeploy(self, *machines: str) -> Iterable[str]:
        return self._do_schedule("Redeploy", *machines, "user")

    def _do_pause(self, name: str) -> None:
        self.service.control.pause_maintenance(self._id(name), self._operator)

    def _do_resume(self, name: str) -> None:
        self.service.control.resume_maintenance(self._id(name), self._operator)

    def _do_continue(self, name: str) -> None:
        self.service.control.continue_maintenance(self._id(name), self._operator)

    def _do_cancel(self, name: str) -> None:
        cancel = self.service.control.cancel_maintenance if name.startswith("M") else self.service.control.cancel_event
        cancel(self._id(name), self._operator)

    def _do_retry(self, name: str) -> None:
        if name.startswith("M"):
            self.service.control.retry_failed(self._id(name), self._operator)
        else:
            self._resolve(name, Verb.RETRY)

    def _do_finish(self, name: str) -> None:
        self._resolve(name, Verb.FINISH)

    def _do_abandon(self, name: str) -> None:
        self._resolve(name, Verb.ABANDON)

    def _do_skip(self, name: str, host: str) -> None:
        self.service.control.skip_host(self._id(name), host, self._operator)

    def _do_reschedule(self, name: str, host: str = "", *, to: str) -> Iterable[str] | None:
        """Move an event, or a host of a maintenance."""
        not_before = self._moment(to)
        if not_before is None:
            raise ValueError("reschedule: `to` is the new time, like +2h")
        if name.startswith("M"):
            self.service.control.reschedule_host(self._id(name), host, not_before, self._operator)
            return None
        moved = self.service.control.reschedule_event(self._id(name), not_before, self._operator)
        self._name_new_events()
        return [f"{moved} replaces {name}"]

    def _resolve(self, name: str, verb: Verb) -> None:
        control = self.service.control
        resolve = control.resolve_host if name.startswith("H") else control.resolve_failure
        resolve(self._id(name), verb, self._operator)

    # -- acts of guests

    def _do_approve(self, approver: str, *names: str) -> None:
        if approver == "operator":
            for name in names:
                self.service.control.approve_event(self._id(name), self._operator)
        else:
            scope, machine = _key(approver)
            ids = [self._id(name) for name in names]
            self.service.control.approve(scope, machine, ids, Actor(approver, "guest"))

    # -- acts of executors

    def _do_order(self, verb: str, name: str, reason: str = "", **options: str) -> None:
        control, order_id = self.service.control, self._id(name)
        if verb == "take":
            control.take_order(order_id, Actor("playbook"), node="playbook")
            return
        if verb == "lose":
            control.report_order(order_id, Unknown(reason or "lost"), Actor("playbook"))
            return
        moved = {_key(machine): host for machine, host in options.items()}
        control.report_order(order_id, Outcome(ok=verb == "finish", reason=reason, new_hosts=moved), Actor("playbook"))

    # -- time and the service

    def _do_advance(self, text: str) -> None:
        self.service.ticker.advance(parse_duration(text))

    def _do_until(self, name: str, status: str) -> Iterable[str]:
        """Advance the clock until the event has the status; `gone` is every status that ends an event."""
        advance_until(self.service, lambda: self.has_reached(name, status), lambda: f"{name} to be {status}")
        return self._do_events(name)

    def has_reached(self, name: str, status: str) -> bool:
        """Whether the event has this status or a later one."""
        statuses = UNTIL.get(status)
        if statuses is None:
            raise ValueError(f"{status!r} cannot be waited for: write {', '.join(UNTIL)}")
        event, _ = self.service.control.event(self._id(name))
        return event.status in statuses

    def _do_ticker(self, state: str) -> None:
        self._ticking = state == "running"

    def _do_service(self, **options: str) -> None:
        """Restart the service with the settings given."""
        for key, value in options.items():
            if key == "fail":
                machine, _, times = value.partition(":")
                self._settings["simulated_failures"] = {machine: int(times)}
            else:
                name, parsed = setting(key, value)
                self._settings[name] = parsed
        self._service = None

    # -- results

    def _do_document(self, scope: str, version: str = NEWEST) -> Iterable[str]:
        return [self.service.control.document(scope, api_version(version)).decode()]

    def _do_scope(self, name: str) -> Iterable[str]:
        scope = self._store.snapshot(Focus(scopes=(name,))).scopes[name]
        return [f"{'enabled' if scope.enabled else 'disabled'}, epoch {scope.epoch}, incarnation {scope.incarnation}"]

    def _do_hosts(self, name: str) -> Iterable[str]:
        """Show the work on the hosts of a maintenance, what it waits for, and which hosts are cordoned."""
        maintenance_id, store = self._id(name), self._store
        orders = store.snapshot(Focus(maintenances=(maintenance_id,))).orders.values()
        work = sorted((o for o in orders if o.maintenance_id == maintenance_id), key=lambda o: o.position)
        snapshot = store.snapshot(Focus(maintenances=(maintenance_id,), hosts=tuple(o.host for o in work)))
        waiting = waiting_for_hosts(snapshot, maintenance_id, self.service.clock.now())
        for order in work:
            row = snapshot.hosts.get(order.host)
            cordoned = ", cordoned" if row is not None and row.cordoned is not None else ""
            codes = ", ".join(reason.code for reason in waiting[order.host])
            yield f"{order.id} {order.host} {order.state}{cordoned}" + (f", waits for {codes}" if codes else "")

    def _do_events(self, *names: str) -> Iterable[str]:
        self._name_new_events()
        ids = [self._id(name) for name in names]
        page = self._store.events(EventQuery(limit=500))
        return [self._event(e) for e in reversed(page.events) if not ids or e.id in ids] or ["no events"]

    def _do_maintenance(self, name: str) -> Iterable[str]:
        maintenance, _ = self.service.control.maintenance(self._id(name))
        return [f"{name} {maintenance.status}"]

    def _do_orders(self) -> Iterable[str]:
        orders = [
            *self._store.orders(tuple(OrderState), 500),
            *self._store.orders(tuple(OrderState), 500, of_hosts=True),
        ]
        lines = [f"{o.id} {o.state}, attempt {o.attempt}" + (f": {o.reason}" if o.reason else "") for o in orders]
        return lines or ["no orders"]

    def _do_why(self, name: str) -> Iterable[str]:
        reasons = self.service.control.why(self._id(name))
        until = [f" until {self.since(r.until)}" if r.until else "" for r in reasons]
        return [f"{r.code}{u}: {r.message}" for r, u in zip(reasons, until, strict=True)] or ["nothing"]

    def _do_audit(self, name: str = "") -> Iterable[str]:
        query = AuditQuery(event_id=self._id(name)) if name.startswith("E") else AuditQuery()
        query = AuditQuery(maintenance_id=self._id(name)) if name.startswith("M") else query
        entries = reversed(self._store.audit(query))
        return [f"{self.since(e.at)} {e.who}: {e.action}" + (f" ({e.detail})" if e.detail else "") for e in entries]

    # -- names

    def _name_events(self, maintenance_id: str) -> Iterable[str]:
        """Name the maintenance and its events, and yield its waves."""
        _, events = self.service.control.maintenance(maintenance_id)
        number = sum(name.startswith("M") for name in self._names.values()) + 1
        self._names[maintenance_id] = f"M{number}"
        for event in events:
            self._name("E", event.id)
        orders = self._store.snapshot(Focus(maintenances=(maintenance_id,))).orders.values()
        of_hosts = sorted((o for o in orders if o.maintenance_id == maintenance_id), key=lambda o: o.position)
        for order in of_hosts:
            self._name("H", order.id)
            yield f"M{number} {order.id}: host {order.host}"
        waves = sorted({e.wave for e in events})
        for wave in waves:
            planned = [f"{e.id} {e.scope}#{e.update_domain} {','.join(e.resources)}" for e in events if e.wave == wave]
            yield f"M{number} wave {wave}: {'; '.join(planned)}"

    def _name(self, letter: str, id_: str) -> None:
        self._names[id_] = f"{letter}{sum(name.startswith(letter) for name in self._names.values()) + 1}"

    def _name_new_events(self) -> None:
        """Name the events that were planned after their maintenance was submitted, in the turn of their host."""
        for event in reversed(self._store.events(EventQuery(limit=500)).events):
            if event.id not in self._names:
                self._name("E", event.id)

    def _id(self, name: str) -> str:
        known = {short: full for full, short in self._names.items()}
        return known.get(name, name)

    def _readable(self, line: str) -> str:
        line = _GUID.sub(lambda match: self._names.get(match[0], match[0]), line)
        return _STAMP.sub(lambda match: self.since(datetime.fromisoformat(match[0])), line)

    def _moment(self, text: str | None) -> datetime | None:
        return None if text is None else self._start + timedelta(seconds=parse_duration(text.removeprefix("+")))

    def _event(self, event: Event) -> str:
        line = f"{event.id} {event.status} {event.scope}#{event.update_domain} {','.join(event.resources)}"
        if event.status is Status.SCHEDULED:
            line += f", not before {self.since(event.not_before)}"
        if event.started:
            line += f", started {self.since(event.started)}"
        return line + (f", ended {self.since(event.ended)}" if event.ended else "")


def _call(
    word: str, action: Action, arguments: list[str], options: dict[str, str], body: tuple[str, ...]
) -> Iterable[str]:
    """Call the action; raise ValueError if it does not take these arguments, options or lines of input."""
    keywords = {**options, "body": body} if body else options
    try:
        signature = inspect.signature(action)
        if "self" in options:
            raise TypeError("'self' is not an option")
        if body and "body" not in signature.parameters:
            raise TypeError(f"it takes no lines of input, but {body[0]!r} follows: put an empty line between steps")
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise ValueError(f"{word}: {error}") from None
    return action(*arguments, **keywords) or ()


def advance_until(service: Service, reached: Callable[[], bool], goal: Callable[[], str]) -> None:
    """Move a manual clock from due time to due time until `reached`; raise Refused if nothing more is due."""
    while not reached():
        moment, now = service.ticker.next_wakeup(), service.clock.now()
        if moment is None:
            raise Refused(f"the story waits for {goal()}, but nothing is due that could cause it")
        service.ticker.advance(max(0.0, (moment - now).total_seconds()))


def _key(text: str) -> tuple[str, str]:
    scope, _, name = text.partition("/")
    return scope, name


def _since(moment: datetime | None, start: datetime) -> str:
    if moment is None:
        return "never"
    left = int((moment - start).total_seconds())
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "+" + ("".join(parts) or "0s")
