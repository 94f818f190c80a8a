"""The bookkeeping behind every verb: versions, incarnations, wake-ups, the audit. No rule should do it by hand."""

from dataclasses import replace
from typing import Any

import pytest

from forewarn.core.change import Snapshot
from forewarn.core.draft import Draft
from forewarn.core.errors import InvariantBroken
from forewarn.core.model import Approval, EventType, Host, Source, Status, Targets
from forewarn.core.order_verbs import Outcome
from forewarn.core.transitions import Verb
from tests.support.builders import (
    OPERATOR,
    START,
    at,
    event,
    guid,
    maintenance,
    request,
    scope,
    shop,
    two_scopes,
)

# -- versions


def test_a_decision_names_every_scope_it_relied_on() -> None:
    """Every scope that was read must still have its version when the change is saved, in name order."""
    world = two_scopes()
    _, change = world.submit_request(request("shop/web-0"))
    assert change.expect == (("ship", 1), ("shop", 1))


def test_only_touched_scopes_are_written() -> None:
    """A scope that was read but not touched keeps its version."""
    world = two_scopes()
    _, change = world.submit_request(request("shop/web-0"))
    assert change.at == START
    assert [(s.name, s.version, s.changed) for s in change.scopes] == [("shop", 1, START)]
    assert (world.scope("shop").version, world.scope("ship").version) == (2, 1)


def test_an_order_alone_touches_its_scope() -> None:
    """Taking or failing an order changes no document, but raises the scope's version, so that two nodes cannot both do it."""
    world = shop()
    (started,) = world.submit("shop/web-0")
    world.start(started.id)
    change = world.take(started.id)
    assert [(s.name, s.incarnation) for s in change.scopes] == [("shop", 3)]
    assert change.expect == (("shop", 3),)
    assert change.events == ()


def test_a_moved_machine_touches_its_scope() -> None:
    """Writing or removing a machine raises the version of its scope."""
    world = shop()
    (started,) = world.submit("shop/web-0")
    world.start(started.id)
    change = world.report(started.id, Outcome(ok=True, new_hosts={("shop", "web-0"): "h2"}))
    assert [s.name for s in change.scopes] == ["shop"]


def test_only_differences_are_written() -> None:
    """A change contains what is new or different, and nothing else."""
    draft = Draft(Snapshot(scopes={"shop": scope()}, events={guid(1): event()}), START, OPERATOR)
    draft.put(event())
    draft.put_scope(scope())
    change = draft.change()
    assert change.empty
    assert change.expect == (("shop", 0),)


def test_an_approval_with_anything_beside_it_relies_on_versions() -> None:
    """Only a change of approvals alone relies on no version."""
    before = Snapshot(
        scopes={"shop": scope(version=7)}, maintenances={guid(900): maintenance()}, events={guid(1): event()}
    )
    drafts = [Draft(before, START, OPERATOR) for _ in range(3)]
    for draft in drafts:
        draft.approve(event(), Approval(event_id=guid(1), machine="web-0", who="x", at=START))
    drafts[1].put_scope(scope(version=7, max_user_operations=1))
    drafts[2].put_maintenance(maintenance(paused=True))
    assert [draft.change().expect for draft in drafts] == [(), (("shop", 7),), (("shop", 7),)]


def test_a_changed_host_is_written_with_the_version_it_was_read_at() -> None:
    """A host without a row counts as a host with nothing but a name, and touches no scope when it gets one."""
    known, same = Host(name="h1", listed=True, version=3), Host(name="h2", version=1)
    draft = Draft(Snapshot(scopes={"shop": scope()}, hosts={"h1": known, "h2": same}), START, OPERATOR)
    assert (draft.host("h1"), draft.host("h9")) == (known, Host(name="h9"))
    draft.put_host(replace(draft.host("h1"), cordoned=START))
    draft.put_host(Host(name="h2", version=1))
    draft.put_host(replace(draft.host("h9"), cordoned=START, cordoned_by=guid(900)))
    change = draft.change()
    assert change.hosts == (
        Host(name="h1", listed=True, cordoned=START, version=3),
        Host(name="h9", cordoned=START, cordoned_by=guid(900)),
    )
    assert change.scopes == ()
    assert not change.empty


# -- incarnations


def test_the_incarnation_grows_by_one_however_much_happened() -> None:
    """A transaction that changes the visible document raises the incarnation by one, for one event or for three."""
    world = shop(domains=3)
    world.submit(targets=Targets(scope="shop"), source=Source.USER)
    assert world.scope().incarnation == 2


