"""What a node hears of the others: nothing is missed, whatever commits when; the bell is only a hint."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
import pytest

from forewarn.core.change import Change
from forewarn.core.errors import Conflict
from forewarn.endpoint.documents import Documents
from forewarn.service.clock import KeptClock, ManualClock
from forewarn.service.follower import GATHER_S
from forewarn.service.follower import Follower as NodeFollower
from forewarn.store import AuditQuery, Feed, FeedPosition, FeedUpdate
from forewarn.store.postgres.store import MAX_NAMED, PostgresStore
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED
from tests.support.records import at, change, entry, event, machine, maintenance, saved_scope, scope
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def address() -> str:
    return SHARED.emptied()


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    made = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    yield made
    made.close()


@pytest.fixture
def feed(store: PostgresStore) -> Iterator[Feed]:
    made = store.feed()
    yield made
    made.close()


@contextmanager
def open_transaction(address: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Return a transaction that takes long to commit."""
    with psycopg.connect(address) as connection:
        connection.execute("SET search_path = forewarn")
        yield connection


def write_change(connection: "psycopg.Connection[tuple[object, ...]]", name: str) -> None:
    connection.execute(
        "INSERT INTO changes (everything, scopes, machines) VALUES (false, jsonb_build_object(%s::text, 7), '[]')",
        [name],
    )


def test_a_change_is_told_once(store: PostgresStore, feed: Feed) -> None:
    """The first poll reports everything, each later one what changed, with its version, and each change once."""
    first = feed.poll(None, 0.0)
    assert first.everything
    store.apply(change(scopes=[scope()], machines=[machine()]))
    second = feed.poll(first.position, 0.0)
    assert (second.everything, second.scopes, second.machines) == (False, {"shop": 1}, (("shop", "web-0"),))
    third = feed.poll(second.position, 0.0)
    assert not third.changed
    assert (third.scopes, third.machines) == ({}, ())


def test_a_late_commit_is_not_missed(address: str, store: PostgresStore, feed: Feed) -> None:
    """A change that got its number before others, and commits after they were read, is read when it is there."""
    store.apply(change(scopes=[scope("blog")]))
    position = feed.poll(None, 0.0).position
    with open_transaction(address) as slow:
        write_change(slow, "late")
        store.apply(change(scopes=[scope("shop")]))
        early = feed.poll(position, 0.0)
        assert early.scopes == {"shop": 1}
        again = feed.poll(early.position, 0.0)
        assert not again.changed  # what was read of later transactions is not read twice
        slow.commit()
    late = feed.poll(again.position, 0.0)
    assert late.scopes == {"late": 7}
    assert not feed.poll(late.position, 0.0).changed


def test_the_bell_rings_at_the_commit(address: str, feed: Feed) -> None:
    """A waiting poll returns when another node saves a change, long before its time ends."""
    position = feed.poll(None, 0.0).position
    with closing(PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)) as other:
        timer = threading.Timer(0.2, lambda: other.apply(change(scopes=[scope()])))
        begun_s = time.monotonic()
        timer.start()
        news = feed.poll(position, PATIENCE_S)
        timer.join()
    assert news.sent_s - begun_s < PATIENCE_S
    assert news.scopes == {"shop": 1}


def test_the_bell_of_a_node_itself_wakes_nobody(store: PostgresStore, feed: Feed) -> None:
    """A poll goes on waiting after a change of its own node, which shows that change already, and reads it at its end."""
    position = feed.poll(None, 0.0).position
    store.apply(change(scopes=[scope()]))
    begun_s = time.monotonic()
    news = feed.poll(position, 0.3)
    assert news.sent_s - begun_s >= 0.3
    assert news.scopes == {"shop": 1}


def test_the_bells_of_two_nodes_are_told_apart(address: str, store: PostgresStore, feed: Feed) -> None:
    """Each node is woken by the changes of the other, also by one that has a feed itself."""
    position = feed.poll(None, 0.0).position
    with (
        closing(PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)) as other,
        closing(other.feed()) as other_feed,
    ):
        other_position = other_feed.poll(None, 0.0).position
        other.apply(change(scopes=[scope("blog")]))
        store.apply(change(scopes=[scope("shop")]))
        for each, since in ((feed, position), (other_feed, other_position)):
            begun_s = time.monotonic()
            news = each.poll(since, PATIENCE_S)
            assert news.sent_s - begun_s < PATIENCE_S
            assert news.scopes == {"blog": 1, "shop": 1}


def test_what_was_forgotten_means_everything(address: str, store: PostgresStore, feed: Feed) -> None:
    """A node that was away for longer than changes are kept reads the whole fleet; one that was not does not."""
    store.apply(change(scopes=[scope("shop")]))
    old = feed.poll(None, 0.0).position
    store.apply(change(scopes=[scope("blog")]))
    recent = feed.poll(old, 0.0).position
    with open_transaction(address) as connection:
        connection.execute("UPDATE changes SET at = at - interval '2 hours'")
    assert store.forget_changes(10) == 2
    assert not feed.poll(recent, 0.0).everything
    assert feed.poll(old, 0.0).everything
    assert store.forget_changes(10) == 0


