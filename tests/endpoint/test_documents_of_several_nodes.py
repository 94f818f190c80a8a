"""Documents in memory while other nodes change the store: stale ones are refused, newer tags are looked up."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Actor, Machine, Scope, ScopeKind
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.last_seen import LastSeen
from forewarn.service.clock import ManualClock
from forewarn.store import FeedUpdate, Focus, MachineIdentity, MachineLastSeen
from forewarn.store.memory import MemoryStore
from tests.support.guest_service import START, WEB_0, WEB_1, Serving, body, get, serving, status
from tests.support.records import event
from tests.support.services import OPERATOR, make_service
from tests.support.several_nodes import feed_update
from tests.support.waiting import PATIENCE_S, until

SHOP = Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)


@contextmanager
def serving_beside_others() -> Iterator[Serving]:
    """Serve as one node of several: its documents grow stale after 20 s without word from the store."""
    with serving() as served:
        served.server.documents._max_stale_s = 20
        yield served


def machine(name: str, *addresses: str, scope: str = "shop") -> Machine:
    return Machine(scope=scope, name=name, addresses=addresses)


class SlowMachineList(MemoryStore):
    """A store whose list of machines takes long: `meanwhile` runs after it was read and before it is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def machine_identities(self) -> Iterator[MachineIdentity]:
        listed = list(super().machine_identities())
        self.meanwhile()
        yield from listed


def save(store: MemoryStore, **what: tuple[object, ...]) -> Change:
    change = Change(at=START, **what)  # type: ignore[arg-type]
    store.apply(change)
    return change


def loaded_documents(store: MemoryStore) -> Documents:
    documents = Documents(store, ManualClock(START), max_stale_s=20)
    documents.load()
    return documents


def whole_fleet_update(number: int = 1) -> FeedUpdate:
    return replace(feed_update(number), everything=True)


def names_by_address(documents: Documents) -> dict[str, str]:
    return {address: caller.name for address, caller in documents.callers.by_key.items()}


# -- documents that are too old


def test_stale_documents_are_refused_for_remembered_and_parsed_requests() -> None:
    """Stale: 503 for every poll. Fresh again: 200."""
    with serving_beside_others() as served:
        client = served.client()
        for _ in range(4):
            assert status(client.ask(get())) == 200
        assert served.endpoint.counters.remembered > 0
        served.server.documents.fresh_until_s = time.monotonic() - 1
        for _ in range(4):
            answer = client.ask(get())
            assert (status(answer), body(answer)) == (503, b'{"error":"Service unavailable"}')
            assert b"Retry-After: 1" in answer
        assert status(client.ask(get("/nowhere"))) == 404
        served.server.documents.follow(feed_update(1))
        assert status(client.ask(get())) == 200


def test_documents_grow_stale_from_the_moment_they_were_read() -> None:
    """A node whose database fails right after the start does not stay fresh for ever; a node without others does."""
    store, now_s = MemoryStore(), 1_000.0
    documents = Documents(store, ManualClock(START), max_stale_s=20, monotonic=lambda: now_s)
    documents.load()
    assert (documents.stale(now_s + 20), documents.stale(now_s + 20.1)) == (False, True)
    alone = Documents(store, ManualClock(START))
    alone.load()
    assert not alone.stale(1e9)


def test_reading_the_clock_does_not_make_stale_documents_fresh() -> None:
    """A poll reuses the time of the present second; another reader of the clock must not prolong that."""
    with serving_beside_others() as served:
        client, documents = served.client(), served.server.documents
        for _ in range(4):
            assert status(client.ask(get())) == 200
        assert served.endpoint.counters.remembered > 0
        documents.fresh_until_s = time.monotonic() + 0.05
        until(lambda: documents.stale(time.monotonic()))
        documents.now()
        assert status(client.ask(get())) == 503
        documents.follow(feed_update(1))
        assert status(client.ask(get())) == 200


# -- tags that this node did not give


