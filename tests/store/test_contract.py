"""What every store promises about writing: what is saved comes back, whole or not at all, and versions guard it."""

from dataclasses import replace
from itertools import count, cycle, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.core.change import Change, UnreadEvents
from forewarn.core.errors import Conflict, ForewarnError, InvariantBroken
from forewarn.core.fleet_rules import FleetRules, FleetUse, NoGoTime, Window
from forewarn.core.model import (
    ApprovalMode,
    ClockHold,
    Event,
    EventType,
    HoldCause,
    Host,
    HostMode,
    MaintenanceStatus,
    OnFailure,
    OrderState,
    Phase,
    ScopeKind,
    Source,
    Status,
    StoreHold,
    Strategy,
    Targets,
)
from forewarn.core.operator_model import MAX_SESSIONS_PER_TOKEN, HookShape, Role
from forewarn.store import MAX_DELIVERIES, AuditQuery, EventQuery, Focus, OrderQuery, Store
from forewarn.store.memory import MemoryStore
from tests.support.records import (
    ENDED_MAINTENANCE,
    UNICODE,
    anything,
    approval,
    at,
    change,
    delivery,
    ended,
    entry,
    event,
    hook,
    host_order,
    machine,
    maintenance,
    one_maintenance,
    order,
    receipt,
    saved_event,
    saved_maintenance,
    saved_scope,
    scope,
    session,
    token,
)

KEYS = count()
# One store for all examples, each under names of its own; a busy machine is no fault.
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
EVERYTHING = Focus(
    scopes=("shop", "blog"), machines=(("shop", "web-0"), ("blog", "db-0")), maintenances=("M1", "M2"), inventory=True
)


def read_all(store: Store) -> object:
    """All that a small test store holds, for comparing before and after."""
    return (
        store.snapshot(EVERYTHING),
        store.inventory(),
        store.events(EventQuery(limit=500)),
        store.orders(tuple(OrderState), 500),
        store.audit(AuditQuery(limit=500)),
        store.tokens(),
        store.hooks(),
        store.hosts(),
        [store.receipt("T1", f"K{n}") for n in range(5)],
        store.next_wakeup(),
    )


def refused(store: Store, change: Change, error: type[ForewarnError]) -> None:
    """The change is refused with this error, and nothing of it happened."""
    before = read_all(store)
    with pytest.raises(error):
        store.apply(change)
    assert read_all(store) == before


# -- what is saved comes back


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_every_field_comes_back_as_given(store: Store, data: st.DataObject) -> None:
    """Scopes, machines, maintenances, events, approvals, orders, audit, tokens and receipts are read as they were written."""
    key = f"k{next(KEYS)}"
    given_ = data.draw(anything(key))
    store.apply(given_)
    expected = {
        e.id: replace(e, approvals=tuple(a for a in given_.approvals if a.event_id == e.id)) for e in given_.events
    }
    (kept,) = (replace(m, version=1) for m in given_.maintenances)

    seen = store.snapshot(Focus(scopes=(key,), maintenances=(f"{key}-M",), inventory=True))

    assert dict(seen.scopes) == {s.name: replace(s, version=1) for s in given_.scopes}
    assert dict(seen.machines) == {m.key: m for m in given_.machines}
    assert dict(seen.maintenances) == {kept.id: kept}
    assert dict(seen.events) == expected
    assert dict(seen.orders) == {o.id: o for o in given_.orders}
    assert store.maintenance(kept.id) == kept
    assert list(store.events(EventQuery(maintenance_id=kept.id)).events) == [*expected.values()][::-1]
    audit = store.audit(AuditQuery(maintenance_id=kept.id))
    assert [replace(e, id=0) for e in reversed(audit)] == list(given_.audit)
    assert [t for t in store.tokens() if t.id == f"{key}-T"] == list(given_.tokens)
    assert [store.receipt(r.token_id, r.key) for r in given_.receipts] == list(given_.receipts)
    inventory = store.inventory()
    assert inventory.scopes[key] == seen.scopes[key]
    assert {k: m for k, m in inventory.machines.items() if k[0] == key} == dict(seen.machines)


def test_every_kind_of_scope_comes_back(store: Store) -> None:
    """Each kind, each approval mode and each notice that can be raised survive being saved."""
    notices = {type_: 1_000 for type_ in EventType if type_ is not EventType.TERMINATE}
    given_ = [
        scope(f"s{n}", kind=kind, approval=mode, minimum_notice_s=notices, changed=at(0.000001))
        for n, (kind, mode) in enumerate(product(ScopeKind, ApprovalMode))
    ]
    store.apply(change(scopes=given_))
    assert store.inventory().scopes == {s.name: replace(s, version=1) for s in given_}


def test_every_kind_of_maintenance_comes_back(store: Store) -> None:
    """Each type, source, status and answer to failure survives being saved."""
    given_ = [
        maintenance(
            f"M{n}",
            type=type_,
            source=source,
            status=status,
            on_failure=on_failure,
            description=UNICODE,
            created_by=UNICODE,
            ended=at(9.999999) if status in ENDED_MAINTENANCE else None,
        )
        for n, (type_, source, status, on_failure) in enumerate(
            product(EventType, Source, MaintenanceStatus, OnFailure)
        )
    ]
    store.apply(change(maintenances=given_))
    seen = store.snapshot(Focus(maintenances=tuple(m.id for m in given_))).maintenances
    assert dict(seen) == {m.id: replace(m, version=1) for m in given_}


def test_every_kind_of_event_comes_back(store: Store) -> None:
    """Each type, source, status and approval mode survives being saved, and so does each state of an order."""
    kinds = list(product(EventType, Source, Status, ApprovalMode))
    given_ = [
        event(
            f"E{n}",
            type=t,
            source=s,
            status=status,
            approval_mode=mode,
            position=n,
            resources=(f"vm-{n}",),
            reason=UNICODE,
        )
        for n, (t, s, status, mode) in enumerate(kinds)
    ]
    states = [state for state in OrderState if state not in (OrderState.CANCELLED, OrderState.ABANDONED)]
    phases = {OrderState.PLANNED: Phase.START, OrderState.RUNNING: Phase.STOP}
    work = [
        order(e.id, state=state, phase=phases.get(state, Phase.NONE), output=UNICODE + "\n\t\0end")
        for e, state in zip(given_, cycle(states), strict=False)
    ]
    store.apply(change(scopes=[scope()], maintenances=[maintenance()], events=given_, orders=work))
    seen = store.snapshot(Focus(maintenances=("M1",)))
    assert dict(seen.events) == {e.id: e for e in given_}
    assert dict(seen.orders) == {o.id: o for o in work}


def test_what_changes_is_read_back_changed(store: Store) -> None:
    """Saving a thing again replaces what may change of it and adds one to its version."""
    store.apply(one_maintenance(status=Status.PLANNED))
    moved = replace(machine(), update_domain=3, fault_domain=2, host="h9", addresses=("fd00::1",), instance_id="vm")
    settled = replace(
        saved_scope(store), approval=ApprovalMode.ALL, enabled=True, epoch=1, incarnation=7, changed=at(5)
    )
    paused = replace(saved_maintenance(store), paused=True, status=MaintenanceStatus.PAUSED, wake_at=at(0.5))
    begun = event(status=Status.STARTED, needs_approval=False, sequence=4, minimum_notice_s=900, reason="r")
    for state in (OrderState.OPEN, OrderState.FAILED):
        tried = order(state=state, attempt=2, node="n", taken=at(901), ended=at(902), deadline=at(999), reason="r")
        store.apply(change(orders=[tried], events=[begun]))
    store.apply(change(scopes=[settled], machines=[moved], maintenances=[paused]))
    seen = store.snapshot(EVERYTHING)
    assert seen.scopes["shop"] == replace(settled, version=2)
    assert seen.machines["shop", "web-0"] == moved
    assert seen.maintenances["M1"] == replace(paused, version=2)
    assert seen.events["E1"] == begun
    assert seen.orders["E1"] == tried


