"""What a node has in memory and what the store has: whatever comes late, fails, or happens meanwhile, they end up the same."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import Machine, Scope, ScopeKind
from forewarn.endpoint.documents import Documents
from forewarn.endpoint.last_seen import LastSeen
from forewarn.service.clock import ManualClock
from forewarn.store import FeedUpdate, MachineIdentity
from forewarn.store.memory import MemoryStore
from tests.integration.nodes.test_parts import news, sharing
from tests.support.guest_service import START, WEB_0, WEB_1, get, serving, status
from tests.support.services import OPERATOR, make_service

SHOP = Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)


def machine(name: str, *addresses: str, scope: str = "shop") -> Machine:
    return Machine(scope=scope, name=name, addresses=addresses)


class SlowToTell(MemoryStore):
    """A store whose list of machines takes long: `meanwhile` happens after it was read and before it is told."""

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


def shared(store: MemoryStore) -> Documents:
    documents = Documents(store, ManualClock(START), max_stale_s=20)
    documents.load()
    return documents


def everything(number: int = 1) -> FeedUpdate:
    return replace(news(number), everything=True)


def known(documents: Documents) -> dict[str, str]:
    return {address: caller.name for (_, address), caller in documents.callers.by_address.items()}


# -- while a whole fleet is read


def test_no_bell_waits_for_a_whole_fleet() -> None:
    """What is saved while the fleet is read is shown at once, and stays: the list that was read before is older."""
    store = SlowToTell()
    before = (machine("moves", "10.0.0.1"), machine("goes", "10.0.0.2"))
    save(store, scopes=(SHOP,), machines=before)
    documents = shared(store)
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
        shown.append(known(documents))

    def meanwhile() -> None:
        thread = threading.Thread(target=others, daemon=True)
        thread.start()
        thread.join(5)

    store.meanwhile = meanwhile
    documents.follow(everything())
    after = {"10.0.0.9": "moves", "10.0.0.3": "comes", "10.0.0.4": "n"}
    assert shown == [after]
    assert known(documents) == after
    assert set(documents.views) == {"shop", "new"}


def test_a_whole_fleet_is_taken_in_though_nobody_told_of_it() -> None:
    """Machines that came, moved and went, and scopes that did, are as the store has them; who is as before keeps its record."""
    store = MemoryStore()
    stays = machine("stays", "10.0.0.5", "10.0.0.6")
    save(store, scopes=(SHOP,), machines=(stays, machine("a", "10.0.0.1"), machine("b", "10.0.0.2")))
    save(store, scopes=(Scope(name="old", kind=ScopeKind.STANDALONE),))
    documents = shared(store)
    record = documents.callers.named("shop", "stays")
    save(store, removed_scopes=("old",), removed_machines=(("shop", "b"),), machines=(machine("a", "10.0.0.2"),))
    save(
        store, scopes=(Scope(name="new", kind=ScopeKind.STANDALONE),), machines=(machine("n", "10.0.0.1", scope="new"),)
    )
    documents.follow(everything())
    assert known(documents) == {"10.0.0.5": "stays", "10.0.0.6": "stays", "10.0.0.2": "a", "10.0.0.1": "n"}
    assert set(documents.views) == {"shop", "new"}
    assert documents.callers.named("shop", "stays") is record


# -- a bell that comes late


def test_a_late_bell_does_not_put_back_what_another_node_changed() -> None:
    """Ours is saved, another's is saved and followed, and only then our bell is heard: memory shows the other's."""
    store = MemoryStore()
    save(store, scopes=(SHOP,))
    documents = shared(store)
    ours = save(store, machines=(machine("m", "10.0.0.1"),))
    save(store, machines=(machine("m", "10.0.0.2"), machine("other", "10.0.0.1")))
    documents.follow(replace(news(1), machines=(("shop", "m"), ("shop", "other"))))
    documents.on_change(ours)
    assert known(documents) == {"10.0.0.2": "m", "10.0.0.1": "other"}


def test_a_late_bell_does_not_remove_what_another_node_made_again() -> None:
    """The scope we removed came again and was followed: its view is the one its machines have, and stays."""
    store = MemoryStore()
    save(store, scopes=(SHOP,), machines=(machine("m", "10.0.0.1"),))
    documents = shared(store)
    ours = save(store, removed_machines=(("shop", "m"),), removed_scopes=("shop",))
    save(store, scopes=(SHOP,), machines=(machine("m", "10.0.0.1"),))
    documents.follow(replace(news(1), scopes={"shop": 1}, removed=frozenset({"shop"}), machines=(("shop", "m"),)))
    view = documents.views["shop"]
    documents.on_change(ours)
    assert documents.views["shop"] is view
    caller = documents.callers.at("", "10.0.0.1")
    assert caller is not None
    assert caller.view is view


# -- a bell that fails


@pytest.mark.parametrize("by_the_ticker", [True, False])
def test_what_a_bell_could_not_read_is_read_later(by_the_ticker: bool) -> None:
    """Where nobody follows, the ticker's next cycle makes up for it, or the next bell of anything else."""
    with serving() as served:
        documents, control = served.server.documents, served.service.control
        apply, first = served.store.apply, [True]

        def apply_and_go(change: Change) -> None:
            apply(change)
            served.store.away = first.pop() if first else False

        served.store.apply = apply_and_go  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="this node cannot show it yet"):
            control.put_machine(machine("late", "127.0.0.77"), OPERATOR)
        assert documents.callers.at("", "127.0.0.77") is None
        assert documents.next_due() == START
        served.store.away = False
        if by_the_ticker:
            served.service.ticker.cycle()
        else:
            control.put_scope(Scope(name="another", kind=ScopeKind.STANDALONE), OPERATOR)
        assert documents.callers.at("", "127.0.0.77") is documents.callers.named("shop", "late") is not None
        assert documents.next_due() is None


def test_a_scope_whose_removal_was_not_heard_and_that_came_again_is_the_new_one() -> None:
    """Its version is lower than what is known, and yet it is what is there."""
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


# -- scopes that fall silent, and one that is gone


def test_a_silent_scope_that_another_node_removed_does_not_keep_the_others() -> None:
    """The rest is disabled, the one that is gone is forgotten, and nobody tries again at once."""
    store = MemoryStore()
    service = make_service(store, scopes=3)
    documents = shared(store)
    service.control.listen(documents.on_change)
    attendance = LastSeen(documents, service.control, store, disable_after_s=3_600)
    save(store, removed_machines=(("s-1", "m"),), removed_scopes=("s-1",))
    service.clock.move_to(service.clock.now() + timedelta(hours=2))
    attendance.do(service.clock.now())
    assert {name: view.state.enabled for name, view in documents.views.items()} == {"s-0": False, "s-2": False}
    assert attendance.next_due() is None


# -- a tag that nobody gave


def test_a_forged_tag_costs_one_look() -> None:
    """It is looked after once, and again when the document or the tag is another; everybody else's still is."""
    with sharing() as served:
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