def test_a_newer_tag_makes_the_node_read_the_scope() -> None:
    """A guest with a newer tag saw another node's document; this holds for remembered requests too."""
    with serving_beside_others() as served:
        client, another = served.client(), served.client(WEB_1)
        client.ask(get())
        documents = served.server.documents
        tag = get("/metadata/scheduledevents?api-version=2020-07-01", 'If-None-Match: "2"')
        assert [status(another.ask(tag)) for _ in range(3)] == [200] * 3  # no node has it: our document is the answer
        served.service.control._listeners.clear()  # from here on another node changes it, unknown to this one
        served.reboot("shop", "web-0")
        assert documents.views["shop"].state.etag == '"1"'
        assert status(client.ask(tag)) == 304
        assert documents.views["shop"].state.etag == '"2"'
        served.reboot("shop", "web-1")
        assert status(client.ask(tag)) == 304  # "2" is what we have: nothing is read
        served.store.away = True
        newer = get("/metadata/scheduledevents?api-version=2020-07-01", 'If-None-Match: "3"')
        assert status(client.ask(newer)) == 503  # any document could be older than the guest's


@pytest.mark.parametrize("tag", ['"1"', '"0"', '"x"', "null", '"2-0"', '"' + "9" * 19 + '"', '"1-1"'])
def test_malformed_and_older_tags_read_nothing(tag: str) -> None:
    """The store is away, and the poll is answered all the same."""
    with serving_beside_others() as served:
        client = served.client(WEB_0)
        client.ask(get())
        served.store.away = True
        url = "/metadata/scheduledevents?api-version=2020-07-01"
        assert status(client.ask(get(url, f"If-None-Match: {tag}"))) in (200, 304)


def test_many_newer_tags_read_the_scope_once() -> None:
    """A scope that was read after a request had come need not be read for that request again."""
    with serving_beside_others() as served:
        served.client().ask(get())
        documents, view = served.server.documents, served.server.documents.views["shop"]
        sent_s = time.monotonic()
        documents.read_again(view, sent_s)
        served.store.away = True
        documents.read_again(view, sent_s)
        with pytest.raises(StoreUnavailable):
            documents.read_again(view, time.monotonic())


def test_a_forged_tag_reads_the_scope_once() -> None:
    """One machine's forged tag is looked up once, and again when document or tag change; tags of others still are."""
    with serving_beside_others() as served:
        forged = get("/metadata/scheduledevents?api-version=2020-07-01", f'If-None-Match: "{"9" * 18}"')
        client, another = served.client(WEB_0), served.client(WEB_1)
        assert [status(each.ask(get())) for each in (client, another)] == [200, 200]
        assert status(client.ask(forged)) == 200
        served.store.away = True
        assert [status(client.ask(forged)) for _ in range(4)] == [200] * 4
        assert status(another.ask(forged)) == 503
        assert status(client.ask(forged.replace(b"999", b"998"))) == 503
        served.store.away = False
        served.reboot("shop", "web-0")
        served.store.away = True
        assert status(client.ask(forged)) == 503


# -- what another node saved


def test_a_repeated_approval_is_answered_after_this_node_caught_up() -> None:
    """Approving what another node cancelled saves nothing; after the answer this node's guests see that the event is gone."""
    with serving_beside_others() as served:
        served.client().ask(get())
        control, documents = served.service.control, served.server.documents
        control.listen_to_unchanged(documents.catch_up)
        served.reboot("shop", "web-0")
        (event,) = documents.views["shop"].state.events
        control._listeners.clear()  # from here on another node acts, unknown to this one
        control.cancel_maintenance(event.maintenance_id, Actor("operator of another node"))
        assert len(documents.views["shop"].state.events) == 1
        control.approve("shop", "web-0", [event.id], Actor("shop/web-0"))  # "ended: 200, nothing changes"
        assert len(documents.views["shop"].state.events) == 0


def test_a_scope_enabled_by_another_node_keeps_its_incarnation() -> None:
    """The first poll at this node gets the document that the scope's guests got from the other node."""
    with serving_beside_others() as served:
        listeners = list(served.service.control._listeners)
        served.service.control._listeners.clear()
        served.service.control.enable("shop", Actor("another node"))
        served.reboot("shop", "web-0")
        served.service.control._listeners.extend(listeners)
        answer = served.client().ask(get())
        assert b'"DocumentIncarnation":2' in body(answer)