def test_an_empty_change_changes_nothing(store: Store) -> None:
    """Nothing in, nothing done."""
    store.apply(one_maintenance())
    before = read_all(store)
    store.apply(change())
    assert read_all(store) == before


# -- versions


def test_a_scope_that_moved_on_is_a_conflict(store: Store) -> None:
    """A decision that relied on an older version of any scope is refused whole."""
    store.apply(change(scopes=[scope(), scope("blog")]))
    store.apply(change(scopes=[saved_scope(store)]))
    late = replace(saved_scope(store, "blog"), incarnation=2)
    stale = change(expect=[("blog", 1), ("shop", 1)], scopes=[late], audit=[entry()], maintenances=[maintenance()])
    refused(store, stale, Conflict)
    store.apply(replace(stale, expect=(("blog", 1), ("shop", 2))))
    assert saved_scope(store, "blog").incarnation == 2


def test_the_one_scope_that_a_change_relies_on_and_writes_is_checked(store: Store) -> None:
    """It is refused whole if the scope has another version or was removed; else every field of the scope is written."""
    store.apply(change(scopes=[scope()]))
    known = saved_scope(store)
    changed = replace(
        scope(approval=ApprovalMode.ALL), version=1, enabled=True, epoch=2, incarnation=3, max_unavailable="2"
    )
    store.apply(change(expect=[("shop", 1)], scopes=[changed], maintenances=[maintenance()], events=[event()]))
    assert saved_scope(store) == replace(changed, version=2)
    refused(store, change(expect=[("shop", 1)], scopes=[known], audit=[entry()]), Conflict)
    gone = change(expect=[("blog", 1)], scopes=[replace(scope("blog"), version=1)], audit=[entry()])
    refused(store, gone, Conflict)


def test_relying_on_a_scope_does_not_change_it(store: Store) -> None:
    """Only a scope that is written gets a new version."""
    store.apply(change(scopes=[scope()]))
    store.apply(change(expect=[("shop", 1)], audit=[entry()]))
    assert saved_scope(store).version == 1


@pytest.mark.parametrize("expected", [1, 2])
def test_a_scope_that_is_not_there_has_no_version(store: Store, expected: int) -> None:
    """Relying on a scope that was removed meanwhile is a conflict."""
    refused(store, change(expect=[("shop", expected)], audit=[entry()]), Conflict)


def test_version_zero_means_that_it_must_not_exist(store: Store) -> None:
    """Creating a scope or a maintenance that another writer has just created is a conflict."""
    new_scope = change(expect=[("shop", 0)], scopes=[scope()])
    new_maintenance = change(maintenances=[maintenance(description="the first")])
    store.apply(new_scope)
    store.apply(new_maintenance)
    refused(store, new_scope, Conflict)
    refused(store, change(maintenances=[maintenance(description="the second")]), Conflict)
    assert saved_maintenance(store).description == "the first"


def test_a_maintenance_that_moved_on_is_a_conflict(store: Store) -> None:
    """A maintenance saved at an older version is refused with everything that came along."""
    store.apply(one_maintenance())
    stale = saved_maintenance(store)
    store.apply(change(maintenances=[replace(stale, paused=True)]))
    late = change(maintenances=[replace(stale, cancelled=True)], events=[event(status=Status.STARTED)], audit=[entry()])
    refused(store, replace(late, scopes=(replace(saved_scope(store), incarnation=9),)), Conflict)
    refused(store, change(maintenances=[maintenance("M2", version=3)]), Conflict)


# -- approvals and wakes


def test_an_approval_is_recorded_once(store: Store) -> None:
    """A second record of the same approval is a conflict: the caller decides again, and saves nothing, no audit entry either."""
    store.apply(one_maintenance())
    store.apply(change(approvals=[approval()], audit=[entry()]))
    operators = approval(name="", at=at(90))
    again = approval(who="again", at=at(90))
    refused(store, change(approvals=[operators, again], audit=[entry()]), Conflict)
    store.apply(change(approvals=[operators]))
    assert saved_event(store).approvals == (approval(), operators)


def test_approvals_bump_no_version(store: Store) -> None:
    """Any number of machines may approve while another caller decides about the scope."""
    store.apply(one_maintenance())
    decided_on = saved_scope(store), saved_maintenance(store)
    store.apply(change(approvals=[approval(), approval(name="web-1")]))
    assert (saved_scope(store), saved_maintenance(store)) == decided_on


def test_an_event_saved_again_keeps_its_approvals(store: Store) -> None:
    """Approvals travel apart: writing an event neither adds nor loses one that came meanwhile."""
    store.apply(one_maintenance(approvals=(approval(name="never sent"),)))
    assert saved_event(store).approvals == ()
    store.apply(change(approvals=[approval()]))
    store.apply(change(events=[event(status=Status.STARTED, approvals=())]))
    assert saved_event(store).approvals == (approval(),)
    assert saved_event(store).status is Status.STARTED


def test_a_wake_makes_a_maintenance_due(store: Store) -> None:
    """Waking sets wake_at to the time of the change and bumps the version, so that a tick under way decides again."""
    store.apply(one_maintenance())
    known = saved_maintenance(store)
    store.apply(change(at(70), wakes=["M1"], approvals=[approval()]))
    assert saved_maintenance(store) == replace(known, wake_at=at(70), version=known.version + 1)
    assert store.due(at(70), 9) == ["M1"]
    refused(store, change(maintenances=[replace(known, wake_at=None)]), Conflict)


def test_an_ended_maintenance_is_never_woken(store: Store) -> None:
    """A late approval or report does not stir what has ended, nor what was forgotten."""
    store.apply(one_maintenance(status=Status.COMPLETED))
    store.apply(change(maintenances=[ended(saved_maintenance(store), at(1_000))]))
    known = saved_maintenance(store)
    store.apply(change(at(1_001), wakes=["M1", "forgotten"]))
    assert saved_maintenance(store) == known
    assert store.next_wakeup() is None


# -- who a caller is


def test_two_machines_never_share_an_address(store: Store) -> None:
    """An address belongs to one machine per interface, whether the other is old or comes in the same change."""
    store.apply(change(scopes=[scope()], machines=[machine(addresses=("10.0.0.1",), interface="br0")]))
    twin = machine("web-1", addresses=("10.0.0.1", "10.0.0.2"), interface="br0")
    refused(store, change(machines=[twin]), Conflict)
    refused(store, change(machines=[machine(addresses=("10.0.0.1",), interface="br0", host="h"), twin]), Conflict)
    refused(store, change(machines=[machine("a", addresses=("::1",)), machine("b", addresses=("::1",))]), Conflict)
    store.apply(change(machines=[replace(twin, interface="br1")]))
    assert len(store.inventory().machines) == 2


def test_two_machines_never_share_an_interface_alone(store: Store) -> None:
    """An interface without addresses tells one machine; beside it others may use the interface with addresses."""
    store.apply(change(scopes=[scope()], machines=[machine(interface="tap7")]))
    refused(store, change(machines=[machine("web-1", interface="tap7")]), Conflict)
    store.apply(change(machines=[machine("web-1", interface="tap7", addresses=("10.0.0.1",))]))
    assert store.inventory().machines["shop", "web-0"] == machine(interface="tap7")