def test_the_incarnation_stays_when_guests_see_nothing_new() -> None:
    """Approvals, orders, pauses and cancelled plans change no document."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", "shop/web-1")
    world.approve("shop/web-0", first.id)
    world.pause(first.maintenance_id)
    world.resume(first.maintenance_id)
    world.cancel_event(second.id)
    assert world.scope().incarnation == 2


def test_each_step_of_an_events_life_is_one_incarnation() -> None:
    """An event appears, changes status, disappears: three steps."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    seen = [world.scope().incarnation]
    world.start(event.id)
    seen.append(world.scope().incarnation)
    world.finish(event.id)
    seen.append(world.scope().incarnation)
    assert seen == [2, 3, 4]


def test_each_scope_has_its_own_incarnation() -> None:
    """A wave in two scopes changes both documents, an event of one scope only that scope's."""
    world = two_scopes()
    world.submit("shop/web-0", "ship/web-0")
    world.submit("shop/web-0", source=Source.USER)
    assert (world.scope("shop").incarnation, world.scope("ship").incarnation) == (3, 2)


def test_a_change_that_breaks_an_invariant_is_refused() -> None:
    """The invariants are checked before a change can be saved."""
    before = Snapshot(
        scopes={"shop": scope()},
        maintenances={guid(900): maintenance()},
        events={guid(1): event(status=Status.STARTED)},
    )
    draft = Draft(before, START, OPERATOR)
    draft.put(replace(event(), status=Status.PLANNED))
    with pytest.raises(InvariantBroken):
        draft.change()


def test_approvals_are_checked_too() -> None:
    """A second approval of the same machine breaks an invariant."""
    before = Snapshot(scopes={"shop": scope()}, maintenances={guid(900): maintenance()}, events={guid(1): event()})
    draft = Draft(before, START, OPERATOR)
    for _ in range(2):
        draft.approve(draft.events[guid(1)], Approval(event_id=guid(1), machine="web-0", who="x", at=START))
    with pytest.raises(InvariantBroken, match="invariant 9"):
        draft.change()


# -- which maintenances are woken


def test_an_ended_event_wakes_those_that_waited_for_it() -> None:
    """The end of an event wakes maintenances in the same scope that may be ready, and no others."""
    world = two_scopes()
    (first,) = world.submit("shop/web-0")
    (second,) = world.submit("shop/web-0", source=Source.USER)
    (unapproved,) = world.submit("shop/web-1", source=Source.USER)
    (elsewhere,) = world.submit("ship/web-0")
    world.start(first.id, second.id)
    change = world.finish(first.id)
    assert change.wakes == (first.maintenance_id, second.maintenance_id)
    assert unapproved.maintenance_id not in change.wakes
    assert elsewhere.maintenance_id not in change.wakes


@pytest.mark.parametrize(
    ("settings", "options", "woken"),
    [
        ({}, {}, False),  # its approval wakes it, or the end of its notice
        ({}, {"not_before": at(60)}, False),
        ({"enabled": False}, {}, True),  # it needs no approval
        ({"approve_user_events": True}, {"source": Source.USER, "type": EventType.REDEPLOY}, True),
    ],
)
def test_only_what_may_be_ready_is_woken(settings: dict[str, Any], options: dict[str, Any], woken: bool) -> None:
    """An event that lacks its own approval and notice does not wait for another event."""
    world = shop(domains=1, **settings)
    (first,) = world.submit("shop/web-0", source=Source.USER)
    world.start(first.id)
    assert world.status(first.id) is Status.STARTED
    (waiting,) = world.submit("shop/web-0", **options)
    assert (waiting.maintenance_id in world.finish(first.id).wakes) is woken


def test_an_event_past_its_notice_is_woken() -> None:
    """Its notice has ended while another event held it back."""
    world = shop(domains=2)
    (first,) = world.submit("shop/web-0")
    (waiting,) = world.submit("shop/web-1")
    world.start(first.id)
    assert waiting.maintenance_id not in world.fail(first.id).wakes
    world.tick_at(16)
    assert waiting.maintenance_id in world.resolve_failure(first.id, Verb.ABANDON).wakes