def test_changes_are_shown_while_the_whole_fleet_is_read() -> None:
    """What is saved during the read is shown at once and stays, because the list was read before it."""
    store = SlowMachineList()
    before = (machine("moves", "10.0.0.1"), machine("goes", "10.0.0.2"))
    save(store, scopes=(SHOP,), machines=before)
    documents = loaded_documents(store)
    shown: list[dict[str, str]] = []

    def others() -> None:
        moved = save(store, machines=(machine("moves", "10.0.0.9"), machine("comes", "10.0.0.3")))
        gone = save(store, removed_machines=(("shop", "goes"),))
        new = save(
            store,
            scopes=(Scope(name="new", kind=ScopeKind.STANDALONE),),
            machines=(machine("n", "10.0.0.4", scope="new"),),
        )
        for change in (moved, gone, new):
            documents.on_change(change)
        shown.append(names_by_address(documents))

    def meanwhile() -> None:
        thread = threading.Thread(target=others, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)

    store.meanwhile = meanwhile
    documents.follow(whole_fleet_update())
    after = {"10.0.0.9": "moves", "10.0.0.3": "comes", "10.0.0.4": "n"}
    assert shown == [after]
    assert names_by_address(documents) == after
    assert set(documents.views) == {"shop", "new"}


def test_a_read_of_the_whole_fleet_finds_every_change() -> None:
    """Machines and scopes that were added, moved and removed are as in the store; an unchanged machine keeps its record."""
    store = MemoryStore()
    stays = machine("stays", "10.0.0.5", "10.0.0.6")
    save(store, scopes=(SHOP,), machines=(stays, machine("a", "10.0.0.1"), machine("b", "10.0.0.2")))
    save(store, scopes=(Scope(name="old", kind=ScopeKind.STANDALONE),))
    documents = loaded_documents(store)
    record = documents.callers.named("shop", "stays")
    save(store, removed_scopes=("old",), removed_machines=(("shop", "b"),), machines=(machine("a", "10.0.0.2"),))
    save(
        store, scopes=(Scope(name="new", kind=ScopeKind.STANDALONE),), machines=(machine("n", "10.0.0.1", scope="new"),)
    )
    documents.follow(whole_fleet_update())
    assert names_by_address(documents) == {"10.0.0.5": "stays", "10.0.0.6": "stays", "10.0.0.2": "a", "10.0.0.1": "n"}
    assert set(documents.views) == {"shop", "new"}
    assert documents.callers.named("shop", "stays") is record


def test_a_late_call_does_not_undo_a_change_of_another_node() -> None:
    """Our change is saved, then another node's is saved and read, then our listener is called: the other's is shown."""
    store = MemoryStore()
    save(store, scopes=(SHOP,))
    documents = loaded_documents(store)
    ours = save(store, machines=(machine("m", "10.0.0.1"),))
    save(store, machines=(machine("m", "10.0.0.2"), machine("other", "10.0.0.1")))
    documents.follow(replace(feed_update(1), machines=(("shop", "m"), ("shop", "other"))))
    documents.on_change(ours)
    assert names_by_address(documents) == {"10.0.0.2": "m", "10.0.0.1": "other"}


def test_a_late_call_does_not_remove_a_scope_made_again() -> None:
    """We removed a scope, another node made it again, and our listener is called late: the new scope stays."""
    store = MemoryStore()
    save(store, scopes=(SHOP,), machines=(machine("m", "10.0.0.1"),))
    documents = loaded_documents(store)
    ours = save(store, removed_machines=(("shop", "m"),), removed_scopes=("shop",))
    save(store, scopes=(SHOP,), machines=(machine("m", "10.0.0.1"),))
    documents.follow(
        replace(feed_update(1), scopes={"shop": 1}, removed=frozenset({"shop"}), machines=(("shop", "m"),))
    )
    view = documents.views["shop"]
    documents.on_change(ours)
    assert documents.views["shop"] is view
    caller = documents.callers.at("", "10.0.0.1")
    assert caller is not None
    assert caller.view is view


@pytest.mark.parametrize("by_the_ticker", [True, False])
def test_what_a_listener_could_not_read_is_read_later(by_the_ticker: bool) -> None:
    """Without a follower the ticker's next cycle reads it, or the next change of anything."""
    with serving() as served:
        documents, control = served.server.documents, served.service.control
        apply, first = served.store.apply, [True]

        def apply_and_go(change: Change) -> None:
            apply(change)
            served.store.away = first.pop() if first else False

        served.store.apply = apply_and_go  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="this node cannot show it yet"):
            control.put_scope(Scope(name="late", kind=ScopeKind.STANDALONE), OPERATOR)
        assert "late" not in documents.views
        assert documents.next_due() == START
        served.store.away = False
        if by_the_ticker:
            served.service.ticker.cycle()
        else:
            control.put_scope(Scope(name="another", kind=ScopeKind.STANDALONE), OPERATOR)
        assert documents.views["late"].state.scope == served.store.scopes()["late"]
        assert documents.next_due() is None