def test_two_machines_never_share_an_instance_id(store: Store) -> None:
    """An instance id belongs to one machine of the whole fleet; having none is no id."""
    store.apply(change(scopes=[scope(), scope("blog")], machines=[machine(instance_id="i-1"), machine("web-1")]))
    refused(store, change(machines=[machine("db-0", scope="blog", instance_id="i-1")]), Conflict)
    pair = [machine("c", instance_id="i-2"), machine("d", instance_id="i-2")]
    refused(store, change(machines=pair), Conflict)
    store.apply(change(machines=[machine("web-2")]))
    assert len(store.inventory().machines) == 3


def test_two_machines_may_swap_identities(store: Store) -> None:
    """In one change every old identity goes before any new one comes."""
    one = machine("web-0", addresses=("10.0.0.1",), instance_id="i-1")
    two = machine("web-1", addresses=("10.0.0.2",), instance_id="i-2")
    store.apply(change(scopes=[scope()], machines=[one, two]))
    swapped = [replace(one, addresses=two.addresses, instance_id="i-2"), replace(two, addresses=one.addresses)]
    swapped[1] = replace(swapped[1], instance_id="i-1")
    store.apply(change(machines=swapped))
    assert store.inventory().machines == {m.key: m for m in swapped}


def test_an_identity_is_free_once_its_machine_is_gone(store: Store) -> None:
    """A machine may take over in the change that removes the one before it, and later as well."""
    known = machine(addresses=("10.0.0.1",), instance_id="i-1")
    store.apply(change(scopes=[scope()], machines=[known]))
    heir = replace(known, name="web-1")
    store.apply(change(machines=[heir], removed_machines=[known.key]))
    store.apply(change(machines=[replace(heir, addresses=(), instance_id="")]))
    store.apply(change(machines=[known]))
    assert set(store.inventory().machines) == {known.key, heir.key}


# -- tokens and receipts


def test_tokens_come_newest_first(store: Store) -> None:
    """By when they were made, then id, whatever the order they came in."""
    store.apply(change(tokens=[token("T2", created=at(5)), token("T1", created=at(5)), token("T3", created=at(1))]))
    store.apply(change(tokens=[token("T0", created=at(9), role=Role.OWNER, scopes=("shop", "blog"))]))
    assert [t.id for t in store.tokens()] == ["T0", "T2", "T1", "T3"]
    assert store.tokens()[0].scopes == ("shop", "blog")
    store.apply(
        change(tokens=[token(f"C{n}", created=at(20 + n), role=Role.CALENDAR, scopes=("shop",) * n) for n in (0, 1)])
    )
    assert [(t.role, t.scopes) for t in store.tokens()[:2]] == [(Role.CALENDAR, ("shop",)), (Role.CALENDAR, ())]


def test_a_token_is_never_updated(store: Store) -> None:
    """An id or a secret that exists is a conflict, in the store and in one change, and nothing is saved."""
    store.apply(change(tokens=[token("T1")]))
    refused(store, change(tokens=[token("T2"), token("T1", digest="0" * 64)]), Conflict)
    refused(store, change(tokens=[token("T2", digest=token("T1").digest)], audit=[entry()]), Conflict)
    refused(store, change(tokens=[token("T2"), token("T2", digest="0" * 64)]), Conflict)
    refused(store, change(tokens=[token("T2"), token("T3", digest=token("T2").digest)]), Conflict)


def test_a_login_is_kept_until_it_is_ended(store: Store) -> None:
    """It is found by the digest of its session id; an id is never used twice."""
    mine, other = session("S1"), session("S2", token_id="T2", expires=at(90))
    store.add_session(mine)
    store.add_session(other)
    with pytest.raises(Conflict):
        store.add_session(session("S1", token_id="T2"))
    assert [store.session(each.digest) for each in (mine, other)] == [mine, other]
    store.end_session(mine.digest)
    store.end_session(mine.digest)
    assert [store.session(each.digest) for each in (mine, other)] == [None, other]


def test_a_login_goes_with_its_token(store: Store) -> None:
    """A removed token leaves no login; a token that is in no table may have logins too."""
    store.apply(change(tokens=[token("T1")]))
    for id_, token_id in (("S1", "T1"), ("S2", "T1"), ("S3", "environment")):
        store.add_session(session(id_, token_id=token_id))
    store.apply(change(removed_tokens=["T1"]))
    assert [store.session(session(id_).digest) is None for id_ in ("S1", "S2", "S3")] == [True, True, False]


def test_logins_that_ended_are_forgotten(store: Store) -> None:
    """As many as the limit says, and no login that has not ended."""
    for n in range(4):
        store.add_session(session(f"S{n}", expires=at(n)))
    assert store.forget_sessions(at(3), 2) == 2
    assert store.forget_sessions(at(3), 2) == 1
    assert [store.session(session(f"S{n}").digest) is None for n in range(4)] == [True, True, True, False]


def test_a_token_has_a_limited_number_of_logins(store: Store) -> None:
    """The login that ends first is deleted."""
    ids = [f"S{n}" for n in range(MAX_SESSIONS_PER_TOKEN + 2)]
    for n, id_ in enumerate(ids):
        store.add_session(session(id_, expires=at(n)))
    store.add_session(session("other", token_id="T2", expires=at(0)))
    assert [id_ for id_ in ids if store.session(session(id_).digest) is None] == ids[:2]
    assert store.session(session("other").digest) is not None


def test_the_last_use_of_a_token_is_kept(store: Store) -> None:
    """The latest time counts, whatever the order of writing; a token that is gone has none."""
    store.apply(change(tokens=[token("T1"), token("T2"), token("T3")]))
    store.record_token_uses({"T1": at(5), "T2": at(1), "nobody": at(1)})
    store.record_token_uses({"T1": at(3), "T2": at(2)})
    assert store.token_uses() == {"T1": at(5), "T2": at(2)}
    store.apply(change(removed_tokens=["T1"]))
    assert store.token_uses() == {"T2": at(2)}


def test_a_token_goes(store: Store) -> None:
    """Removing an unknown token is no error; its id and its secret are free again, in the same change."""
    store.apply(change(tokens=[token("T1"), token("T2")]))
    store.apply(change(removed_tokens=["T1", "nobody"]))
    assert [t.id for t in store.tokens()] == ["T2"]
    store.apply(change(removed_tokens=["T2"], tokens=[token("T2", name="anew"), token("T1")]))
    assert {t.name for t in store.tokens()} == {"anew", "name of T1"}


def test_a_receipt_is_saved_with_its_change_or_not_at_all(store: Store) -> None:
    """A request that was answered is not done again; another token may use the same key."""
    answered = change(receipts=[receipt()], maintenances=[maintenance()], audit=[entry()])
    store.apply(answered)
    refused(store, change(receipts=[receipt(body="other")], maintenances=[maintenance("M2")]), Conflict)
    refused(store, change(receipts=[receipt("K2"), receipt("K2")], audit=[entry()]), Conflict)
    refused(store, change(receipts=[receipt("K3")], maintenances=[maintenance()]), Conflict)
    assert store.receipt("T1", "K1") == receipt()
    assert store.receipt("T2", "K1") is None
    store.apply(change(receipts=[receipt(token_id="T2")]))
    assert store.receipt("T2", "K1") == receipt(token_id="T2")


def test_receipts_are_forgotten_the_oldest_first(store: Store) -> None:
    """No more than asked for, and none that is young enough; a forgotten key may be used again."""
    store.apply(change(receipts=[receipt(f"K{n}", at=at(n)) for n in (3, 1, 4, 2)]))
    assert store.forget_receipts(at(4), 2) == 2
    assert [n for n in range(1, 5) if store.receipt("T1", f"K{n}")] == [3, 4]
    assert [store.forget_receipts(at(4), 2) for _ in range(2)] == [1, 0]
    store.apply(change(receipts=[receipt("K1")]))
    assert store.receipt("T1", "K1") == receipt("K1")


