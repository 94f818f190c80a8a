"""A service under load, to be killed: `python -m tests.integration.crash.worker DATABASE RECORD SEED`.

The ticker, operators, guests and a watcher act at once, on a fast clock. The process records everything that the store
acknowledges and every document that a guest sees. It runs until it is killed; it ends by itself only after a fault.
"""

import logging
import os
import random
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.core.errors import Conflict, RequestError
from forewarn.core.fleet import Fleet
from forewarn.core.model import (
    Actor,
    ApprovalMode,
    Event,
    EventType,
    Machine,
    MaintenanceRequest,
    OnFailure,
    OrderState,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from forewarn.executors.simulated import SimulatedExecutor
from forewarn.service.clock import ScaledClock
from forewarn.service.control import Control
from forewarn.service.ticker import Ticker
from forewarn.store import AuditQuery, Focus
from forewarn.store.sqlite.store import SqliteStore
from tests.integration.crash.history import Recorder, documents

RATE = 20_000.0
MAX_OPEN_EVENTS_PER_SCOPE = 6
PAUSE_S = 0.002
SWITCH_S = 0.0002
WATCH_EVERY_S = 0.015
ORDER_TIMEOUT_S = 3_000
WORK_S = 600
FAULT = 3
BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)
FAILURES = {"any/vm-1": 1, "all/vm-2": 2, "pool/vm-0": 1}

SCOPES = {
    scope.name: scope
    for scope in (
        Scope(name="any", kind=ScopeKind.AVAILABILITY_SET),
        Scope(name="all", kind=ScopeKind.AVAILABILITY_SET, approval=ApprovalMode.ALL),
        Scope(name="operator", kind=ScopeKind.CLOUD_SERVICE, approval=ApprovalMode.OPERATOR),
        Scope(name="pool", kind=ScopeKind.PLACEMENT_GROUP, approve_user_events=True, max_user_operations=4),
        Scope(name="solo", kind=ScopeKind.STANDALONE),
    )
}


def fleet(choose: random.Random) -> Fleet:
    """Return the same scopes and machines at every start, with one machine on another host."""
    moved = choose.randrange(6)
    machines = [
        Machine(scope=name, name=f"vm-{n}", update_domain=n % 3, host=f"h{(n + (n == moved)) % 4}")
        for name in SCOPES
        for n in range(1 if name == "solo" else 6)
    ]
    return Fleet(SCOPES, {machine.key: machine for machine in machines})


Act = Callable[[random.Random, Actor], None]


class Load:
    """Threads that call the service."""

    def __init__(self, store: SqliteStore, control: Control, recorder: Recorder, seed: str) -> None:
        self._store = store
        self._control = control
        self._recorder = recorder
        self._seed = seed

    def start(self) -> None:
        """Start two operators, two guests and a watcher."""
        for name in ("operator-1", "operator-2"):
            self._start(name, self._operate, PAUSE_S)
        for name in ("guest-1", "guest-2"):
            self._start(name, self._answer, PAUSE_S)
        self._start("watcher", self._watch, WATCH_EVERY_S)

    def _start(self, name: str, act: Act, pause_s: float) -> None:
        threading.Thread(target=self._loop, args=(name, act, pause_s), daemon=True, name=name).start()

    def _loop(self, name: str, act: Act, pause_s: float) -> None:
        choose = random.Random(f"{self._seed}/{name}")
        while True:
            try:
                act(choose, Actor(name, f"{self._seed}/{choose.random()}"))
            except (RequestError, Conflict):
                pass  # a correct refusal: another caller was first, or the call does not fit the state
            except BaseException:
                fail(self._recorder, traceback.format_exc())
            time.sleep(choose.uniform(0, 2 * pause_s))

    # -- operators

    def _operate(self, choose: random.Random, actor: Actor) -> None:
        verbs = (self._submit, self._steer, self._resolve, self._report, self._toggle, self._move)
        choose.choices(verbs, weights=(8, 4, 4, 2, 1, 1))[0](choose, actor)

    def _submit(self, choose: random.Random, actor: Actor) -> None:
        if len(self._open(choose)) > MAX_OPEN_EVENTS_PER_SCOPE:
            return
        maintenance_id = self._control.submit(request(choose), actor)
        _, events = self._control.maintenance(maintenance_id)
        self._recorder.plan(maintenance_id, [event.id for event in events])

    def _steer(self, choose: random.Random, actor: Actor) -> None:
        events = self._open(choose)
        if not events:
            return
        event, control = choose.choice(events), self._control
        choose.choices(
            (
                lambda: control.approve_event(event.id, actor),
                lambda: control.pause_maintenance(event.maintenance_id, actor),
                lambda: control.resume_maintenance(event.maintenance_id, actor),
                lambda: control.cancel_event(event.id, actor),
                lambda: control.cancel_maintenance(event.maintenance_id, actor),
            ),
            weights=(6, 2, 5, 1, 1),
        )[0]()

    def _resolve(self, choose: random.Random, actor: Actor) -> None:
        for order in self._store.orders({OrderState.FAILED}, 500):
            if self._control.event(order.id)[0].status is Status.STARTED:
                self._control.resolve_failure(order.id, choose.choice([Verb.RETRY, Verb.FINISH, Verb.ABANDON]), actor)
                return

    def _report(self, choose: random.Random, actor: Actor) -> None:
        """Take an order or report it like a tool of the operator, whatever the executor does."""
        orders = self._store.orders({OrderState.OPEN, OrderState.RUNNING}, 500)
        if orders:
            order = choose.choice(orders)
            if order.state is OrderState.OPEN:
                self._control.take_order(order.id, actor, node=actor.name)
            self._control.report_order(order.id, Outcome(ok=choose.random() < 0.7, reason="by hand"), actor)

    def _toggle(self, choose: random.Random, actor: Actor) -> None:
        act = choose.choices((self._control.enable, self._control.disable), weights=(3, 1))[0]
        act(choose.choice(sorted(SCOPES)), actor)

    def _move(self, choose: random.Random, actor: Actor) -> None:
        self._control.apply_fleet(fleet(choose), actor)

    # -- guests

    def _answer(self, choose: random.Random, actor: Actor) -> None:
        events = [event for event in self._open(choose) if event.status is Status.SCHEDULED]
        if events:
            event = choose.choice(events)
            self._control.approve(event.scope, choose.choice(event.resources), [event.id], actor)
        else:
            self._control.enable(choose.choice(sorted(SCOPES)), actor)

    def _watch(self, choose: random.Random, actor: Actor) -> None:
        del choose, actor
        self._recorder.shown(documents(self._store.snapshot(Focus(scopes=tuple(SCOPES), whole_maintenances=False))))

    def _open(self, choose: random.Random) -> list[Event]:
        """Return the open events of a random scope."""
        focus = Focus(scopes=(choose.choice(sorted(SCOPES)),), whole_maintenances=False)
        return list(self._store.snapshot(focus).events.values())


