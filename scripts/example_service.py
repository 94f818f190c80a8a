"""An example service with a small fleet in the middle of a working day, always the same, for pictures and for tests of pages."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.app.server import running
from forewarn.app.service import Service
from forewarn.core.change import Change
from forewarn.core.fleet import parse_fleet
from forewarn.core.fleet_rules import NoGoTime, Window
from forewarn.core.hooks import USUAL_KINDS
from forewarn.core.model import Actor, EventType, HostMode, Machine, MaintenanceRequest, OrderState, Source, Targets
from forewarn.core.operator_model import Hook, HookDelivery, Role, Token
from forewarn.core.order_verbs import Outcome
from forewarn.operator.api.access import digest
from forewarn.service.clock import ManualClock
from forewarn.service.private_files import write_private
from forewarn.service.settings import load
from forewarn.store import EventQuery, MachineLastSeen

START = datetime(2030, 5, 14, 8, 0, tzinfo=UTC)
TOKEN = "fw_a-token-of-an-example-and-no-secret"
OWNER_TOKEN = f"{TOKEN}-carol"
OPERATOR = Actor("alice", "127.0.0.1")
FAILURE = Outcome(
    False,
    reason="flash-controllers ended with 3",
    output="""pg-1: controller 0: firmware 4.12.1, image 4.13.0