# -- removing


def test_machines_and_scopes_go(store: Store) -> None:
    """A removed machine leaves its scope and its host; a removed scope may come back, from version 0."""
    store.apply(change(scopes=[scope(), scope("blog")], machines=[machine(host="h1"), machine("web-1", host="h1")]))
    store.apply(change(removed_machines=[("shop", "web-0")]))
    assert set(store.snapshot(Focus(hosts=("h1",))).machines) == {("shop", "web-1")}
    store.apply(change(expect=[("shop", 1)], removed_machines=[("shop", "web-1")], removed_scopes=["shop"]))
    assert set(store.inventory().scopes) == {"blog"}
    assert store.inventory().machines == {}
    store.apply(change(expect=[("shop", 0)], scopes=[scope()]))
    assert saved_scope(store).version == 1


def test_removing_what_is_not_there_is_no_error(store: Store) -> None:
    """The store stays as it is."""
    store.apply(one_maintenance())
    before = read_all(store)
    store.apply(change(removed_machines=[("shop", "nobody"), ("nowhere", "x")], removed_scopes=["nowhere"]))
    assert read_all(store) == before


def test_history_outlives_its_machines_and_scope(store: Store) -> None:
    """Events are remembered after the machines and the scope they were about are gone."""
    store.apply(one_maintenance(status=Status.COMPLETED))
    store.apply(change(removed_machines=[("shop", "web-0")], removed_scopes=["shop"]))
    page = store.events(EventQuery(scope="shop", machine="web-0"))
    assert [e.id for e in page.events] == ["E1"]


# -- orders of hosts


def test_a_maintenance_comes_with_the_orders_of_its_hosts(store: Store) -> None:
    """They are read with their maintenance and by their own ids, and are listed apart from the orders of events."""
    store.apply(one_maintenance(status=Status.STARTED))
    first, second = host_order(state=OrderState.RUNNING, node="a"), host_order("H2", position=2, host="kvm-2")
    store.apply(change(orders=[order(), second, first]))
    own = {"E1": order(), "H1": first, "H2": second}
    assert dict(store.snapshot(Focus(maintenances=("M1",))).orders) == own
    assert dict(store.snapshot(Focus(scopes=("shop",), whole_maintenances=False)).orders) == own
    alone = Focus(events=("H2",), whole_maintenances=False, open_events=False)
    assert dict(store.snapshot(alone).orders) == {"H2": second}
    assert dict(store.snapshot(replace(alone, document_only=True)).orders) == {}
    assert store.orders(tuple(OrderState), 9) == [order()]
    assert store.orders({OrderState.PLANNED}, 9, of_hosts=True) == [second]
    assert {o.id for o in store.orders_page(OrderQuery(abandoned=False))} == {"E1", "H1", "H2"}
    assert [o.id for o in store.orders_page(OrderQuery(within=("shop",)))] == ["E1"]
    assert store.ids_starting("order", "H", None, 9) == ["H1", "H2"]
    assert store.ids_starting("order", "H", ("shop",), 9) == []


def test_a_snapshot_names_the_hosts_whose_machines_it_has(store: Store) -> None:
    """A host without machines differs from a host that was not read."""
    store.apply(change(scopes=[scope()], machines=[machine(host="kvm-1"), machine("web-1")]))
    seen = store.snapshot(Focus(hosts=("kvm-1", "kvm-2")))
    assert seen.read_hosts == {"kvm-1", "kvm-2"}
    assert list(seen.machines) == [("shop", "web-0")]
    assert store.snapshot(Focus(scopes=("shop",), inventory=True)).read_hosts == frozenset()


def test_hosts_that_wait_for_an_operator_are_counted(store: Store) -> None:
    """An order of a host that failed or is in doubt counts like one of an event, for everyone who sees the whole fleet."""
    store.apply(one_maintenance())
    doubtful = host_order("H2", position=2, state=OrderState.IN_DOUBT, node="a")
    store.apply(change(orders=[host_order(state=OrderState.FAILED), doubtful]))
    whole, part = store.counts(None), store.counts(("shop",))
    assert (whole.failed, whole.in_doubt) == (1, 1)
    assert (part.failed, part.in_doubt) == (0, 0)
    assert (store.backlog().failed, store.backlog().in_doubt) == (1, 1)


def test_an_order_of_a_host_goes_with_its_maintenance(store: Store) -> None:
    """History that is deleted leaves no order behind."""
    store.apply(one_maintenance(status=Status.COMPLETED))
    store.apply(change(orders=[order(state=OrderState.DONE), host_order(state=OrderState.DONE)]))
    store.apply(change(maintenances=[ended(saved_maintenance(store), at(1_000))]))
    assert store.prune(at(2_000), 9) == 2
    assert store.orders(tuple(OrderState), 9) == store.orders(tuple(OrderState), 9, of_hosts=True) == []


# -- whole or not at all

DANGLING: dict[str, Change] = {
    "an order of no event": change(orders=[order("E9")]),
    "an order of a host of no maintenance": change(orders=[host_order(maintenance_id="M9")]),
    "an approval of no event": change(approvals=[approval("E9")]),
    "an event of no maintenance": change(events=[event("E9", "M9")]),
    "an event of another maintenance": change(maintenances=[maintenance("M2")], events=[event("E1", "M2")]),
    "a machine of no scope": change(machines=[machine("x", scope="nowhere")]),
    "a scope that still has machines": change(removed_scopes=["shop"]),
}


@pytest.mark.parametrize("wrong", DANGLING.values(), ids=DANGLING)
def test_a_change_about_what_does_not_exist_leaves_nothing(store: Store, wrong: Change) -> None:
    """Whatever part of a change is impossible, none of its other parts happens."""
    store.apply(one_maintenance())
    rest = replace(
        wrong,
        scopes=(replace(saved_scope(store), incarnation=5), scope("blog")),
        machines=(*wrong.machines, machine("web-9", host="h9", addresses=("10.9.9.9",), instance_id="i-9")),
        maintenances=(*wrong.maintenances, replace(saved_maintenance(store), paused=True)),
        events=(event(status=Status.STARTED), *wrong.events),
        approvals=(approval(), *wrong.approvals),
        orders=(order(), *wrong.orders),
        wakes=("M1",),
        audit=(entry(),),
        tokens=(token(),),
        receipts=(receipt(),),
    )
    refused(store, rest, InvariantBroken)


def test_a_conflict_in_the_last_part_leaves_nothing(store: Store) -> None:
    """A maintenance that another writer changed is detected after much was written, and nothing of that stays."""
    store.apply(one_maintenance())
    fresh = [maintenance("M2"), replace(saved_maintenance(store), version=7)]
    wrong = change(scopes=[scope("blog")], machines=[machine("db-0", scope="blog")], maintenances=fresh)
    refused(store, replace(wrong, removed_machines=(("shop", "web-0"),), audit=(entry(),)), Conflict)


def test_the_same_change_succeeds_once_its_fault_is_mended(store: Store) -> None:
    """A refusal leaves the store as able as before."""
    store.apply(one_maintenance())
    wrong = change(orders=[order(), order("E9")], events=[event(status=Status.STARTED)])
    refused(store, wrong, InvariantBroken)
    store.apply(replace(wrong, orders=wrong.orders[:1]))
    assert [o.id for o in store.orders({OrderState.OPEN}, 9)] == ["E1"]


# -- a clock that jumped


