"""Guests that poll, approve and fall asleep, and operators that submit, steer and resolve failures, through any node."""

import random
from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec

from forewarn.core.errors import RequestError
from forewarn.core.model import (
    Actor,
    EventType,
    HostMode,
    MaintenanceRequest,
    MaintenanceStatus,
    OnFailure,
    Order,
    OrderState,
    Source,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.needs_operator import needs_operator
from forewarn.core.transitions import Verb
from forewarn.endpoint.protocol import Request as HttpRequest
from forewarn.service.decisions import HOLDS, Once, RepeatedRequest
from forewarn.service.placement import with_target_hosts
from forewarn.store import EventQuery, Focus, MaintenanceQuery
from tests.sim.history import Approved, Shown, Submitted, Unanswered
from tests.sim.node import DISABLE_AFTER_S, Connection, Node, Shared
from tests.sim.window_checks import has_windows

URL = "/metadata/scheduledevents?api-version=2020-07-01"
WRONG_ID = "FFFFFFFF-0000-4000-8000-000000000000"
OPERATOR = Actor("operator", "simulation")
MAX_OPEN_MAINTENANCES = 4
HOSTS = ("h0", "h1", "h2")
UNRESOLVED = frozenset({OrderState.FAILED, OrderState.IN_DOUBT})
NOT_TAKEN = (OrderState.PLANNED, OrderState.OPEN)
ENDED = (OrderState.DONE, OrderState.CANCELLED, OrderState.ABANDONED)
RUNNING = (MaintenanceStatus.PLANNED, MaintenanceStatus.RUNNING, MaintenanceStatus.PAUSED)
# Half of the maintenances have the default strategy.
STRATEGIES = (
    *(6 * [Strategy()]),
    Strategy(group_by="host", max_parallel=2),
    Strategy(group_by="host", canary=1, bake_s=120),
    Strategy(bake_s=300),
    Strategy(bake_s=120, pause_after=1),
    Strategy(pause_after=1),
    Strategy(max_failures="1"),
)
ROLLING = (EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY)


class Guest:
    """A machine: polls, keeps the tag, and approves events after it has prepared for them."""

    def __init__(self, shared: Shared, scope: str, machine: str) -> None:
        choose = shared.universe.choose
        self._shared = shared
        self._universe = shared.universe
        self.scope, self.machine = scope, machine
        self.tag = ""
        self.asleep = True  # until its first poll
        self.gone = self._polling = False
        self._sends_tag = choose.random() < 0.8
        self._every_s = choose.choice([60, 150, 300])
        self._approves = choose.choice([0.0, 0.5, 1.0])
        self._sleepy = choose.random() < 0.15
        self._home = choose.choice(shared.nodes) if choose.random() < 0.5 else None
        self._considered: set[str] = set()
        # Some poll early; others poll first when much has happened in their scope.
        self._universe.later(self._universe.about_ms(choose.choice([1, 1, 10]) * self._every_s), self.turn)

    def turn(self) -> None:
        if self._sleepy and self._universe.choose.random() < 0.02:
            self._universe.log(f"{self.scope}/{self.machine} falls asleep")
            self.asleep = True
            self._universe.later(DISABLE_AFTER_S * 1_200, self.turn)
            return
        self.asleep = False
        answered = not self._polling and self.poll(self._node())
        if self.gone:
            return
        self._universe.later(self._universe.about_ms(self._every_s if answered else 10), self.turn)

    def _node(self) -> Node:
        choose = self._universe.choose
        return self._home if self._home is not None and choose.random() < 0.8 else choose.choice(self._shared.nodes)

    def hurry(self, node: Node) -> None:
        if not self._polling and not self.gone:
            self.poll(node)

    def poll(self, node: Node) -> bool:
        """Poll; return whether a document came. A guest makes one request at a time."""
        self._polling = True
        try:
            return self._poll(node)
        finally:
            self._polling = False

    def _poll(self, node: Node) -> bool:
        headers = [("host", "localhost"), ("metadata", "true")]
        tag = self.tag if self._sends_tag else ""
        if tag:
            headers.append(("if-none-match", tag))
        life = node.name
        answer = node.answer(self.scope, self.machine, HttpRequest("GET", URL, headers))
        if answer is not None and answer.status == 404:
            self.gone = True  # terminated
            return False
        if answer is None or answer.status not in (200, 304):
            self._shared.record(Unanswered(self._universe.now_ms, self.scope, self.machine))
            return False
        self._shared.record(Shown(self._universe.now_ms, life, self.scope, self.machine, tag, answer.etag, answer.body))
        if answer.etag != self.tag:
            self._universe.log(f"{life} shows {self.scope}/{self.machine} {answer.etag}")
        self.tag = answer.etag
        if answer.body:
            self._consider(answer)
        return True

    def _consider(self, answer: Connection) -> None:
        """Prepare for each new event of this machine, then approve it, by chance."""
        for event in msgspec.json.decode(answer.body)["Events"]:
            event_id = event["EventId"]
            if self.machine not in event["Resources"] or event_id in self._considered:
                continue
            self._considered.add(event_id)
            if self._universe.choose.random() < self._approves:
                ids = self._universe.choose.choice([[event_id]] * 6 + [[event_id, event_id], [event_id, WRONG_ID]])
                self._universe.later(self._universe.about_ms(200), lambda ids=ids: self.approve(ids))  # type: ignore[misc]

    def approve(self, ids: list[str]) -> None:
        """Approve until a node answers; by chance, approve once more after that."""
        node, choose = self._node(), self._universe.choose
        body = msgspec.json.encode({"StartRequests": [{"EventId": event_id} for event_id in ids]})
        headers = [("host", "localhost"), ("metadata", "true")]
        life = node.name
        answer = node.answer(self.scope, self.machine, HttpRequest("POST", URL, headers, body))
        status = answer.status if answer is not None else 0
        self._universe.log(f"{self.scope}/{self.machine} approves through {life}: {status}")
        self._shared.record(
            Approved(self._universe.now_ms, life, self.scope, self.machine, tuple(dict.fromkeys(ids)), status)
        )
        if status in (0, 503) or choose.random() < 0.2:
            self._universe.later(self._universe.about_ms(5), lambda: self.approve(ids))


class Operator:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._universe = shared.universe
        self._keys = 0
        # A source of its own, so that strategies leave everything else that a seed draws as it is.
        self._strategies = random.Random(shared.universe.seed)

    def turn(self) -> None:
        choose = self._universe.choose
        acts = (self._schedule, self._steer, self._resolve_failures)
        choose.choices(acts, weights=(5, 3, 2))[0](choose.choice(self._shared.nodes))
        if self._clock_held() and choose.random() < 0.2:
            self.confirm_clock(choose.choice(self._shared.nodes))
        if self._strategies.random() < 0.3:
            self._continue_all(self._strategies.choice(self._shared.nodes))
        if has_windows(self._universe.seed):
            self._reschedule_a_host(choose.choice(self._shared.nodes))

    def _continue_all(self, node: Node) -> None:
        """Let all maintenances continue that pause after a wave; those that do not are refused."""
        for maintenance in self._shared.database.memory.maintenances(MaintenanceQuery(statuses=RUNNING)):
            if node.alive and maintenance.continued_after < maintenance.strategy.pause_after:
                node.request(lambda: node.control.continue_maintenance(maintenance.id, OPERATOR))  # noqa: B023

    # -- the clock

    def _clock_held(self) -> bool:
        return self._shared.database.memory.snapshot(HOLDS).hold is not None

    def confirm_clock(self, node: Node) -> None:
        if node.alive and self._clock_held():
            self._universe.log(f"an operator confirms the clock through {node.name}")
            node.request(lambda: node.control.confirm_clock(OPERATOR))

    # -- schedule

    def _schedule(self, node: Node) -> None:
        open_ones = self._shared.database.memory.maintenances(MaintenanceQuery(statuses=RUNNING))
        if len(open_ones) < MAX_OPEN_MAINTENANCES and self._shared.database.memory.inventory().machines:
            if self._shared.database.memory.fleet_rules().max_machines_down and self._universe.chance(0.6):
                # Another operator wants a part of the same budget at about the same time.
                other = self._universe.choose.choice(self._shared.nodes)
                self._universe.later(self._universe.choose.randrange(1_000), lambda: self._submit_new(other))
            self._submit_new(node)

    def _submit_new(self, node: Node) -> None:
        self._keys += 1
        self._submit(node, self._request(), f"key-{self._keys}")

    def _submit(self, node: Node, request: MaintenanceRequest, key: str) -> None:
        """Submit with one idempotency key through any node until one answers: it must become one maintenance."""
        once = Once("operator", key, key)

        def submit() -> str:
            try:
                return node.control.submit_once(request, OPERATOR, once).maintenance_id
            except RepeatedRequest as before:
                return before.receipt.body

        answer = node.request(submit)
        if isinstance(answer, str):
            self._universe.log(f"{node.name} scheduled {key}: {request.type} as {answer[:8].lstrip('0')}")
            self._shared.record(Submitted(self._universe.now_ms, key, answer))
        elif not isinstance(answer, RequestError):
            again = self._universe.choose.choice(self._shared.nodes)
            self._universe.later(self._universe.about_ms(10), lambda: self._submit(again, request, key))

    def _request(self) -> MaintenanceRequest:
        choose = self._universe.choose
        machines = sorted(self._shared.database.memory.inventory().machines)
        some = Targets(machines=tuple(choose.sample(machines, min(len(machines), choose.randint(1, 2)))))
        rolling = choose.choice(ROLLING)
        start = self._universe.wall() + timedelta(seconds=choose.choice([0, 300, 1_500]))
        kind = choose.choices(
            ("scope", "host", "machines", "user", "emergency", "preempt", "terminate", "drill", "work on hosts"),
            (6, 3, 2, 3, 1, 1, 1, 2, self._universe.faults.host_work),
        )
        on_failure = choose.choice(list(OnFailure))
        match kind[0]:
            case "scope":
                scope = choose.choice(sorted({scope for scope, _ in machines}))
                earliest = start if choose.random() < 0.3 else None
                not_after = start + timedelta(seconds=choose.choice([600, 2_000])) if choose.random() < 0.3 else None
                strategy = self._strategies.choice(STRATEGIES)
                return MaintenanceRequest(
                    type=rolling,
                    targets=Targets(scope=scope),
                    earliest=earliest,
                    not_after=not_after,
                    on_failure=OnFailure.CONTINUE if strategy.max_failures else on_failure,
                    strategy=strategy,
                )
            case "host":
                hosts, strategy = (choose.choice(HOSTS[:2]),), self._strategies.choice(STRATEGIES)
                return MaintenanceRequest(
                    type=rolling,
                    targets=Targets(hosts=HOSTS[:2] if strategy.group_by == "host" else hosts),
                    on_failure=OnFailure.CONTINUE if strategy.max_failures else on_failure,
                    strategy=strategy,
                )
            case "drill":
                return MaintenanceRequest(type=rolling, targets=some, drill_hold_s=choose.choice([60, 1_200]))
            case "work on hosts":
                return self._work_on_hosts(start, on_failure)
            case "user":
                return MaintenanceRequest(type=choose.choice(ROLLING[1:]), targets=some, source=Source.USER)
            case "emergency":
                return MaintenanceRequest(type=rolling, targets=some, emergency=True)
            case "preempt":
                return MaintenanceRequest(type=EventType.PREEMPT, targets=some)
            case "terminate":
                pool = [key for key in machines if key[0] == "pool"] or machines
                return MaintenanceRequest(type=EventType.TERMINATE, targets=Targets(machines=(choose.choice(pool),)))
        not_before = start if choose.random() < 0.3 else None
        return MaintenanceRequest(type=rolling, targets=some, not_before=not_before, on_failure=on_failure)

    def _work_on_hosts(self, start: datetime, on_failure: OnFailure) -> MaintenanceRequest:
        choose = self._universe.choose
        evacuates, emergency = choose.random() < 0.6, choose.random() < 0.5
        return MaintenanceRequest(
            type=choose.choice([EventType.FREEZE, EventType.REDEPLOY]) if evacuates else EventType.REBOOT,
            targets=Targets(hosts=tuple(choose.sample(HOSTS, choose.choice([1, 1, 2])))),
            not_before=None if emergency else start,
            host_mode=HostMode.EVACUATE if evacuates else HostMode.IN_PLACE,
            return_machines=evacuates and choose.random() < 0.3,
            emergency=emergency,
            on_failure=on_failure,
        )

    # -- steer

    def _steer(self, node: Node) -> None:
        choose, store = self._universe.choose, self._shared.database.memory
        orders = self._host_orders(NOT_TAKEN)
        if orders and node.alive and choose.random() < 0.5:
            self._steer_hosts(node, choose.choice(orders))
            return
        events = store.events(EventQuery(statuses=(Status.PLANNED, Status.SCHEDULED, Status.STARTED), limit=500)).events
        if not events or not node.alive:
            return
        event, control = choose.choice(events), node.control
        if choose.random() < 0.2:  # an operator acts on an outdated page
            old = choose.choice(store.events(EventQuery(limit=500)).events)
            node.request(lambda: control.cancel_event(old.id, OPERATOR))
            return
        later = self._universe.wall() + timedelta(seconds=choose.choice([60, 1_200, 2_400]))
        verb, act = choose.choices(
            (
                ("approves", lambda: control.approve_event(event.id, OPERATOR)),
                ("pauses", lambda: control.pause_maintenance(event.maintenance_id, OPERATOR)),
                ("resumes", lambda: control.resume_maintenance(event.maintenance_id, OPERATOR)),
                ("cancels", lambda: control.cancel_event(event.id, OPERATOR)),
                ("reschedules", lambda: control.reschedule_event(event.id, later, OPERATOR)),
                ("cancels all of", lambda: control.cancel_maintenance(event.maintenance_id, OPERATOR)),
            ),
            weights=(4, 4, 4, 1, 2, 1),
        )[0]
        self._universe.log(f"an operator {verb} {event.id[:8].lstrip('0')} through {node.name}")
        node.request(act)

    def _host_orders(self, states: Collection[OrderState]) -> list[Order]:
        return self._shared.database.memory.orders(states, 500, of_hosts=True)

    def _steer_hosts(self, node: Node, order: Order) -> None:
        """Skip, cordon or uncordon a host, or cancel its maintenance. A tool with an outdated list then takes its order."""
        choose, control = self._universe.choose, node.control
        verb, act = choose.choice(
            (
                ("skips", lambda: control.skip_host(order.maintenance_id, order.host, OPERATOR)),
                ("cancels the work on", lambda: control.cancel_maintenance(order.maintenance_id, OPERATOR)),
                ("cordons", lambda: control.cordon_host(order.host, OPERATOR)),
                ("uncordons", lambda: control.uncordon_host(order.host, OPERATOR)),
            )
        )
        self._universe.log(f"an operator {verb} {order.host} through {node.name}")
        node.request(act)
        if node.alive and order.id in {each.id for each in self._host_orders(ENDED)}:
            node.request(lambda: node.control.take_order(order.id, OPERATOR, node="tool"))

    def _reschedule_a_host(self, node: Node) -> None:
        """Move a host that waits for its turn, if there is one."""
        orders = self._host_orders([OrderState.PLANNED])
        if orders and node.alive:
            order = self._universe.choose.choice(orders)
            later = self._universe.wall() + timedelta(seconds=self._universe.choose.choice([60, 600, 1_200]))
            self._universe.log(f"an operator reschedules {order.host} through {node.name}")
            node.request(lambda: node.control.reschedule_host(order.maintenance_id, order.host, later, OPERATOR))

    # -- resolve failures

    def _resolve_failures(self, node: Node) -> None:
        choose = self._universe.choose
        for order in self._shared.database.memory.orders(UNRESOLVED, 500):
            if self._started(order.id):
                verb = choose.choice([Verb.RETRY, Verb.RETRY, Verb.FINISH, Verb.ABANDON])
                node.request(lambda: node.control.resolve_failure(order.id, verb, OPERATOR))  # noqa: B023 - called at once
                return
        for order in self._host_orders(UNRESOLVED):
            verb = choose.choice([Verb.RETRY, Verb.RETRY, Verb.FINISH, Verb.ABANDON])
            node.request(lambda: node.control.resolve_host(order.id, verb, OPERATOR))  # noqa: B023 - called at once
            return

    def _started(self, event_id: str) -> bool:
        events = self._shared.database.memory.events(EventQuery(statuses=(Status.STARTED,), limit=500)).events
        return any(event.id == event_id for event in events)

    def finish_all(self, node: Node) -> None:
        """At the end of the run, resume what is paused, finish what failed or is in doubt, uncordon hosts, skip stuck ones."""
        self.confirm_clock(node)
        self._continue_all(node)
        for maintenance in self._shared.database.memory.maintenances(MaintenanceQuery(statuses=RUNNING)):
            if maintenance.paused:
                node.request(lambda: node.control.resume_maintenance(maintenance.id, OPERATOR))  # noqa: B023
        for order in self._shared.database.memory.orders(UNRESOLVED, 500):
            if self._started(order.id):
                node.request(lambda: node.control.resolve_failure(order.id, Verb.FINISH, OPERATOR))  # noqa: B023
        for order in self._host_orders(UNRESOLVED):
            node.request(lambda: node.control.resolve_host(order.id, Verb.FINISH, OPERATOR))  # noqa: B023
        for host in self._shared.database.memory.hosts().values():
            if host.cordoned is not None:
                node.request(lambda: node.control.uncordon_host(host.name, OPERATOR))  # noqa: B023
        for order in self._host_orders(NOT_TAKEN):
            if self._is_stuck(order) or self._is_stranded(order):
                node.request(lambda: node.control.skip_host(order.maintenance_id, order.host, OPERATOR))  # noqa: B023

    def _is_stranded(self, order: Order) -> bool:
        """Whether the machines can go to no host, because each of several maintenances has cordoned where another must go."""
        store = self._shared.database.memory
        focus = Focus(maintenances=(order.maintenance_id,), hosts=(order.host,))
        snapshot = with_target_hosts(store, store.snapshot(focus))
        reasons = needs_operator(snapshot, order.maintenance_id, self._universe.wall())
        return any(reason.code == "no-target" for reason in reasons)

    def _is_stuck(self, order: Order) -> bool:
        """Whether the machines of the host have left it, and another machine is on it."""
        store = self._shared.database.memory
        events = store.events(EventQuery(maintenance_id=order.maintenance_id, limit=500)).events
        left = [event.ended for event in events if event.host == order.host]
        occupied = any(machine.host == order.host for machine in store.inventory().machines.values())
        return occupied and bool(left) and None not in left
