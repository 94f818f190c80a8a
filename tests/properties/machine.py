"""A Hypothesis state machine over the use cases: requests, reports and passing time, in any order.

After every step the ticker runs to the end. `check_invariants` checks every transaction on the whole fleet, and what guests
see is compared with what they saw before.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forewarn.app.service import Service
from forewarn.core.change import Change, Snapshot
from forewarn.core.document import NEWEST, VERSIONS, render
from forewarn.core.errors import RequestError
from forewarn.core.fleet import Fleet
from forewarn.core.host_waiting import waiting_for_hosts
from forewarn.core.invariants import check_invariants
from forewarn.core.model import (
    OPEN,
    Actor,
    ApprovalMode,
    Event,
    EventType,
    Host,
    HostMode,
    Machine,
    MaintenanceRequest,
    OnFailure,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Source,
    Status,
    Strategy,
    Targets,
)
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.core.transitions import Verb
from forewarn.service.clock import ManualClock
from forewarn.service.placement import FleetHosts
from forewarn.service.settings import Settings
from forewarn.store import EventQuery, Focus, Store
from forewarn.testing.stories import START
from tests.support.services import STILL

SCOPES = ("any", "all", "pool")
HOSTS = ("h-0", "h-1", "h-2", "spare")
OPERATOR = Actor("operator", "property")
# Half of the maintenances have the default strategy.
STRATEGIES = [
    *(7 * [Strategy()]),
    Strategy(group_by="host", max_parallel=3),
    Strategy(group_by="host", canary=1, bake_s=600),
    Strategy(group_by="scope", max_parallel=2, pause_after=1),
    Strategy(group_by="label:rack", canary=2, max_failures="1"),
    Strategy(bake_s=300, pause_after=2),
    Strategy(group_by="host", max_failures="50%", bake_s=30),
    Strategy(pause_after=1),
]
LATER_S = st.sampled_from([0, 1, 30, 299, 300, 600, 899, 900, 901, 1_800, 5_000])


DONE = Outcome(ok=True, reason="as drawn")
ENDS = [DONE, DONE, DONE, Outcome(ok=False, reason="as drawn"), Unknown("as drawn")]


def fleet() -> Fleet:
    """Return three scopes of three update domains; each host carries a machine of each scope, one host several domains."""
    scopes = {
        "any": Scope(name="any", kind=ScopeKind.AVAILABILITY_SET, max_user_operations=3),
        "all": Scope(name="all", kind=ScopeKind.CLOUD_SERVICE, approval=ApprovalMode.ALL),
        "pool": Scope(name="pool", kind=ScopeKind.PLACEMENT_GROUP, approve_user_events=True),
    }
    machines = {}
    for name in SCOPES:
        for domain in range(3):
            labels = {"rack": f"r{domain % 2}"}
            machine = Machine(scope=name, name=f"m-{domain}", update_domain=domain, host=f"h-{domain}", labels=labels)
            machines[machine.key] = machine
        # In `all` each update domain has two machines: one that approves is not enough there.
        for domain in range(3 if name == "all" else 1):
            twin = Machine(scope=name, name=f"m-{domain + 3}", update_domain=domain, host="h-1")
            machines[twin.key] = twin
    return Fleet(scopes, machines)


class CheckedStore:
    """A store that checks every transaction on the whole fleet, not only on the scopes that the decision read."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        # Maintenances of hosts also matter while they have no open event.
        self.of_hosts: tuple[str, ...] = ()

    def everything(self) -> Snapshot:
        return self.inner.snapshot(Focus(scopes=SCOPES, inventory=True, hosts=HOSTS, maintenances=self.of_hosts))

    def apply(self, change: Change) -> None:
        new = [m.id for m in change.maintenances if m.host_mode is not None and m.id not in self.of_hosts]
        self.of_hosts = (*self.of_hosts, *new)
        before = self.everything()
        self.inner.apply(change)
        check_invariants(before, self.everything(), change.at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ServiceMachine(RuleBasedStateMachine):
    """The state machine. A subclass supplies the store."""

    make_store: Callable[[], Store]

    def __init__(self) -> None:
        super().__init__()
        self.store = CheckedStore(type(self).make_store())
        self.clock = ManualClock(START)
        self.count = 0
        settings = Settings(store="memory:", order_timeout_s=3_000)
        self.service = Service(
            settings,
            clock=self.clock,
            store=cast(Store, self.store),
            new_id=self.new_id,
            node="here",
            times=STILL,
        )
        self.control = self.service.control
        self.seen: dict[tuple[str, int, int], bytes] = {}
        self.maintenances: list[str] = []

    def teardown(self) -> None:
        self.store.close()

    def new_id(self) -> str:
        self.count += 1
        return f"{self.count:08X}-0000-4000-8000-000000000000"

    def do(self, action: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Make a request; check that a refused one changes nothing; then let the ticker run to the end."""
        before = self.store.everything()
        try:
            result = action(*arguments, **options)
        except RequestError:
            assert self.store.everything() == before, "a refused request left something behind"
            result = None
        self.service.ticker.cycle_until_idle()
        return result

    def events(self, *statuses: Status) -> list[Event]:
        events = self.store.events(EventQuery(limit=500, statuses=statuses or tuple(Status))).events
        return sorted(events, key=lambda e: e.id)

    def pick(self, data: st.DataObject, *statuses: Status) -> Event:
        return data.draw(st.sampled_from(self.events(*statuses)))

    def some(self, *statuses: Status) -> bool:
        return bool(self.events(*statuses))

    # -- the fleet

    @initialize(enabled=st.sets(st.sampled_from(SCOPES)))
    def state_the_fleet(self, enabled: set[str]) -> None:
        self.control.apply_fleet(fleet(), OPERATOR)
        for scope in sorted(enabled):
            self.control.enable(scope, Actor("guest"))

    @rule(scope=st.sampled_from(SCOPES), on=st.booleans())
    def enable_or_disable(self, scope: str, on: bool) -> None:
        self.do(self.control.enable if on else self.control.disable, scope, Actor("guest"))

    @rule(
        scope=st.sampled_from(SCOPES),
        mode=st.sampled_from(ApprovalMode),
        raised=st.booleans(),
        budget=st.sampled_from(["", "", "1", "2", "50%"]),
    )
    def change_settings(self, scope: str, mode: ApprovalMode, raised: bool, budget: str) -> None:
        notice = {EventType.REBOOT: 1_800} if raised else {}
        known = fleet().scopes[scope]
        wanted = Scope(name=scope, kind=known.kind, approval=mode, minimum_notice_s=notice, max_unavailable=budget)
        self.do(self.control.apply_fleet, Fleet({scope: wanted}, {}), OPERATOR)

    @rule(hosts=st.sampled_from([0, 0, 1, 2]), machines=st.sampled_from([0, 0, 1, 3]))
    def set_the_budget(self, hosts: int, machines: int) -> None:
        self.do(self.control.set_budget, OPERATOR, max_hosts_down=hosts, max_machines_down=machines)

    @rule(scope=st.sampled_from(SCOPES), name=st.sampled_from(["m-0", "m-3"]), domain=st.integers(0, 1))
    def move_or_add_a_machine(self, scope: str, name: str, domain: int) -> None:
        wanted = Machine(scope=scope, name=name, update_domain=domain, host="h-1")
        known = self.store.inventory().scopes[scope]
        self.do(self.control.apply_fleet, Fleet({scope: known}, {wanted.key: wanted}), OPERATOR)

    # -- operators

    @rule(data=st.data(), type_=st.sampled_from(EventType), later_s=LATER_S, on_failure=st.sampled_from(OnFailure))
    def schedule(self, data: st.DataObject, type_: EventType, later_s: int, on_failure: OnFailure) -> None:
        now = self.clock.now()
        start = now + timedelta(seconds=later_s)
        extra: dict[str, Any] = data.draw(
            st.sampled_from(
                [
                    {},
                    {},
                    {"not_before": start},
                    {"earliest": start},
                    {"emergency": True},
                    {"not_after": start + timedelta(seconds=1)},
                ]
            )
        )
        source = data.draw(st.sampled_from([Source.PLATFORM, Source.PLATFORM, Source.USER]))
        strategy = data.draw(st.sampled_from(STRATEGIES))
        try:
            request = MaintenanceRequest(
                type=type_,
                targets=data.draw(targets()),
                source=source,
                on_failure=OnFailure.CONTINUE if strategy.max_failures else on_failure,
                duration_s=9,
                strategy=strategy,
                **extra,
            )
        except RequestError:
            return
        maintenance_id = self.do(self.control.submit, request, OPERATOR)
        if maintenance_id is not None:
            self.maintenances.append(maintenance_id)

    @rule(data=st.data(), type_=st.sampled_from(EventType), hold_s=st.sampled_from([1, 600]))
    def drill(self, data: st.DataObject, type_: EventType, hold_s: int) -> None:
        try:
            request = MaintenanceRequest(type=type_, targets=data.draw(targets()), drill_hold_s=hold_s)
        except RequestError:
            return
        maintenance_id = self.do(self.control.submit, request, OPERATOR)
        if maintenance_id is not None:
            self.maintenances.append(maintenance_id)

    @precondition(lambda self: self.maintenances)
    @rule(
        data=st.data(),
        verb=st.sampled_from(
            [
                "pause_maintenance",
                "resume_maintenance",
                "resume_maintenance",
                "continue_maintenance",
                "continue_maintenance",
                "cancel_maintenance",
                "retry_failed",
            ]
        ),
    )
    def steer_a_maintenance(self, data: st.DataObject, verb: str) -> None:
        maintenance_id = data.draw(st.sampled_from(self.maintenances[-4:]))
        self.do(getattr(self.control, verb), maintenance_id, OPERATOR)

    @precondition(lambda self: self.some())
    @rule(data=st.data())
    def cancel_an_event(self, data: st.DataObject) -> None:
        self.do(self.control.cancel_event, self.pick(data).id, OPERATOR)

    @precondition(lambda self: self.some(Status.PLANNED, Status.SCHEDULED))
    @rule(data=st.data(), later_s=LATER_S)
    def reschedule_an_event(self, data: st.DataObject, later_s: int) -> None:
        event = self.pick(data, Status.PLANNED, Status.SCHEDULED)
        self.do(self.control.reschedule_event, event.id, self.clock.now() + timedelta(seconds=later_s), OPERATOR)

    @precondition(lambda self: self.some(Status.STARTED))
    @rule(data=st.data(), verb=st.sampled_from([Verb.RETRY, Verb.FINISH, Verb.ABANDON]))
    def resolve_a_failure(self, data: st.DataObject, verb: Verb) -> None:
        self.do(self.control.resolve_failure, self.pick(data, Status.STARTED).id, verb, OPERATOR)

    @precondition(lambda self: self.some(Status.SCHEDULED))
    @rule(data=st.data())
    def approve_as_operator(self, data: st.DataObject) -> None:
        self.do(self.control.approve_event, self.pick(data, Status.SCHEDULED).id, OPERATOR)

    # -- guests

    @precondition(lambda self: self.some(Status.SCHEDULED))
    @rule(data=st.data(), everyone=st.booleans())
    def approve_as_guests(self, data: st.DataObject, everyone: bool) -> None:
        event = self.pick(data, Status.SCHEDULED)
        for machine in event.resources if everyone else event.resources[:1]:
            self.do(self.control.approve, event.scope, machine, [event.id], Actor(machine, "guest"))

    @precondition(lambda self: self.some())
    @rule(data=st.data(), scope=st.sampled_from(SCOPES))
    def approve_anything_twice(self, data: st.DataObject, scope: str) -> None:
        ids = [self.pick(data).id, self.pick(data).id]
        for _ in range(2):
            self.do(self.control.approve, scope, "m-0", ids, Actor("m-0", "guest"))

    # -- executors

    @precondition(lambda self: self.some(Status.STARTED))
    @rule(data=st.data(), end=st.sampled_from(ENDS), taken=st.booleans())
    def carry_out_an_order(self, data: st.DataObject, end: Outcome | Unknown, taken: bool) -> None:
        event = self.pick(data, Status.STARTED)
        if taken:
            self.do(self.control.take_order, event.id, Actor("playbook"), node="playbook")
        self.do(self.control.report_order, event.id, end, Actor("playbook"))

    # -- a held store

    @rule(seconds=LATER_S)
    def the_store_is_held_for_a_while(self, seconds: int) -> None:
        """Nothing starts and nothing times out, whatever time passes; then everything goes on."""
        self.do(self.control.hold_store, "", OPERATOR)
        started = {event.id for event in self.events(Status.STARTED)}
        failed = [o.id for o in self.store.orders({OrderState.FAILED}, 500)]
        self.service.ticker.advance(seconds)
        # The event of a drill ends by itself.
        assert {event.id for event in self.events(Status.STARTED)} <= started, "an event started in a held store"
        assert [o.id for o in self.store.orders({OrderState.FAILED}, 500)] == failed, "an order failed in a held store"
        held = self.control.store_hold()
        assert held is not None
        self.do(self.control.resume_store, held.held, OPERATOR)

    # -- time

    @rule(seconds=LATER_S)
    def time_passes(self, seconds: int) -> None:
        self.service.ticker.advance(seconds)

    @rule()
    def the_service_restarts(self) -> None:
        self.service = Service(
            self.service.settings,
            clock=self.clock,
            store=cast(Store, self.store),
            new_id=self.new_id,
            node="here",
            times=STILL,
        )
        self.control = self.service.control
        self.service.ticker.recover()
        self.service.ticker.cycle_until_idle()

    # -- what must hold

    @invariant()
    def nothing_waits_for_the_ticker(self) -> None:
        """No event could move and does not, which a lost wake-up would cause."""
        for event in self.events(*OPEN):
            codes = [reason.code for reason in self.control.why(event.id)]
            assert codes, f"{event.id} is open and waits for nothing"
            assert "ticker" not in codes, f"{event.id} could move, and the ticker does not move it"

    @invariant()
    def one_incarnation_one_content(self) -> None:
        """Within an epoch, one incarnation has one content."""
        everything = self.store.everything()
        for name, scope in everything.scopes.items():
            # The service reads the store again for each document: once is enough, for the newest version.
            events = [event for event in everything.events.values() if event.scope == name]
            rendered = [render(scope, events, version) for version in VERSIONS.values()]
            assert self.control.document(name, VERSIONS[NEWEST]) == rendered[-1]
            document = b"".join(rendered)
            known = self.seen.setdefault((name, scope.epoch, scope.incarnation), document)
            assert known == document, f"{name} epoch {scope.epoch}: incarnation {scope.incarnation} has two contents"

    @invariant()
    def nothing_is_late(self) -> None:
        """After the ticker ran, it waits only for moments in the future."""
        wakeup = self.service.ticker.next_wakeup()
        assert wakeup is None or wakeup > self.clock.now()


class FleetMachine(ServiceMachine):
    """The same, with a fleet that changes as well."""

    @rule(scope=st.sampled_from(SCOPES), kind=st.sampled_from(ScopeKind))
    def change_kind(self, scope: str, kind: ScopeKind) -> None:
        known = self.store.inventory().scopes[scope]
        self.do(self.control.apply_fleet, Fleet({scope: replace(known, kind=kind)}, {}), OPERATOR)

    @rule(scope=st.sampled_from(SCOPES), name=st.sampled_from(["m-0", "m-3"]))
    def remove_a_machine(self, scope: str, name: str) -> None:
        inventory = self.store.inventory()
        left = {key: m for key, m in inventory.machines.items() if key != (scope, name)}
        self.do(self.control.apply_fleet, Fleet(inventory.scopes, left), OPERATOR, prune=True)


class HostMachine(ServiceMachine):
    """The same, with maintenance of hosts: evacuation and in place."""

    @initialize()
    def list_the_hosts(self) -> None:
        hosts = {name: Host(name=name, fault_domain=number, listed=True) for number, name in enumerate(HOSTS)}
        self.control.apply_fleet(Fleet({}, {}, hosts), OPERATOR)

    def host_orders(self) -> list[Order]:
        return sorted(self.store.orders(tuple(OrderState), 500, of_hosts=True), key=lambda o: o.id)

    @rule(
        hosts=st.lists(st.sampled_from(HOSTS), min_size=1, max_size=2, unique=True),
        mode=st.sampled_from(HostMode),
        on_failure=st.sampled_from(OnFailure),
        back=st.booleans(),
        emergency=st.booleans(),
        baked=st.booleans(),
    )
    def work_on_hosts(
        self, hosts: list[str], mode: HostMode, on_failure: OnFailure, back: bool, emergency: bool, baked: bool
    ) -> None:
        evacuates = mode is HostMode.EVACUATE
        strategy = Strategy(bake_s=30, pause_after=1) if baked and not emergency else Strategy()
        request = MaintenanceRequest(
            type=EventType.FREEZE if evacuates else EventType.REBOOT,
            targets=Targets(hosts=tuple(hosts)),
            host_mode=mode,
            return_machines=evacuates and back,
            on_failure=on_failure,
            emergency=emergency,
            strategy=strategy,
        )
        maintenance_id = self.do(self.control.submit, request, OPERATOR)
        if maintenance_id is not None:
            self.maintenances.append(maintenance_id)

    @precondition(lambda self: any(e.host for e in self.events(Status.STARTED)))
    @rule(data=st.data())
    def move_machines(self, data: st.DataObject) -> None:
        """Finish an event of a host: its machines go where forewarn says."""
        event = data.draw(st.sampled_from([e for e in self.events(Status.STARTED) if e.host]))
        rows = self.store.hosts()
        chosen = FleetHosts(cast(Store, self.store)).targets(event)
        moved = {(event.scope, name): hosts[0] for name, hosts in chosen.items() if hosts}
        for host in moved.values():
            assert rows[host].cordoned is None, f"{host} was chosen although it is cordoned"
        self.do(self.control.report_order, event.id, replace(DONE, new_hosts=moved), Actor("playbook"))

    @precondition(lambda self: self.host_orders())
    @rule(data=st.data(), end=st.sampled_from(ENDS), reported=st.booleans())
    def carry_out_work_on_a_host(self, data: st.DataObject, end: Outcome | Unknown, reported: bool) -> None:
        order = data.draw(st.sampled_from(self.host_orders()))
        self.do(self.control.take_order, order.id, Actor("playbook"), node="playbook")
        if reported:
            self.do(self.control.report_order, order.id, end, Actor("playbook"))

    @precondition(lambda self: self.host_orders())
    @rule(data=st.data(), verb=st.sampled_from([Verb.RETRY, Verb.FINISH, Verb.ABANDON]))
    def resolve_work_on_a_host(self, data: st.DataObject, verb: Verb) -> None:
        self.do(self.control.resolve_host, data.draw(st.sampled_from(self.host_orders())).id, verb, OPERATOR)

    @precondition(lambda self: self.host_orders())
    @rule(data=st.data())
    def skip_a_host(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.host_orders()))
        self.do(self.control.skip_host, order.maintenance_id, order.host, OPERATOR)

    @precondition(lambda self: self.host_orders())
    @rule(data=st.data(), later_s=LATER_S)
    def reschedule_a_host(self, data: st.DataObject, later_s: int) -> None:
        order = data.draw(st.sampled_from(self.host_orders()))
        later = self.clock.now() + timedelta(seconds=later_s)
        self.do(self.control.reschedule_host, order.maintenance_id, order.host, later, OPERATOR)

    @rule(host=st.sampled_from(HOSTS), on=st.booleans())
    def cordon_or_uncordon(self, host: str, on: bool) -> None:
        self.do(self.control.cordon_host if on else self.control.uncordon_host, host, OPERATOR)

    @invariant()
    def no_host_waits_for_the_ticker(self) -> None:
        """No host could be worked on and is not, which a lost wake-up would cause."""
        everything = self.store.everything()
        for maintenance_id in {order.maintenance_id for order in self.host_orders()}:
            for host, reasons in waiting_for_hosts(everything, maintenance_id, self.clock.now()).items():
                codes = [reason.code for reason in reasons]
                assert "ticker" not in codes, f"{host} could be worked on, and the ticker does not move it"


@st.composite
def targets(draw: st.DrawFn) -> Targets:
    """Draw targets, mostly machines and hosts, so that maintenances overlap."""
    kind = draw(st.sampled_from(["machine", "machine", "host", "scope", "domain"]))
    scope = draw(st.sampled_from(SCOPES))
    if kind == "machine":
        names = draw(st.lists(st.sampled_from(["m-0", "m-1", "m-2", "m-3"]), min_size=1, max_size=2, unique=True))
        return Targets(machines=tuple((scope, name) for name in names))
    if kind == "host":
        return Targets(hosts=draw(st.sampled_from([("h-0",), ("h-1",), ("h-2",), ("h-0", "h-1", "h-2")])))
    return Targets(scope=scope, update_domain=draw(st.integers(0, 2)) if kind == "domain" else None)