def test_a_maintenance_that_exists_is_not_created_again(store: Store) -> None:
    """It is a conflict, also if what belongs to the maintenance is there already: the request decides again."""
    created = replace(maintenance(), targets=Targets(scope="shop"))
    store.apply(change(scopes=[scope()], maintenances=[created], events=[event()]))
    refused(store, change(maintenances=[created], audit=[entry()]), Conflict)
    stale = replace(saved_maintenance(store), version=7)
    refused(store, change(maintenances=[stale], events=[event("E2")], audit=[entry()]), Conflict)


def test_the_reason_of_a_hold_comes_back_as_given(store: Store) -> None:
    """Also with characters that a database cannot hold, or that stand for them."""
    odd = replace(HELD, detail="a\0b\x1ac")
    store.apply(replace(change(), store_hold=odd))
    assert store.snapshot(Focus()).store_hold == odd


def test_of_two_holds_the_earlier_counts(store: Store) -> None:
    """A hold is in every snapshot a decision reads, and a later one does not replace it."""
    first = ClockHold(trusted=at(60), noticed=at(3_700), jumped_s=3_600, node="one")
    earlier = ClockHold(trusted=at(30), noticed=at(3_800), jumped_s=3_700, node="two")
    assert store.snapshot(Focus()).hold is None
    for given_, counts in ((first, first), (earlier, earlier), (first, earlier)):
        store.apply(replace(change(), hold=given_))
        assert store.snapshot(Focus(scopes=("shop",))).hold == counts
    assert store.snapshot(Focus(document_only=True)).hold is None


def test_what_was_confirmed_is_kept_until_there_is_another_hold(store: Store) -> None:
    """A node that notices the same jump later finds it confirmed; the next hold counts, however late its moment."""
    first = ClockHold(trusted=at(60), noticed=at(3_700), jumped_s=3_600, node="one")
    later = ClockHold(trusted=at(4_000), noticed=at(8_000), jumped_s=3_700, node="two")
    store.apply(replace(change(), hold=first))
    assert store.snapshot(Focus()).confirmed is None
    store.apply(replace(change(at(3_900)), releases_hold=first))
    held = store.snapshot(Focus())
    assert (held.hold, held.confirmed) == (None, replace(first, confirmed=at(3_900)))
    assert store.snapshot(Focus(document_only=True)).confirmed is None
    store.apply(replace(change(), hold=later))
    held = store.snapshot(Focus())
    assert (held.hold, held.confirmed) == (later, None)


def test_only_the_hold_that_was_looked_at_is_released(store: Store) -> None:
    """One that came in between nobody has seen, and one that was confirmed meanwhile needs nobody: nothing is saved."""
    seen = ClockHold(trusted=at(60), noticed=at(3_700), jumped_s=3_600, node="one")
    earlier = ClockHold(trusted=at(30), noticed=at(3_800), jumped_s=7_200, node="two")
    noticed_again = replace(earlier, noticed=at(3_801))
    store.apply(replace(change(maintenances=[maintenance("M1")]), hold=seen))
    store.apply(replace(change(), hold=earlier))
    for other in (seen, noticed_again):
        with pytest.raises(Conflict, match="another jump"):
            store.apply(replace(change(at(3_900), audit=[entry()]), releases_hold=other))
    assert store.snapshot(Focus()).hold == earlier
    assert saved_maintenance(store, "M1").version == 1
    store.apply(replace(change(at(3_900)), releases_hold=earlier))
    with pytest.raises(Conflict, match="another jump"):
        store.apply(replace(change(at(3_950), audit=[entry()]), releases_hold=earlier))
    assert store.snapshot(Focus()).confirmed == replace(earlier, confirmed=at(3_900))
    assert store.audit(AuditQuery()) == []


# -- a held store


HELD = StoreHold(cause=HoldCause.RESTORED, detail="a backup was restored", who="alice", held=at(60))


def test_a_store_stays_held_until_it_is_resumed(store: Store) -> None:
    """The hold is in every snapshot a decision reads. Another one does not replace it, before it is resumed."""
    assert store.snapshot(Focus()).store_hold is None
    later = replace(HELD, cause=HoldCause.REQUESTED, held=at(70))
    for given_, counts in ((HELD, HELD), (later, HELD)):
        store.apply(replace(change(), store_hold=given_))
        assert store.snapshot(Focus(scopes=("shop",))).store_hold == counts
    assert store.snapshot(Focus(document_only=True)).store_hold is None
    store.apply(replace(change(at(80)), resumes_store=HELD))
    found = store.snapshot(Focus())
    assert (found.store_hold, found.resumed) == (None, replace(HELD, resumed=at(80)))
    store.apply(replace(change(), store_hold=later))
    found = store.snapshot(Focus())
    assert (found.store_hold, found.resumed) == (later, None)


def test_only_the_hold_that_was_shown_is_resumed(store: Store) -> None:
    """An operator has not seen what another hold is about: nothing is saved."""
    store.apply(replace(change(maintenances=[maintenance("M1")]), store_hold=HELD))
    other = replace(HELD, held=at(61))
    with pytest.raises(Conflict, match="held for another reason"):
        store.apply(replace(change(at(80), audit=[entry()]), resumes_store=other))
    assert store.snapshot(Focus()).store_hold == HELD
    store.apply(replace(change(at(80)), resumes_store=HELD))
    with pytest.raises(Conflict, match="held for another reason"):
        store.apply(replace(change(at(81), audit=[entry()]), resumes_store=HELD))
    assert store.audit(AuditQuery()) == []
    assert store.due(at(80), 10) == ["M1"]


def test_a_held_store_refuses_a_change_that_begins_work(store: Store) -> None:
    """Such a change was decided before the hold. Other changes are saved."""
    store.apply(replace(change(), begins_work=True))
    store.apply(replace(change(), store_hold=HELD))
    with pytest.raises(Conflict, match="the store has been held meanwhile"):
        store.apply(replace(change(scopes=[scope("shop")], audit=[entry()]), begins_work=True))
    assert store.scopes() == {}
    store.apply(change(scopes=[scope("shop")]))
    store.apply(replace(change(at(80)), resumes_store=HELD))
    store.apply(replace(change(audit=[entry()]), begins_work=True))
    assert len(store.audit(AuditQuery())) == 1


def test_the_names_of_scopes_and_the_time_of_the_last_change(store: Store) -> None:
    """The names come sorted; scopes that never changed have no time."""
    assert (store.scope_names(), store.last_change()) == ([], None)
    store.apply(change(scopes=[scope("shop", changed=None), scope("blog", changed=None)]))
    assert (store.scope_names(), store.last_change()) == (["blog", "shop"], None)
    store.apply(change(scopes=[replace(store.scopes()["shop"], changed=at(20)), scope("solo", changed=at(10))]))
    assert (store.scope_names(), store.last_change()) == (["blog", "shop", "solo"], at(20))


def test_a_replaced_store_begins_new_epochs_and_is_held(store: Store) -> None:
    """Incarnations of the old epoch may have been seen by guests, and must not be used again."""
    store.apply(change(scopes=[scope("shop", epoch=3, incarnation=7)]))
    before = store.scopes()["shop"]
    store.begin_anew(replace(change(audit=[entry()]), store_hold=HELD))
    after = store.scopes()["shop"]
    assert after.epoch > before.epoch
    assert (after.incarnation, after.version > before.version) == (1, True)
    assert store.snapshot(Focus()).store_hold == HELD
    assert len(store.audit(AuditQuery())) == 1


def test_a_replaced_store_has_no_logins(store: Store) -> None:
    """A log-out may be later than what the store holds; tokens stay valid."""
    store.apply(change(tokens=[token("T1")]))
    store.add_session(session("S1"))
    store.begin_anew(change(audit=[entry()]))
    assert store.session(session("S1").digest) is None
    assert [each.id for each in store.tokens()] == ["T1"]