def request(choose: random.Random) -> MaintenanceRequest:
    """Return a maintenance of a random type with random targets."""
    scope = choose.choice(sorted(SCOPES))
    machines = tuple((scope, f"vm-{n}") for n in choose.sample(range(6), choose.randint(1, 3)))
    if scope == "solo":
        machines = (("solo", "vm-0"),)
    kind = choose.choices(
        ("scope", "hosts", "machines", "user", "emergency", "preempt", "terminate"), (4, 4, 3, 3, 2, 1, 1)
    )
    rolling = choose.choice([EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY])
    on_failure = choose.choice(list(OnFailure))
    match kind[0]:
        case "scope":
            return MaintenanceRequest(type=rolling, targets=Targets(scope=scope), on_failure=on_failure)
        case "hosts":
            hosts = tuple(f"h{n}" for n in choose.sample(range(4), choose.randint(1, 2)))
            return MaintenanceRequest(type=rolling, targets=Targets(hosts=hosts), on_failure=on_failure)
        case "user":
            wanted = choose.choice([EventType.REBOOT, EventType.REDEPLOY])
            return MaintenanceRequest(type=wanted, targets=Targets(machines=machines), source=Source.USER)
        case "emergency":
            return MaintenanceRequest(type=rolling, targets=Targets(machines=machines), emergency=True)
        case "preempt":
            return MaintenanceRequest(type=EventType.PREEMPT, targets=Targets(machines=machines))
        case "terminate":
            return MaintenanceRequest(
                type=EventType.TERMINATE, targets=Targets(machines=(("pool", f"vm-{choose.randrange(6)}"),))
            )
    return MaintenanceRequest(
        type=rolling, targets=Targets(machines=machines), on_failure=on_failure, description="Größe Ω"
    )


class FaultHandler(logging.Handler):
    """Treats every logged error as a fault, because the ticker logs unexpected ones; a failed order is expected."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.ERROR)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        if "event" not in getattr(record, "fields", {}):
            fail(self._recorder, self.format(record))


def fail(recorder: Recorder, text: str) -> None:
    recorder.fault(text)
    print(text, file=sys.stderr, flush=True)
    os._exit(FAULT)


def last_moment(store: SqliteStore) -> datetime:
    """Return the time at which the service clock continues: the last entry in the audit log."""
    entries = store.audit(AuditQuery(limit=1))
    return entries[0].at if entries else BEGINNING


def main(database: Path, record: Path, seed: str) -> None:
    sys.setswitchinterval(SWITCH_S)
    choose = random.Random(seed)
    recorder = Recorder(record)
    logging.getLogger().addHandler(FaultHandler(recorder))
    store = SqliteStore(database)
    store.claim()
    # After a restart a scaled clock starts at the machine's time, so it may be behind the clock of the last run.
    behind = timedelta(seconds=choose.choice([0, 0, 0, 1_000, 100_000]))
    clock = ScaledClock(last_moment(store) - behind, RATE)
    control = Control(store, clock, new_id=lambda: str(uuid.uuid4()).upper(), order_timeout_s=ORDER_TIMEOUT_S)
    control.listen(recorder.saved)
    executor = SimulatedExecutor(work_s=WORK_S, freeze_work_s=WORK_S // 2, failures=FAILURES)
    ticker = Ticker(control, store, clock, executor, node=f"node-{os.getpid()}", retain_history_s=0)
    control.apply_fleet(fleet(choose), Actor("fleet file", seed))
    Load(store, control, recorder, seed).start()
    print("ready", flush=True)
    ticker.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
