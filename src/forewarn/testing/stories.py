"""Stories: text files that say what is done and what is seen, played on the real service with a clock that is moved.

A story is a list of steps. A step is a command, perhaps with lines of input, then `----`, then what is seen, then an
empty line; lines that begin with `#` are for the reader. Times are shown since the story's beginning (`+15m`), ids as
M1, M2 … (maintenances) and E1, E2 … (events) in the order they came to be.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count

from forewarn.clock import ManualClock
from forewarn.core.document import NEWEST, api_version
from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError, Invalid
from forewarn.core.fleet import Fleet
from forewarn.core.lifecycle import Outcome
from forewarn.core.model import (
    Actor,
    ApprovalMode,
    Event,
    EventType,
    Machine,
    OnFailure,
    OrderState,
    Request,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.transitions import Verb
from forewarn.server import Service
from forewarn.settings import Settings
from forewarn.store import AuditQuery, EventQuery, Focus, Store

START = datetime(2030, 1, 1, tzinfo=UTC)
_GUID = re.compile(r"[0-9A-F]{8}-0000-4000-8000-000000000000")
_STAMP = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z")


@dataclass(frozen=True, slots=True)
class Step:
    """`lead` is everything before the command: comments and empty lines, kept as they are."""

    lead: str
    command: str
    body: tuple[str, ...]
    expected: str


def parse_story(text: str) -> tuple[list[Step], str]:
    """The steps, and what follows the last one."""
    steps: list[Step] = []
    lead: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line or line.startswith("#"):
            lead.append(line)
            continue
        body, expected = list(_until(lines, "----")), list(_until(lines, ""))
        steps.append(
            Step("".join(f"{each}\n" for each in lead), line, tuple(body), "".join(f"{e}\n" for e in expected))
        )
        lead = []
    return steps, "".join(f"{each}\n" for each in lead)


def _until(lines: Iterator[str], end: str) -> Iterator[str]:
    for line in lines:
        if line == end:
            return
        yield line


def play(text: str, store: Store) -> str:
    """Play a story; the same text with what was really seen."""
    steps, rest = parse_story(text)
    player = Player(store)
    told = []
    for step in steps:
        seen = player.play(step.command, step.body)
        body = "".join(f"{line}\n" for line in step.body)
        told.append(f"{step.lead}{step.command}\n{body}----\n{seen}\n")
    return "".join(told) + rest


class Player:
    """The service behind a story: every command is a use case, and the ticker runs to the end after each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = ManualClock(START)
        self._ids = count(1)
        self._names: dict[str, str] = {}
        self._ticking = True
        self._settings: dict[str, object] = {"executor": "external"}
        self._service: Service | None = None
        self._operator = Actor("operator", "story")

    @property
    def service(self) -> Service:
        if self._service is None:
            settings = Settings(store="memory:", **self._settings)  # type: ignore[arg-type]
            self._service = Service(settings, clock=self._clock, store=self._store, new_id=self._new_id, node="here")
            self._service.ticker.recover()
        return self._service

    def play(self, command: str, body: Iterable[str] = ()) -> str:
        """What is seen after the command, a line each."""
        word, *rest = shlex.split(command)
        options = dict(pair.split("=", 1) for pair in rest if "=" in pair)
        arguments = [each for each in rest if "=" not in each]
        action: Callable[..., Iterable[str] | None] | None = getattr(self, f"_do_{word.replace('-', '_')}", None)
        if action is None:
            raise Invalid(f"a story has no command {word!r}")
        try:
            lines = list(action(*arguments, **options, **({"body": tuple(body)} if body else {})) or ())
            if self._ticking and word != "service":
                self.service.ticker.settle()
        except ForewarnError as error:
            lines = [f"error {error.code}: {error}"]
        return "".join(f"{self._readable(line)}\n" for line in lines) or "ok\n"

    # -- the fleet

    def _do_fleet(self, *, body: tuple[str, ...], prune: str = "no") -> Iterable[str]:
        scopes, machines = {}, {}
        for line in body:
            what, name, *rest = line.split()
            options = dict(pair.split("=", 1) for pair in rest if "=" in pair)
            if what == "scope":
                scopes[name] = _scope(name, rest[0], options)
            else:
                scope, _, short = name.partition("/")
                machines[scope, short] = Machine(
                    scope=scope, name=short, update_domain=int(options.get("ud", "0")), host=options.get("host", "")
                )
        diff = self.service.control.apply_fleet(Fleet(scopes, machines), self._operator, prune=prune == "yes")
        return [*diff.lines, *(f"! {warning}" for warning in diff.warnings)]

    def _do_enable(self, *scopes: str) -> None:
        for scope in scopes:
            self.service.control.enable(scope, Actor(f"guest of {scope}"))

    def _do_disable(self, *scopes: str) -> None:
        for scope in scopes:
            self.service.control.disable(scope, Actor("idle watch"))

    def _do_machines(self, scope: str) -> Iterable[str]:
        snapshot = self._store.snapshot(Focus(scopes=(scope,), inventory=True))
        return [
            f"{m} update domain {m.update_domain} on {m.host or 'no host'}" for m in snapshot.machines.values()
        ] or ["no machines"]

    # -- what operators do

    def _do_schedule(self, type_: str, *targets: str, **options: str) -> Iterable[str]:
        flags = {each for each in targets if each in ("user", "emergency")}
        machines = tuple(_key(each) for each in targets if "/" in each)
        hosts = tuple(options["host"].split(",")) if "host" in options else ()
        domain = int(options["ud"]) if "ud" in options else None
        request = Request(
            type=EventType(type_),
            targets=Targets(machines=machines, hosts=hosts, scope=options.get("scope", ""), update_domain=domain),
            source=Source.USER if "user" in flags else Source.PLATFORM,
            emergency="emergency" in flags,
            not_before=_moment(options.get("not_before")),
            earliest=_moment(options.get("earliest")),
            on_failure=OnFailure(options.get("on_failure", "hold")),
            duration_s=int(options.get("duration", "-1")),
            description=options.get("description", ""),
        )
        return self._plan(self.service.control.submit(request, self._operator))

    def _do_restart(self, *machines: str) -> Iterable[str]:
        return self._do_schedule("Reboot", *machines, "user")

    def _do_redeploy(self, *machines: str) -> Iterable[str]:
        return self._do_schedule("Redeploy", *machines, "user")

    def _do_pause(self, name: str) -> None:
        self.service.control.pause_maintenance(self._id(name), self._operator)

    def _do_resume(self, name: str) -> None:
        self.service.control.resume_maintenance(self._id(name), self._operator)

    def _do_cancel(self, name: str) -> None:
        cancel = self.service.control.cancel_maintenance if name.startswith("M") else self.service.control.cancel_event
        cancel(self._id(name), self._operator)

    def _do_retry(self, name: str) -> None:
        self.service.control.settle_event(self._id(name), Verb.RETRY, self._operator)

    def _do_finish(self, name: str) -> None:
        self.service.control.settle_event(self._id(name), Verb.FINISH, self._operator)

    def _do_abandon(self, name: str) -> None:
        self.service.control.settle_event(self._id(name), Verb.ABANDON, self._operator)

    # -- what guests do

    def _do_approve(self, who: str, *names: str) -> None:
        if who == "operator":
            for name in names:
                self.service.control.approve_event(self._id(name), self._operator)
        else:
            scope, machine = _key(who)
            ids = [self._id(name) for name in names]
            self.service.control.approve(scope, machine, ids, Actor(who, "guest"))

    # -- what executors do

    def _do_order(self, verb: str, name: str, reason: str = "", **options: str) -> None:
        control, order_id = self.service.control, self._id(name)
        if verb == "take":
            control.take_order(order_id, Actor("playbook"), node="playbook")
            return
        moved = {_key(machine): host for machine, host in options.items()}
        control.report_order(order_id, Outcome(ok=verb == "finish", reason=reason, new_hosts=moved), Actor("playbook"))

    # -- time and the service

    def _do_advance(self, text: str) -> None:
        self.service.ticker.advance(parse_duration(text))

    def _do_ticker(self, state: str) -> None:
        self._ticking = state == "running"

    def _do_service(self, **options: str) -> None:
        """Restart the service, with other settings if any are given."""
        for key, value in options.items():
            self._settings[key] = int(value) if value.isdecimal() else value
        if "fail" in options:
            machine, _, times = str(self._settings.pop("fail")).partition(":")
            self._settings["simulated_failures"] = {machine: int(times)}
        self._service = None

    # -- what can be seen

    def _do_document(self, scope: str, version: str = NEWEST) -> Iterable[str]:
        return [self.service.control.document(scope, api_version(version)).decode()]

    def _do_scope(self, name: str) -> Iterable[str]:
        scope = self._store.snapshot(Focus(scopes=(name,))).scopes[name]
        return [f"{'enabled' if scope.enabled else 'disabled'}, epoch {scope.epoch}, incarnation {scope.incarnation}"]

    def _do_events(self, *names: str) -> Iterable[str]:
        ids = [self._id(name) for name in names]
        page = self._store.events(EventQuery(limit=500))
        return [self._event(e) for e in reversed(page.events) if not ids or e.id in ids] or ["no events"]

    def _do_maintenance(self, name: str) -> Iterable[str]:
        maintenance, _ = self.service.control.maintenance(self._id(name))
        return [f"{name} {maintenance.status}"]

    def _do_orders(self) -> Iterable[str]:
        orders = self._store.orders(tuple(OrderState), 500)
        lines = [f"{o.id} {o.state}, attempt {o.attempt}" + (f": {o.reason}" if o.reason else "") for o in orders]
        return lines or ["no orders"]

    def _do_why(self, name: str) -> Iterable[str]:
        reasons = self.service.control.why(self._id(name))
        until = [f" until {_since(r.until)}" if r.until else "" for r in reasons]
        return [f"{r.code}{u}: {r.message}" for r, u in zip(reasons, until, strict=True)] or ["nothing"]

    def _do_audit(self, name: str = "") -> Iterable[str]:
        query = AuditQuery(event_id=self._id(name)) if name.startswith("E") else AuditQuery()
        query = AuditQuery(maintenance_id=self._id(name)) if name.startswith("M") else query
        entries = reversed(self._store.audit(query))
        return [f"{_since(e.at)} {e.who}: {e.action}" + (f" ({e.detail})" if e.detail else "") for e in entries]

    # -- names

    def _new_id(self) -> str:
        return f"{next(self._ids):08X}-0000-4000-8000-000000000000"

    def _plan(self, maintenance_id: str) -> Iterable[str]:
        _, events = self.service.control.maintenance(maintenance_id)
        number = sum(name.startswith("M") for name in self._names.values()) + 1
        self._names[maintenance_id] = f"M{number}"
        for event in events:
            self._names[event.id] = f"E{sum(name.startswith('E') for name in self._names.values()) + 1}"
        waves = sorted({e.wave for e in events})
        for wave in waves:
            told = [f"{e.id} {e.scope}#{e.update_domain} {','.join(e.resources)}" for e in events if e.wave == wave]
            yield f"M{number} wave {wave}: {'; '.join(told)}"

    def _id(self, name: str) -> str:
        known = {short: full for full, short in self._names.items()}
        return known.get(name, name)

    def _readable(self, line: str) -> str:
        line = _GUID.sub(lambda found: self._names.get(found[0], found[0]), line)
        return _STAMP.sub(lambda found: _since(datetime.fromisoformat(found[0])), line)

    def _event(self, event: Event) -> str:
        line = f"{event.id} {event.status} {event.scope}#{event.update_domain} {','.join(event.resources)}"
        if event.status is Status.SCHEDULED:
            line += f", not before {_since(event.not_before)}"
        if event.started:
            line += f", started {_since(event.started)}"
        return line + (f", ended {_since(event.ended)}" if event.ended else "")


def _scope(name: str, kind: str, options: dict[str, str]) -> Scope:
    notices = dict(pair.split(":") for pair in options.get("minimum_notice", "").split(",") if pair)
    return Scope(
        name=name,
        kind=ScopeKind(kind),
        approval=ApprovalMode(options.get("approval", "any")),
        approve_user_events=options.get("approve_user_events") == "true",
        max_user_operations=int(options.get("max_user_operations", "0")),
        terminate_notice_s=parse_duration(options.get("terminate_notice", "5m")),
        minimum_notice_s={EventType(key): parse_duration(value) for key, value in notices.items()},
    )


def _key(text: str) -> tuple[str, str]:
    scope, _, name = text.partition("/")
    return scope, name


def _moment(text: str | None) -> datetime | None:
    return None if text is None else START + timedelta(seconds=parse_duration(text.removeprefix("+")))


def _since(moment: datetime | None) -> str:
    if moment is None:
        return "never"
    left = int((moment - START).total_seconds())
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "+" + ("".join(parts) or "0s")