def test_a_position_says_which_database_this_is(store: Store) -> None:
    """It names the database, the last audit entry, and whether there is open work; memory has no position."""
    found = store.position()
    if isinstance(store, MemoryStore):
        assert found is None
        return
    assert found is not None
    assert (found.audit_id, found.resumed, found.held, found.unfinished) == (0, False, False, False)
    store.apply(replace(change(maintenances=[maintenance("M1")], audit=[entry()]), store_hold=HELD))
    assert store.position().held  # type: ignore[union-attr]
    store.apply(replace(change(at(80)), resumes_store=HELD))
    (last,) = store.audit(AuditQuery())
    assert store.position() == replace(found, audit_id=last.id, resumed=True, unfinished=True)


def test_a_released_hold_wakes_every_open_maintenance(store: Store) -> None:
    """What waited for the clock has no other moment to be looked at again."""
    hold = ClockHold(trusted=at(0), noticed=at(0), jumped_s=31)
    store.apply(replace(change(maintenances=[maintenance("M1"), maintenance("M2")]), hold=hold))
    store.apply(change(maintenances=[ended(saved_maintenance(store, "M2"), at(1))]))
    store.apply(replace(change(at(5)), releases_hold=hold))
    assert store.snapshot(Focus()).hold is None
    assert store.due(at(5), 10) == ["M1"]
    assert saved_maintenance(store, "M1").version == 2


# -- hosts


FULL_HOST = Host(
    name="kvm-07",
    labels={"rack": "b 4", "cpu": UNICODE},
    fault_domain=999,
    connection="qemu+ssh://forewarn@kvm-07/system",
    listed=True,
    cordoned=at(3),
    cordoned_by="M1",
)


def test_hosts_come_back_as_given(store: Store) -> None:
    """Every field of a host is read as it was written, in a list, in the inventory and in a snapshot of named hosts."""
    store.apply(change(hosts=[FULL_HOST, Host(name="kvm-01")]))
    full, plain = replace(FULL_HOST, version=1), Host(name="kvm-01", version=1)
    assert list(store.hosts().items()) == [("kvm-01", plain), ("kvm-07", full)]
    assert store.inventory().hosts == store.hosts()
    assert dict(store.snapshot(Focus(hosts=("kvm-07", "kvm-99"))).hosts) == {"kvm-07": full}
    assert not store.snapshot(Focus(scopes=("shop",), inventory=True)).hosts
    later = Host(name="kvm-07", labels={"rack": "b5"}, version=1)
    store.apply(change(hosts=[later]))
    assert store.hosts()["kvm-07"] == replace(later, version=2)


def test_a_tick_reads_the_current_waves_and_what_may_hold_them_back(store: Store) -> None:
    """Of later waves and ended events it learns little; of a maintenance that needs all its events, or has none open, all."""
    large, ended_one = maintenance("large"), ended(maintenance("over"), at(1))
    rival, whole = maintenance("rival"), maintenance("whole", on_failure=OnFailure.CANCEL)

    def planned(id_: str, of: str, wave: int, in_scope: str) -> Event:
        return event(id_, of, wave=wave, scope=in_scope, position=wave, status=Status.PLANNED)

    store.apply(
        change(
            scopes=[scope(name) for name in ("shop", "blog", "far")],
            maintenances=[large, ended_one, rival, whole],
            events=[
                event("L1", "large", wave=1, position=1, status=Status.COMPLETED),
                event("L2", "large", wave=2, position=2, status=Status.STARTED),
                planned("L3", "large", 3, "blog"),
                planned("L4", "large", 4, "far"),
                replace(event("L5", "large", wave=4, position=5, status=Status.CANCELLED), replaced_by="L4"),
                event("O1", "over", wave=1, position=1, status=Status.COMPLETED),
                planned("R1", "rival", 1, "blog"),
                planned("R2", "rival", 2, "far"),
                planned("W1", "whole", 1, "shop"),
                planned("W2", "whole", 2, "far"),
            ],
            orders=[order("L1", state=OrderState.DONE), order("L2"), order("O1", state=OrderState.DONE)],
        )
    )
    seen = store.snapshot(Focus(maintenances=("large", "over"), current_waves=True))
    assert set(seen.events) == {"L2", "L3", "O1", "R1", "W1", "W2"}
    assert set(seen.scopes) == {"shop", "blog"}
    assert set(seen.maintenances) == {"large", "over", "rival", "whole"}
    assert set(seen.orders) == {"L2", "O1"}
    assert dict(seen.unread) == {"large": UnreadEvents(5, at(1_000), 1), "rival": UnreadEvents(2)}
    assert not store.snapshot(Focus(maintenances=("large",))).unread
    assert set(store.snapshot(Focus(maintenances=("whole",), current_waves=True)).scopes) == {"shop", "far"}


def test_selectors_read_the_labels_of_machines_and_of_their_hosts(store: Store) -> None:
    """In the order of their keys, of some scopes or all, after a key; a host without a row has no labels."""
    machines = [
        machine("web-1", host="kvm-01", update_domain=3),
        machine("web-0", host="kvm-07", labels={"env": UNICODE}),
        machine("web-0", scope="blog", host="kvm-07"),
        machine("web-2"),
    ]
    store.apply(change(scopes=[scope(), scope("blog")], machines=machines, hosts=[FULL_HOST]))
    of_host = FULL_HOST.labels
    blog: tuple[object, ...] = ("blog", "web-0", 0, "kvm-07", {}, of_host)
    shop = [
        ("shop", "web-0", 0, "kvm-07", {"env": UNICODE}, of_host),
        ("shop", "web-1", 3, "kvm-01", {}, {}),
        ("shop", "web-2", 0, "", {}, {}),
    ]
    assert [tuple(m) for m in store.labelled_machines(None)] == [blog, *shop]
    assert [tuple(m) for m in store.labelled_machines(("shop",))] == shop
    assert [m.key for m in store.labelled_machines(None, ("shop", "web-0"))] == [("shop", "web-1"), ("shop", "web-2")]
    assert [m.key for m in store.labelled_machines(("blog", "shop"), ("shop", "web-1"))] == [("shop", "web-2")]
    assert list(store.labelled_machines(())) == []


def test_a_snapshot_of_a_host_has_its_machines_and_their_scopes(store: Store) -> None:
    """A decision about a host reads its row, the machines on it and the scopes of those."""
    machines = [machine("web-0", host="kvm-07"), machine("web-1", host="kvm-08")]
    store.apply(change(scopes=[scope()], machines=machines, hosts=[FULL_HOST]))
    seen = store.snapshot(Focus(hosts=("kvm-07",)))
    assert list(seen.hosts) == ["kvm-07"]
    assert list(seen.machines) == [("shop", "web-0")]
    assert list(seen.scopes) == ["shop"]


def test_a_snapshot_of_a_host_has_its_orders_that_are_not_over(store: Store) -> None:
    """A decision about a host knows what other maintenances do on it."""
    ids = {state: f"H{number}" for number, state in enumerate(OrderState)}
    orders = [
        host_order(id_, state=s, host="kvm-07", position=n, node="n", deadline=None)
        for n, (s, id_) in enumerate(ids.items())
    ]
    elsewhere = host_order("H9", state=OrderState.OPEN, host="kvm-08", position=9)
    store.apply(change(maintenances=[maintenance()], orders=[*orders, elsewhere], hosts=[FULL_HOST]))
    seen = store.snapshot(Focus(hosts=("kvm-07",)))
    over = {OrderState.DONE, OrderState.CANCELLED, OrderState.ABANDONED}
    assert set(seen.orders) == {id_ for state, id_ in ids.items() if state not in over}
    assert store.snapshot(Focus(hosts=("kvm-07",), document_only=True)).orders == {}