def test_an_event_that_was_ready_is_woken_after_the_clock_is_set_back() -> None:
    """Its maintenance has no `wake_at` of its own, so only the end of the other event can wake it."""
    world = shop(domains=2)
    (first,) = world.submit("shop/web-0")
    (waiting,) = world.submit("shop/web-1")
    world.start(first.id)
    world.tick_at(16)
    assert world.maintenance(waiting.id).wake_at is None
    world.now = at(1)
    assert waiting.maintenance_id in world.finish(first.id).wakes
    world.tick()
    assert world.maintenance(waiting.id).wake_at is not None


def test_a_published_event_wakes_no_other_maintenance() -> None:
    """Publishing an event holds back no other event."""
    world = two_scopes()
    world.submit("shop/web-0")
    _, change = world.submit_request(request("shop/web-0", source=Source.USER))
    assert change.wakes == ()


def test_an_ended_event_wakes_no_started_event() -> None:
    """A started event waits only for its own order."""
    world = shop(domains=2)
    first, second = world.submit("shop/web-0", source=Source.USER) + world.submit("shop/web-1", source=Source.USER)
    world.start(first.id, second.id)
    assert world.finish(first.id).wakes == (first.maintenance_id,)


def test_a_started_event_wakes_those_that_queued_behind_it() -> None:
    """A wave that starts leaves the queue: later waves of its scope are woken."""
    world = shop(domains=2)
    (waiting,) = world.submit("shop/web-0")
    world.approve_as_operator(waiting.id)
    _, change = world.submit_request(request("shop/web-1", emergency=True))
    assert change.wakes == (waiting.maintenance_id,)


def test_a_pause_wakes_those_that_queued_behind_it() -> None:
    """Scopes in which the paused maintenance has no unstarted event are not concerned."""
    world = two_scopes()
    ship, shop_0, _ = world.submit("ship/web-0", "shop/web-0", "shop/web-1")
    world.start(ship.id, shop_0.id)
    world.finish(shop_0.id)
    world.tick()
    (in_ship,) = world.submit("ship/web-1", source=Source.USER)
    (in_shop,) = world.submit("shop/web-1", source=Source.USER)
    world.approve_as_operator(in_ship.id)
    world.approve_as_operator(in_shop.id)
    change = world.pause(ship.maintenance_id)
    assert change.wakes == (in_shop.maintenance_id,)
    assert in_ship.maintenance_id not in change.wakes


def test_a_failure_and_its_end_wake_those_that_wait_in_the_scope() -> None:
    """A failed order, or its retry, may add a wave to the queue or remove one."""
    world = shop(domains=2)
    (first,) = world.submit("shop/web-0")
    world.start(first.id)
    (waiting,) = world.submit("shop/web-1")
    world.approve_as_operator(waiting.id)
    both = (first.maintenance_id, waiting.maintenance_id)
    assert world.fail(first.id).wakes == both
    assert world.resolve_failure(first.id, Verb.RETRY).wakes == both


def test_a_taken_order_wakes_its_maintenance() -> None:
    """Only the maintenance of the order needs its new deadline."""
    world = shop()
    (first,) = world.submit("shop/web-0")
    world.start(first.id)
    world.submit("shop/web-1", source=Source.USER)
    assert world.take(first.id).wakes == (first.maintenance_id,)


def test_a_tick_does_not_wake_what_it_has_just_advanced() -> None:
    """A maintenance advanced in this change has its new wake_at: waking it again would be a loop."""
    world = shop(domains=2)
    world.submit("shop/web-0")
    world.submit("shop/web-1")
    assert world.tick_at(15).wakes == ()


# -- the audit


def test_the_audit_says_who_what_when_and_from_where() -> None:
    """An entry about an event names its scope and maintenance too."""
    world = shop()
    (event,) = world.submit("shop/web-0")
    world.now = at(4)
    (entry,) = world.cancel_event(event.id).audit
    assert (entry.who, entry.origin, entry.at, entry.action) == ("alice", "console", at(4), "event cancelled")
    assert (entry.scope, entry.maintenance_id, entry.event_id) == ("shop", event.maintenance_id, event.id)
    assert entry.detail == "cancelled by alice"


def test_an_entry_about_a_maintenance_names_no_event() -> None:
    """An audit entry about a whole maintenance names no event."""
    world = shop()
    _, change = world.submit_request(request("shop/web-0"))
    submitted, published = change.audit
    assert (submitted.maintenance_id, submitted.event_id, submitted.scope) == (guid(1), "", "")
    assert submitted.detail == "Reboot by Platform"
    assert (published.maintenance_id, published.event_id, published.scope) == (guid(1), guid(2), "shop")