pg-1: controller 0: written, verified
pg-1: controller 1: firmware 4.12.1, image 4.13.0
pg-1: controller 1: verify failed at 0x0003f000: the old image is kept
pg-3: not touched
""",
)
SPARE_HOST = "rack4-x"
SCOPES = {
    "shop": ("availability-set", "any", 3, ("web-{}", 6)),
    "db": ("availability-set", "all", 2, ("pg-{}", 4)),
    "workers": ("placement-group", "any", 4, ("job-{}", 8)),
    "legacy": ("standalone", "any", 1, ("old-{}", 1)),
}


@dataclass(frozen=True)
class ExampleService:
    """A running example. `ids` are the maintenances and events that pages show, by a name."""

    service: Service
    url: str
    token: str
    ids: dict[str, str]


def fleet_text() -> str:
    lines, address = [], itertools.count(10)
    for name, (kind, approval, domains, (pattern, count)) in SCOPES.items():
        lines += ["[[scopes]]", f'name = "{name}"', f'kind = "{kind}"', f'approval = "{approval}"']
        for number in range(count):
            lines += ["[[machines]]", f'scope = "{name}"', f'name = "{pattern.format(number)}"']
            lines += [f"update_domain = {number % domains}", f'host = "rack{number % 3 + 1}-{name[0]}"']
            lines += [f'addresses = ["127.0.0.{next(address)}"]']
    lines += ["[[hosts]]", f'name = "{SPARE_HOST}"', 'labels = { rack = "4" }']
    return "\n".join(lines)


@contextmanager
def running_example(
    *, demo: bool = False, guest: str = "127.0.0.1:0", operator: str = "127.0.0.1:0", executor: str = "simulated"
) -> Iterator[ExampleService]:
    """Run the example. With `demo` no login is needed and the first page has the guide."""
    with tempfile.TemporaryDirectory() as folder:
        flags: dict[str, object] = {
            "store": f"sqlite:{folder}/forewarn.db",
            "state_dir": folder,
            "guest": guest,
            "operator": operator,
            "executor": executor,
            "token_free": "true" if demo else "false",
            "demo": "true" if demo else "false",
        }
        numbers = itertools.count(1)
        service = Service(
            load(flags, {}),
            clock=ManualClock(START),
            new_id=lambda: f"{next(numbers) * 2654435761 % 2**32:08X}-0000-4000-8000-000000000000",
            node="rack1-a:4711",
        )
        try:
            service.control.apply_fleet(parse_fleet(fleet_text(), "the example"), OPERATOR)
            ids = _fill(service)
            # Without this file the service creates a token, whose id would be another in each run.
            write_private(Path(folder) / "operator.token", TOKEN)
            with running(service) as (_, url):
                yield ExampleService(service, url, "" if demo else TOKEN, ids)
        finally:
            service.close()


def _fill(service: Service) -> dict[str, str]:
    """Create a morning: a rolling reboot that is done, one that runs, a failure, user events, a paused and a cancelled one."""
    control, clock = service.control, service.clock

    def submit(type_: EventType, targets: Targets, actor: Actor = OPERATOR, **more: object) -> str:
        return control.submit(MaintenanceRequest(type=type_, targets=targets, **more), actor)  # type: ignore[arg-type]

    def advance(minutes: float) -> None:
        service.ticker.advance(minutes * 60)

    def approve(scope: str, machine: str) -> None:
        page = service.store.events(EventQuery(scope=scope, statuses=("Scheduled",)))  # type: ignore[arg-type]
        ids = [event.id for event in page.events if machine in event.resources]
        control.approve(scope, machine, ids, Actor(f"{scope}/{machine}", "127.0.0.9"))

    for scope in ("shop", "db", "workers"):
        control.enable(scope, Actor("guest"))
    done = submit(EventType.REBOOT, Targets(scope="shop"), description="Kernel update")
    for machine in ("web-0", "web-1", "web-2"):
        advance(4)
        approve("shop", machine)
        advance(11)
    submit(EventType.REDEPLOY, Targets(machines=(("legacy", "old-0"),)), Actor("bob"), source=Source.USER)
    advance(12)
    failing = submit(EventType.REBOOT, Targets(scope="db"), description="Firmware of the storage controllers")
    advance(1)
    approve("db", "pg-0")
    approve("db", "pg-2")
    advance(11)
    approve("db", "pg-1")
    approve("db", "pg-3")
    advance(4)
    control.report_order(_event(service, failing, "Started"), FAILURE, Actor("rack1-d"))
    advance(8)
    submit(EventType.FREEZE, Targets(scope="workers", update_domain=0), description="Live migration", duration_s=5)
    advance(4)
    approve("workers", "job-4")
    advance(2)
    rolling = submit(EventType.REBOOT, Targets(scope="shop"), description="Kernel update, second try")
    submit(EventType.REDEPLOY, Targets(machines=(("workers", "job-1"),)), Actor("carol"), source=Source.USER)
    paused = submit(EventType.FREEZE, Targets(hosts=("rack3-w",)), description="Network cards of rack 3")
    control.pause_maintenance(paused, OPERATOR)
    cancelled = submit(EventType.REBOOT, Targets(scope="workers", update_domain=3))
    advance(3)
    control.cancel_maintenance(cancelled, OPERATOR)
    approve("shop", "web-0")
    advance(1)
    tonight = clock.now() + timedelta(hours=12)
    spare = Targets(hosts=(SPARE_HOST,))
    submit(EventType.FREEZE, spare, description="New disks", host_mode=HostMode.EVACUATE, not_before=tonight)
    control.put_window(Window(name="nights", spans=("Mon-Fri 22:00-05:00",), zone="Europe/Berlin"), OPERATOR)
    fair = NoGoTime(
        name="fair", reason="the trade fair", start=tonight, end=tonight + timedelta(hours=30), scopes=("shop",)
    )
    control.put_no_go_time(fair, OPERATOR)
    _add_tokens(service)
    hook = _add_hooks(service)
    seen = [
        MachineLastSeen(m.scope, m.name, clock.now() - timedelta(seconds=n * 3))
        for n, m in enumerate(_polling_machines(service))
    ]
    service.store.record_last_seen(seen)
    return {
        "done": done,
        "failing": failing,
        "rolling": rolling,
        "failed event": _event(service, failing, "Started"),
        "started event": _event(service, rolling, "Started"),
        "waiting event": service.store.events(EventQuery(scope="workers", statuses=("Scheduled",))).events[0].id,  # type: ignore[arg-type]
        "ended event": _event(service, done, "Completed"),
        "hook": hook,
        "host order": service.store.orders({OrderState.PLANNED}, 1, of_hosts=True)[0].id,
    }


def _add_tokens(service: Service) -> None:
    for number, (name, role, scopes) in enumerate(
        (
            ("alice", Role.OPERATOR, ()),
            ("bob", Role.OWNER, ("legacy", "shop")),
            ("the wall screen", Role.VIEWER, ()),
            ("carol", Role.OWNER, ("workers",)),
        )
    ):
        token = Token(
            id=f"{number:08X}-0000-4000-8000-00000000000A",
            name=name,
            role=role,
            scopes=scopes,
            digest=digest(TOKEN if name == "alice" else f"{TOKEN}-{name}"),
            created=service.clock.now() - timedelta(days=number + 1),
            created_by="alice",
        )
        service.control.add_token(token, OPERATOR)


def _add_hooks(service: Service) -> str:
    """Add a hook that works and one that was disabled; neither has anything to send. Return the id of the second."""
    now, head = service.clock.now(), service.store.audit_chain().head.id
    ids = [f"{number:08X}-0000-4000-8000-00000000000B" for number in (0xC0FFEE, 0xBEEF)]
    works = Hook(
        id=ids[0],
        url="https://hooks.example.com/forewarn",
        kinds=("resumed",),
        secrets=("whsec_ZXhhbXBsZQ==",),
        created=now - timedelta(days=9),
        created_by="alice",
        cursor=head,
        delivered=now - timedelta(minutes=7),
    )
    error = "the receiver answered 503: the build server is being moved"
    fails = replace(
        works,
        id=ids[1],
        url="https://ci.example.com/hooks/shop",
        scope="shop",
        kinds=USUAL_KINDS,
        created=now - timedelta(days=5),
        created_by="bob",
        cursor=head - 12,
        delivered=now - timedelta(days=3, minutes=20),
        failing_since=now - timedelta(days=3),
        failures=868,
        error=error,
        disabled=now - timedelta(minutes=2),
    )
    service.store.apply(Change(at=now, hooks=(works, fails)))
    attempts = [(head - 11, "started", 868, error), (head - 14, "published", 1, ""), (head - 16, "completed", 1, "")]
    deliveries = [
        HookDelivery(
            hook_id=fails.id,
            audit_id=entry,
            kind=f"forewarn.event.{kind}",
            at=now - timedelta(minutes=2) if failure else now - timedelta(days=3, minutes=20),
            attempts=count,
            delivered=not failure,
            status=503 if failure else 204,
            took_ms=41,
            error=failure,
        )
        for entry, kind, count, failure in attempts
    ]
    service.store.save_hooks([replace(fails, version=1)], deliveries)
    return fails.id


def _polling_machines(service: Service) -> list[Machine]:
    return [m for key, m in sorted(service.store.inventory().machines.items()) if key[0] != "legacy"]


def _event(service: Service, maintenance_id: str, status: str) -> str:
    page = service.store.events(EventQuery(maintenance_id=maintenance_id, statuses=(status,)))  # type: ignore[arg-type]
    return page.events[0].id