def test_a_host_changes_only_as_it_was_read(store: Store) -> None:
    """A host that another writer added, changed or removed is a conflict, and nothing is saved."""
    store.apply(change(hosts=[FULL_HOST, Host(name="kvm-01")]))
    store.apply(change(hosts=[replace(FULL_HOST, version=1, cordoned=None, cordoned_by="")]))
    refused(store, change(hosts=[FULL_HOST], audit=[entry()]), Conflict)
    refused(store, change(hosts=[Host(name="kvm-01", version=1), replace(FULL_HOST, version=1)]), Conflict)
    refused(store, change(hosts=[Host(name="kvm-99", version=1)]), Conflict)
    refused(store, change(removed_hosts=[("kvm-01", 1), ("kvm-07", 1)]), Conflict)
    store.apply(change(removed_hosts=[("kvm-07", 2)]))
    refused(store, change(removed_hosts=[("kvm-07", 2)]), Conflict)
    refused(store, change(hosts=[replace(FULL_HOST, version=2)]), Conflict)
    assert list(store.hosts()) == ["kvm-01"]


# -- hooks


def test_hooks_come_back_as_given_oldest_first(store: Store) -> None:
    """Every field of a hook is read as it was written, also after an update."""
    full = hook(
        "H1",
        scope="shop",
        kinds=("started", "failed"),
        shape=HookShape.SLACK,
        secrets=("whsec_b25l", "whsec_dHdv"),
        old_secrets_until=at(90),
        owner_token="T1",
        created=at(5),
        created_by=UNICODE,
        cursor=2**40,
        delivered=at(6),
        failing_since=at(7),
        failures=3,
        error=UNICODE,
        disabled=at(8),
        gap_after=2,
        gap_until=2**41,
    )
    store.apply(change(hooks=[full, hook("H0", created=at(9)), hook("H2", created=at(5))]))
    assert store.hooks() == [
        replace(full, version=1),
        hook("H2", created=at(5), version=1),
        hook("H0", created=at(9), version=1),
    ]
    later = replace(
        full, version=1, cursor=2**42, owner_token="T2", delivered=at(9), failing_since=None, failures=0, error=""
    )
    store.apply(change(hooks=[later]))
    assert store.hooks()[0] == replace(later, version=2)


def test_a_hook_changes_only_as_it_was_read(store: Store) -> None:
    """A hook that another writer changed or deleted is a conflict for `apply` and for `save_hooks`, and nothing is saved."""
    store.apply(change(hooks=[hook("H1"), hook("H2")]))
    store.save_hooks([hook("H1", version=1, cursor=5)])
    refused(store, change(hooks=[hook("H1")], audit=[entry()]), Conflict)
    refused(store, change(hooks=[hook("H2", version=1), hook("H1", version=1)], audit=[entry()]), Conflict)
    with pytest.raises(Conflict):
        store.save_hooks([hook("H2", version=1, cursor=9), hook("H1", version=1, cursor=9)], [delivery(9)])
    assert [h.cursor for h in store.hooks()] == [5, 0]
    assert store.hook_deliveries("H1", 10) == []
    store.apply(change(removed_hooks=["H1"]))
    with pytest.raises(Conflict):
        store.save_hooks([hook("H1", version=2, cursor=9)])
    assert [h.id for h in store.hooks()] == ["H2"]


def test_a_hook_keeps_its_newest_deliveries(store: Store) -> None:
    """The last attempt for an entry replaces the one before; a page goes down from an entry; a deleted hook has none."""
    store.apply(change(hooks=[hook("H1"), hook("H2")]))
    failed = delivery(3, delivered=False, status=0, error="refused", took_ms=7)
    store.save_hooks([hook("H1", version=1, cursor=3)], [delivery(1), delivery(2), failed])
    store.save_hooks([hook("H1", version=2, cursor=3)], [delivery(3, attempts=2)])
    store.save_hooks([hook("H2", version=1, cursor=1)], [delivery(1, "H2")])
    assert store.hook_deliveries("H1", 2) == [delivery(3, attempts=2), delivery(2)]
    assert store.hook_deliveries("H1", 5, before=3) == [delivery(2), delivery(1)]
    many = [delivery(n) for n in range(10, 10 + MAX_DELIVERIES)]
    store.save_hooks([hook("H1", version=3)], many)
    assert store.hook_deliveries("H1", 500) == many[::-1]
    again = delivery(4, at=at(900), delivered=False, error="refused")  # an attempt of a replay
    store.save_hooks([hook("H1", version=4)], [again])
    assert store.hook_deliveries("H1", 500) == [*many[:0:-1], again]
    store.apply(change(removed_hooks=["H1"]))
    assert store.hook_deliveries("H1", 500) == []
    assert store.hook_deliveries("H2", 500) == [delivery(1, "H2")]


# -- the rules of the fleet

NIGHTS = Window(name="nights", spans=("Mon-Fri 22:00-05:00",), zone="Europe/Berlin", extended_until=at(60))
YEAR_END = NoGoTime(name="year-end", reason="closing the books", start=at(0), end=at(90), scopes=("shop",))


def test_the_rules_of_the_fleet_come_with_a_snapshot_that_decides_about_waves(store: Store) -> None:
    """They change under a version, and changing them wakes what may have waited for them."""
    store.apply(change(maintenances=[maintenance("M1")]))
    assert store.fleet_rules() == FleetRules()
    rules = FleetRules(
        windows={"nights": NIGHTS}, no_go_times={"year-end": YEAR_END}, max_hosts_down=2, max_machines_down=50
    )
    store.apply(replace(change(), at=at(70), fleet_rules=rules))
    assert store.fleet_rules() == store.snapshot(Focus()).fleet_rules == replace(rules, version=1)
    assert store.due(at(70), 10) == ["M1"]
    assert store.snapshot(Focus(whole_maintenances=False)).fleet_rules == FleetRules()
    with pytest.raises(Conflict, match="the rules of the fleet were changed"):
        store.apply(replace(change(), fleet_rules=rules))


def test_a_snapshot_names_the_machines_that_no_go_times_bind_by_labels(store: Store) -> None:
    """Those that are read, and those of events that have not started; a label of the machine comes before that of its host."""
    machines = [
        replace(machine("web-0"), labels={"rack": "a3"}),
        replace(machine("web-1"), host="kvm-1"),
        replace(machine("web-2"), host="kvm-1", labels={"rack": "b1"}),
        replace(machine("web-3"), labels={"rack": "a3"}),
        replace(machine("web-4"), labels={"rack": "a3"}),
    ]
    hosts = (Host(name="kvm-1", labels={"rack": "a3"}),)
    store.apply(replace(change(scopes=[scope("shop")], machines=machines), hosts=hosts))
    waiting = event("E1", resources=("gone", "web-0", "web-1", "web-2"))
    started = event("E2", position=1, status=Status.STARTED, resources=("web-3",), started=at(1))
    store.apply(change(maintenances=[maintenance("M1")], events=[waiting, started], expect=[("shop", 1)]))
    focus = Focus(maintenances=("M1",))
    assert store.snapshot(focus).no_go_machines == {}
    rules = FleetRules(no_go_times={"year-end": YEAR_END, "racks": replace(YEAR_END, name="racks", labels="rack=a3")})
    store.apply(replace(change(), fleet_rules=rules))
    bound = {("shop", "web-0"), ("shop", "web-1")}
    assert store.snapshot(focus).no_go_machines == {"racks": bound}
    assert store.snapshot(replace(focus, current_waves=True)).no_go_machines == {"racks": bound}
    assert store.snapshot(replace(focus, machines=(("shop", "web-4"),))).no_go_machines == {
        "racks": bound | {("shop", "web-4")}
    }
    assert store.snapshot(replace(focus, whole_maintenances=False)).no_go_machines == {}