def test_an_old_transaction_elsewhere_does_not_mean_everything() -> None:
    """A transaction of hours in another database delays no change, in a new schema and in an old one."""
    server = SHARED.server
    with psycopg.connect(server.address("postgres")) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        address = server.address(server.database())
        store = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
        feed = store.feed()
        first = feed.poll(None, 0.0)
        store.apply(change(scopes=[scope("shop")]))
        second = feed.poll(first.position, 0.0)
        assert (first.everything, second.everything, second.scopes) == (True, False, {"shop": 1})
        with open_transaction(address) as connection:
            connection.execute("UPDATE changes SET at = at - interval '2 hours'")
        assert store.forget_changes(10) == 0  # a node may have to read it again
        with open_transaction(address) as connection:  # as if it had been
            connection.execute("UPDATE cluster SET forgotten = pg_current_xact_id()")
        third = feed.poll(second.position, 0.0)
        fourth = feed.poll(third.position, 0.0)
        assert (third.everything, fourth.everything) == (True, False)
        assert not feed.poll(fourth.position, 0.0).changed
        slow.rollback()
        assert store.forget_changes(10) == 1
        feed.close()
        store.close()


@pytest.mark.parametrize("more", [0, 1])
def test_a_change_too_large_to_name_says_everything(store: PostgresStore, feed: Feed, more: int) -> None:
    """A row that names a million machines would help nobody."""
    position = feed.poll(None, 0.0).position
    store.apply(change(scopes=[scope(f"s{n}") for n in range(MAX_NAMED + more)]))
    news = feed.poll(position, 0.0)
    assert (news.everything, len(news.scopes)) == ((True, 0) if more else (False, MAX_NAMED))


def test_changes_during_a_pause_are_read_together(address: str, store: PostgresStore) -> None:
    """The follower reads the first change by itself and, after its pause, all that other nodes saved meanwhile at once."""
    with closing(PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)) as other:
        pauses: list[float] = []
        saved = iter((["first"], ["second", "third", "fourth"]))

        def save_during(pause_s: float) -> bool:
            pauses.append(pause_s)
            names = next(saved, [])
            for name in names:
                other.apply(change(scopes=[scope(name)]))
            return not names

        follower = NodeFollower(store.feed(), KeptClock(store.now), pause=save_during)
        follower.start()
        read: list[list[str]] = []
        follower.listen(lambda update: read.append(sorted(update.scopes)))
        follower.run()
    assert read == [["first"], ["fourth", "second", "third"]]
    assert pauses == [0.0, GATHER_S, GATHER_S]


# -- documents in memory


class Follower:
    """The documents of a node, which poll when the test says so."""

    def __init__(self, store: PostgresStore) -> None:
        self._feed = store.feed()
        self.position: FeedPosition = self._feed.poll(None, 0.0).position
        self.documents = Documents(store, ManualClock(at(0)), max_stale_s=20)
        self.documents.load()

    def poll(self) -> FeedUpdate:
        news = self._feed.poll(self.position, 0.0)
        self.documents.follow(news)
        self.position = news.position
        return news

    def close(self) -> None:
        self._feed.close()


@pytest.fixture
def node(store: PostgresStore) -> Iterator[Follower]:
    store.apply(change(scopes=[scope()], machines=[machine(addresses=("10.0.0.1",))]))
    made = Follower(store)
    yield made
    made.close()


def known(node: Follower) -> dict[str, str]:
    """Who is known by which address."""
    return {address: f"{c.scope}/{c.name}" for address, c in node.documents.callers.by_key.items()}


def test_machines_come_move_and_go(store: PostgresStore, node: Follower) -> None:
    """A fleet changed elsewhere is this node's fleet: new machines, addresses that change hands, machines that left."""
    assert known(node) == {"10.0.0.1": "shop/web-0"}
    store.apply(change(machines=[machine("web-1", addresses=("10.0.0.2",))]))
    node.poll()
    assert known(node) == {"10.0.0.1": "shop/web-0", "10.0.0.2": "shop/web-1"}
    swapped = [machine("web-0", addresses=("10.0.0.2",)), machine("web-1", addresses=("10.0.0.1",))]
    store.apply(change(machines=swapped))
    node.poll()
    assert known(node) == {"10.0.0.2": "shop/web-0", "10.0.0.1": "shop/web-1"}
    store.apply(change(removed_machines=[("shop", "web-0")]))
    node.poll()
    assert known(node) == {"10.0.0.1": "shop/web-1"}