def test_a_change_of_a_known_scope_is_shown_without_a_read() -> None:
    """If memory has the version before a change, it takes in the changed events; else it reads the scope."""
    for max_stale_s, epoch, reads in ((None, 0, 0), (None, 1, 0), (20, 1, 0), (20, 0, 1)):
        store = MemoryStore()
        save(store, scopes=(replace(SHOP, enabled=epoch > 0, epoch=epoch),))
        documents = Documents(store, ManualClock(START), max_stale_s=max_stale_s)
        documents.load()
        read: list[Focus] = []
        snapshot = store.snapshot
        store.snapshot = lambda focus, read=read, snapshot=snapshot: read.append(focus) or snapshot(focus)  # type: ignore
        documents.on_change(save(store, scopes=(replace(store.scopes()["shop"], incarnation=2),)))
        assert documents.views["shop"].state.scope == store.scopes()["shop"]
        assert len(read) == reads


def test_a_change_after_lost_commits_is_read() -> None:
    """A failover began a new epoch: memory has the same version with lost events, and reads the scope again."""
    store = MemoryStore()
    save(store, scopes=(replace(SHOP, enabled=True, epoch=1),))
    documents = loaded_documents(store)
    lost = documents.views["shop"].state
    store._scopes["shop"] = replace(lost.scope, epoch=2)
    lost.events = (event("E1"),)
    documents.on_change(save(store, scopes=(store.scopes()["shop"],)))
    assert documents.views["shop"].state.events == ()
    assert documents.views["shop"].state.scope == store.scopes()["shop"]


def test_a_scope_removed_and_made_again_is_the_new_one() -> None:
    """Its version is lower than the known one, and it counts all the same."""
    store = MemoryStore()
    save(store, scopes=(SHOP,))
    for _ in range(3):
        save(store, scopes=tuple(store.scopes().values()))
    documents = Documents(store, ManualClock(START))
    documents.load()
    gone = save(store, removed_scopes=("shop",))
    again = save(store, scopes=(replace(SHOP, kind=ScopeKind.STANDALONE),))
    documents._pending.removed |= set(gone.removed_scopes)
    documents.on_change(again)
    assert documents.views["shop"].state.scope.kind is ScopeKind.STANDALONE


# -- scopes that no guest polls


def test_a_scope_is_idle_only_when_no_node_was_polled() -> None:
    """A time that another node recorded counts; when it is old as well, the scope is disabled."""
    store = MemoryStore()
    service = make_service(store, scopes=2)
    documents = Documents(store, service.clock, max_stale_s=20)
    documents.load()
    service.control.listen(documents.on_change)
    last_seen = LastSeen(documents, service.control, store, disable_after_s=3_600)
    seen_at = service.clock.now() + timedelta(minutes=50)
    store.record_last_seen([MachineLastSeen("s-0", "m", seen_at)])
    service.clock.move_to(service.clock.now() + timedelta(minutes=61))
    assert last_seen.do(service.clock.now()) == 1
    assert [name for name, scope in store.scopes().items() if scope.enabled] == ["s-0"]
    assert last_seen.next_due() == seen_at + timedelta(hours=1)
    service.clock.move_to(seen_at + timedelta(hours=1))
    assert last_seen.do(service.clock.now()) == 1


def test_an_idle_scope_that_was_removed_does_not_stop_the_others() -> None:
    """The other idle scopes are disabled, the removed one is forgotten, and nothing is due again."""
    store = MemoryStore()
    service = make_service(store, scopes=3)
    documents = loaded_documents(store)
    service.control.listen(documents.on_change)
    last_seen = LastSeen(documents, service.control, store, disable_after_s=3_600)
    save(store, removed_machines=(("s-1", "m"),), removed_scopes=("s-1",))
    service.clock.move_to(service.clock.now() + timedelta(hours=2))
    last_seen.do(service.clock.now())
    assert {name: view.state.enabled for name, view in documents.views.items()} == {"s-0": False, "s-2": False}
    assert last_seen.next_due() is None