def test_a_snapshot_has_the_other_scopes_of_waves_if_there_are_windows(store: Store) -> None:
    """A wave may wait for the window of a scope that the decision is not about."""
    store.apply(change(scopes=[scope("shop"), scope("blog"), scope("desk")]))
    events = [event("E1"), event("E2", scope="blog", position=1), event("E3", scope="desk", position=2, ended=at(1))]
    events[2] = replace(events[2], status=Status.CANCELLED)
    expect = [(name, 1) for name in ("blog", "desk", "shop")]
    store.apply(change(maintenances=[maintenance("M1")], events=events, expect=expect))
    focus = Focus(scopes=("shop",))
    assert store.snapshot(focus).other_scopes == {}
    store.apply(replace(change(), fleet_rules=FleetRules(windows={"nights": NIGHTS})))
    found = store.snapshot(focus)
    assert found.scopes.keys() == {"shop"}
    assert found.other_scopes == {"blog": saved_scope(store, "blog")}
    assert store.snapshot(replace(focus, whole_maintenances=False)).other_scopes == {}


def test_only_one_of_two_reservations_is_saved(store: Store) -> None:
    """A wave published under a limit of the fleet relies on the number of reservations before it."""
    store.apply(replace(change(), reservations=0))
    with pytest.raises(Conflict, match="another wave was published"):
        store.apply(replace(change(), reservations=0))
    store.apply(replace(change(), fleet_rules=FleetRules(max_hosts_down=1)))
    assert store.fleet_rules() == FleetRules(max_hosts_down=1, version=1, reservations=1)


def test_a_snapshot_counts_the_machines_of_scopes_that_limit_a_share(store: Store) -> None:
    """A share of the machines depends on their number; a number does not."""
    scopes = (
        scope("ship", max_unavailable="10%"),
        scope("shop", max_unavailable="50%"),
        scope("blog", max_unavailable="2"),
    )
    machines = tuple(
        machine(name, scope=of) for of, name in (("ship", "a"), ("ship", "b"), ("shop", "a"), ("blog", "a"))
    )
    store.apply(replace(change(), scopes=scopes, machines=machines, expect=tuple((s.name, 0) for s in scopes)))
    focus = Focus(scopes=("ship", "shop", "blog"))
    assert store.snapshot(focus).machine_counts == {"ship": 2, "shop": 1}
    assert store.snapshot(replace(focus, whole_maintenances=False)).machine_counts == {}


def test_what_is_down_in_the_fleet_is_counted(store: Store) -> None:
    """Machines in published and started events count once each; hosts while their work may go on or their turn has begun."""
    assert store.fleet_use() == FleetUse()
    by_host = replace(maintenance("M2", targets=Targets(scope="shop")), strategy=Strategy(group_by="host"))
    by_rack = replace(maintenance("M3", targets=Targets(scope="shop")), strategy=Strategy(group_by="label:rack"))
    hosts = maintenance("M1", host_mode=HostMode.EVACUATE, targets=Targets(hosts=("kvm-1",)))
    states = {
        "kvm-1": OrderState.PLANNED,
        "kvm-2": OrderState.PLANNED,
        "kvm-3": OrderState.FAILED,
        "kvm-4": OrderState.DONE,
        "kvm-5": OrderState.PLANNED,
    }
    store.apply(
        change(
            scopes=[scope(), scope("ship")],
            maintenances=[hosts, by_host, by_rack],
            events=[
                event("E1", "M1", status=Status.COMPLETED, host="kvm-1"),
                event("E2", "M1", status=Status.PLANNED, host="kvm-2", position=1),
                event("E3", "M1", status=Status.COMPLETED, host="kvm-4", position=2),
                event("E8", "M1", status=Status.CANCELLED, host="kvm-5", position=3),
                event("E4", "M2", group="kvm-7", resources=("web-0", "web-1")),
                event("E5", "M2", status=Status.PLANNED, group="kvm-8", position=1),
                event("E6", "M3", status=Status.STARTED, group="a3", resources=("web-1",)),
                event("E7", "M3", scope="ship", group="a3", resources=("web-1",), position=1),
            ],
            orders=[
                order("E6"),
                *(
                    host_order(f"H{n}", host=host, state=state, position=n)
                    for n, (host, state) in enumerate(states.items())
                ),
            ],
        )
    )
    down = frozenset({("M1", "kvm-1"), ("M1", "kvm-3"), ("M2", "kvm-7")})
    use = FleetUse(machines=3, hosts=down, events=("E4", "E6", "E7"))
    assert store.fleet_use() == use
    assert store.snapshot(Focus()).fleet_use == FleetUse()
    store.apply(replace(change(), fleet_rules=FleetRules(max_machines_down=9)))
    assert store.snapshot(Focus()).fleet_use == use
    assert store.snapshot(Focus(whole_maintenances=False)).fleet_use == FleetUse()


@pytest.mark.parametrize("budget", [0, 1])
@pytest.mark.parametrize("what", ["event", "host"])
def test_what_is_up_again_wakes_those_that_wait_for_the_budget(store: Store, budget: int, what: str) -> None:
    """In the same transaction, and with a new number of reservations: whoever begins to wait meanwhile decides again."""
    waiting = replace(maintenance("M2"), waits_for_budget=True)
    others = [maintenance("M3"), ended(replace(waiting, id="M4"), at(1))]
    store.apply(
        change(
            scopes=[scope()],
            maintenances=[maintenance("M1"), waiting, *others],
            events=[event("E1", "M1"), event("E2", "M1", status=Status.PLANNED, position=1)],
            orders=[host_order("H1", maintenance_id="M1")],
        )
    )
    store.apply(replace(change(), fleet_rules=FleetRules(max_hosts_down=budget)))
    for each in store.due(at(9), 9):
        known = store.maintenance(each)
        assert known is not None
        store.apply(change(maintenances=[replace(known, wake_at=None)]))
    planned = event("E2", "M1", status=Status.CANCELLED, position=1, published=None, not_before=None)
    store.apply(change(events=[planned], orders=[host_order("H1", state=OrderState.OPEN)]))
    assert (store.due(at(9), 9), store.fleet_rules().reservations) == ([], 0)
    if what == "event":
        freed = change(events=[event("E1", "M1", status=Status.CANCELLED)])
    else:
        freed = change(orders=[host_order("H1", state=OrderState.DONE)])
    store.apply(replace(freed, at=at(5)))
    assert (store.due(at(9), 9), store.fleet_rules().reservations) == (["M2"], budget)


@pytest.mark.parametrize("budget", [0, 1])
def test_what_never_waits_for_a_budget_is_counted_and_wakes_nobody(store: Store, budget: int) -> None:
    """Whoever publishes a wave meanwhile decides again. An event that waits for budgets is counted by its own reservation."""
    store.apply(replace(change(scopes=[scope()]), fleet_rules=FleetRules(max_machines_down=budget)))
    store.apply(change(maintenances=[maintenance("M1"), replace(maintenance("M2"), waits_for_budget=True)]))
    store.apply(change(events=[event("E1", "M1", emergency=True)]))
    assert (store.due(at(9), 9), store.fleet_rules().reservations) == ([], budget)
    store.apply(change(events=[event("E2", "M1", position=1)]))
    assert store.fleet_rules().reservations == budget