def test_a_whole_fleet_read_anew_is_the_fleet(store: PostgresStore, node: Follower) -> None:
    """After everything was read again nothing is left of what is gone, and what was unchanged keeps its records."""
    store.apply(change(scopes=[scope("blog")], machines=[machine(scope="blog", name="b", addresses=("10.0.0.9",))]))
    node.poll()
    before = node.documents.callers.by_key["10.0.0.9"]
    store.apply(change(removed_machines=[("shop", "web-0")], removed_scopes=["shop"]))
    store.apply(change(machines=[machine(scope="blog", name="c", addresses=("10.0.0.1",))]))
    node.position = replace(node.position, cluster=("another", 1))
    assert node.poll().everything
    assert known(node) == {"10.0.0.9": "blog/b", "10.0.0.1": "blog/c"}
    assert list(node.documents.views) == ["blog"]
    assert node.documents.callers.by_key["10.0.0.9"] is before


def test_a_scope_that_went_and_came_again_is_the_new_one(store: PostgresStore, node: Follower) -> None:
    """Its versions begin anew, and what the old one had does not count as newer."""
    for _ in range(3):
        known_scope = saved_scope(store)
        store.apply(change(scopes=[replace(known_scope, incarnation=known_scope.incarnation + 1)]))
    node.poll()
    assert node.documents.views["shop"].state.scope.version == 4
    store.apply(change(removed_machines=[("shop", "web-0")], removed_scopes=["shop"]))
    store.apply(change(scopes=[scope()], machines=[machine(addresses=("10.0.0.7",))]))
    node.poll()
    caller = node.documents.callers.by_key["10.0.0.7"]
    assert caller.view is node.documents.views["shop"]
    assert caller.view is not None
    assert caller.view.state.scope.version == 1


def test_only_newer_versions_are_applied(store: PostgresStore, node: Follower) -> None:
    """News of what is known already is not read again."""
    store.apply(change(scopes=[saved_scope(store)]))
    node.documents.read_again(node.documents.views["shop"], requested_s=float("inf"))
    rendered = node.documents.rendered_states
    node.poll()
    assert node.documents.rendered_states == rendered
    assert node.documents.views["shop"].state.scope.version == 2


# -- one database, many writers


def test_two_nodes_that_make_one_scope_do_not_both_succeed(address: str, store: PostgresStore) -> None:
    """Each saw that it is not there: one makes it, the other decides again."""
    other = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    new = Change(at=at(0), expect=(("new", 0),), scopes=(scope("new"),))
    together, outcomes = threading.Barrier(2), []

    def make(where: PostgresStore) -> None:
        together.wait()
        try:
            where.apply(new)
            outcomes.append("made")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=make, args=(each,)) for each in (store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert sorted(outcomes) == ["conflict", "made"]
    assert saved_scope(store, "new").version == 1


def test_audit_ids_grow_in_order_of_commits(address: str, store: PostgresStore) -> None:
    """A stream that goes by ids misses nothing: a later commit has a greater id, with eight writers on two nodes."""
    other = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    maintenances = [maintenance(f"M{n}") for n in range(8)]
    store.apply(change(maintenances=maintenances, events=[event(f"E{n}", f"M{n}", scope=f"s{n}") for n in range(8)]))
    seen: list[int] = []
    stop = threading.Event()

    def write(n: int) -> None:
        where = store if n % 2 else other
        for _ in range(10):
            where.apply(change(wakes=[f"M{n}"], audit=[entry(detail=str(n))]))

    def read() -> None:
        last = 0
        while True:
            ending = stop.is_set()
            for found in store.audit(AuditQuery(after=last, limit=500)):
                assert found.id > last
                last = found.id
                seen.append(found.id)
            if ending:
                return

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    other.close()
    assert len(seen) == len(set(seen)) == 80


# -- leases


def test_a_lease_of_a_clock_that_was_set_back_is_as_one_just_taken(address: str, store: PostgresStore) -> None:
    """An hour ahead of any that could be given now: a dead node must not tick, or live, for that hour; a living one is not
    taken for dead."""
    lease_s = 600
    assert store.take_lease("ticker", "a:1", lease_s)
    assert not store.take_lease("ticker", "b:2", lease_s)
    store.take_lease("ticker", "a:1", lease_s + 3_600)
    store.take_lease("node a:1", "a:1", lease_s + 3_600)
    assert not store.take_lease("ticker", "b:2", lease_s)
    assert store.live_nodes() == {"a:1"}
    let_time_pass(address, lease_s)
    assert store.take_lease("ticker", "b:2", lease_s)
    assert not store.take_lease("ticker", "a:1", lease_s)
    assert store.live_nodes() == set()


def let_time_pass(address: str, seconds: float) -> None:
    """Move the end of every lease back instead of waiting."""
    with open_transaction(address) as connection:
        connection.execute("UPDATE leases SET until = until - %s * interval '1 second'", [seconds])
