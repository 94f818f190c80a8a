"""The shared store when its server is slow, stuck, replaced, migrated or refuses us: what is said, and what still works."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from forewarn.core.errors import Conflict, StoreUnavailable
from forewarn.core.model import HoldCause, StoreHold
from forewarn.service.settings import holds_password, load
from forewarn.store import AuditQuery, Focus
from forewarn.store.opening import open_store
from forewarn.store.postgres import pool, schema
from forewarn.store.postgres import store as postgres_store
from forewarn.store.postgres.dsn import READ, WRITE, Dsn, TimeLimits
from forewarn.store.postgres.pool import Connection, connect
from forewarn.store.postgres.schema import COMMIT_LOCK
from forewarn.store.postgres.store import PostgresStore
from forewarn.store.sql.scripts import queries
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED
from tests.support.records import approval, at, change, entry, event, machine, maintenance, saved_scope, scope, session
from tests.support.waiting import until

PASSWORD = "correct-horse"
LATE_S = 0.3


@pytest.fixture
def address() -> str:
    return SHARED.emptied()


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    made = PostgresStore(address, limits=UNHURRIED)
    yield made
    made.close()


def raw(address: str, statement: str) -> None:
    with psycopg.connect(address, options="-c search_path=forewarn") as connection:
        connection.execute(statement.encode())


def with_limits(store: PostgresStore, address: str, limits: TimeLimits) -> None:
    """Let the store connect with other limits. It was opened with the usual ones."""
    store._pool.dsn = Dsn(address, limits=limits)
    store._pool.close_idle()


@contextmanager
def watching() -> Iterator[Callable[[str], list[tuple[object, ...]]]]:
    """Ask the server again and again on one connection."""
    with psycopg.connect(SHARED.server.address("postgres"), autocommit=True) as connection:
        yield lambda question: connection.execute(question.encode()).fetchall()


@contextmanager
def nobody_commits(address: str) -> Iterator[Callable[[], None]]:
    """Hold the lock of a commit that waits for a standby, until the returned function is called."""
    with psycopg.connect(address) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [COMMIT_LOCK])
        yield connection.rollback


# -- what comes too late


def test_events_decided_too_long_ago_are_decided_again(address: str, store: PostgresStore) -> None:
    """A process that was stopped between deciding and saving is refused by the database's own clock."""
    now = store.now()
    old = now - timedelta(seconds=postgres_store.DECIDED_WITHIN_S + 1)
    store.apply(change(old, scopes=[scope()], machines=[machine()]))  # a fleet takes as long as it takes
    made = change(old, maintenances=[maintenance("M1")], events=[event("E1", "M1")], audit=[entry()])
    with pytest.raises(Conflict, match="decided too long ago"):
        store.apply(made)
    assert store.maintenance("M1") is None
    assert store.audit(AuditQuery()) == []
    with closing(PostgresStore(address, decided_within_s=3_600, limits=UNHURRIED)) as patient:
        with pytest.raises(Conflict, match="decided too long ago"):
            patient.apply(replace(made, at=now - timedelta(hours=2)))
        patient.apply(made)
    store.apply(change(old, approvals=[approval()]))  # nobody's notice depends on when


def test_waiting_for_others_counts_as_well(address: str) -> None:
    """A change that was in time when it began, and had to wait until it was not, is not saved late."""
    made = change(maintenances=[maintenance("M1")], events=[event("E1", "M1")])
    with (
        closing(PostgresStore(address, decided_within_s=LATE_S, limits=UNHURRIED)) as store,
        nobody_commits(address) as done,
    ):
        decided = store.now()

        def let_commit_when_late() -> None:
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            with watching() as ask:
                until(lambda: ask(waiting) == [(1,)])
            until(lambda: store.now() > decided + timedelta(seconds=LATE_S + 0.1))
            done()

        thread = threading.Thread(target=let_commit_when_late)
        thread.start()
        with pytest.raises(Conflict, match="decided too long ago"):
            store.apply(replace(made, at=decided))
        thread.join()
        assert store.maintenance("M1") is None


# -- what hangs


def test_a_database_that_does_not_commit_is_told_as_that(address: str) -> None:
    """One waits and hears why; who writes after it hears so at once, while reads go on and following changes nothing in it."""
    limits = replace(UNHURRIED, lock_s=0.2, away_s=ANY_TIME_S)
    with (
        closing(PostgresStore(address, limits=limits)) as store,
        closing(store.feed()) as feed,
        nobody_commits(address) as done,
    ):
        with pytest.raises(StoreUnavailable, match=r"does not commit.*synchronous standby"):
            store.apply(change(audit=[entry()]))
        feed.poll(None, 0.0)
        done()
        with pytest.raises(StoreUnavailable, match="does not commit"):  # without asking: it would commit by now
            store.apply(change(audit=[entry()]))
        assert store.scopes() == {}
        until_s, why = store._pool._stuck
        store._pool._stuck = (until_s - ANY_TIME_S, why)  # so much later
        store.apply(change(audit=[entry()]))
        store.apply(change(audit=[entry()]))


def test_who_waits_for_a_commit_that_waits_for_a_standby_is_told_so(address: str) -> None:
    """The scope is locked by a change that hangs: to decide again would not help, and nobody changed anything."""
    limits = replace(UNHURRIED, lock_s=0.2)
    server, waiting = SHARED.server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    hanging, store = PostgresStore(address, limits=limits), PostgresStore(address, limits=limits)
    store.apply(change(scopes=[scope()]))
    known = change(expect=[("shop", 1)], scopes=[scope(version=1)])
    try:
        server.let_commits_wait()
        thread = threading.Thread(target=hanging.apply, args=(known,))
        thread.start()
        until(lambda: server.execute(waiting) == [(1,)])
        with pytest.raises(StoreUnavailable, match=r"does not commit.*synchronous standby"):
            store.apply(known)
    finally:
        server.let_commits_go_on()
    thread.join()
    assert store.scopes()["shop"].version == 2
    hanging.close()
    store.close()


def test_a_row_that_others_hold_is_a_conflict(address: str) -> None:
    """A large change of the same scope is under way: the database works, and the writer that waited decides again."""
    with (
        closing(PostgresStore(address, limits=replace(UNHURRIED, lock_s=0.2))) as store,
        psycopg.connect(address) as other,
    ):
        store.apply(change(scopes=[scope()]))
        other.execute("SELECT FROM forewarn.scopes FOR UPDATE")
        with pytest.raises(Conflict):
            store.apply(change(expect=[("shop", 1)], scopes=[scope(version=1)]))
        store.apply(change(audit=[entry()]))


def test_a_node_that_falls_silent_in_a_change_is_ended(address: str) -> None:
    """The server would wait for ever for a silent writer's next statement: a writer that needs the lock ends its connection."""
    stopped, store = (PostgresStore(address, limits=UNHURRIED) for _ in range(2))
    for each in (stopped, store):
        with_limits(each, address, replace(UNHURRIED, lock_s=0.2))
        each.scope_names()  # opens the session that is used below: the server lets it be silent
    store._pool.dsn = Dsn(
        address, limits=replace(UNHURRIED, lock_s=0.2, silent_s=0.3)
    )  # how long it lets another writer be silent

    def stop_in_a_change() -> None:
        with stopped._pool.pipeline(WRITE) as (connection, _):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [COMMIT_LOCK]).fetchall()
            time.sleep(0.3)
            with pytest.raises(StoreUnavailable, match="does not commit"):
                store.apply(change(audit=[entry()]))
            until_ended(connection.info.backend_pid)
            store.apply(change(audit=[entry()]))

    with pytest.raises(StoreUnavailable):
        stop_in_a_change()
    assert len(store.audit(AuditQuery())) == 1
    stopped.close()
    store.close()


def until_ended(pid: int) -> None:
    """Wait until the server has ended a session, and let go of its locks."""
    with watching() as ask:
        until(lambda: ask(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}") == [(0,)])


def test_a_change_waits_for_its_client_no_longer_than_it_may(address: str) -> None:
    """What was asked in a change and answered leaves the server with its limit on silence."""
    store = PostgresStore(address, limits=UNHURRIED)
    with_limits(store, address, replace(UNHURRIED, silent_s=0.2))

    def be_slow() -> None:
        with store._writing() as writer:
            assert list(writer.query("lock_maintenances", ids=["M1"], waiting_for_budget=False)) == []
            until_ended(writer._connection.info.backend_pid)
            writer.execute("forget_leases")

    with pytest.raises(StoreUnavailable):
        be_slow()
    store.close()


def test_a_large_fleet_may_be_read_slowly(address: str) -> None:
    """A reader of a million machines may use its connection slowly: it blocks no writer."""
    with closing(PostgresStore(address, limits=UNHURRIED)) as store:
        store.apply(change(scopes=[scope()], machines=[machine("web-0"), machine("web-1")]))
        with_limits(store, address, replace(UNHURRIED, silent_s=0.2))
        names = []
        for known in store.machine_identities():
            time.sleep(0.3)
            names.append(known.name)
        assert names == ["web-0", "web-1"]


# -- what became another


def test_a_server_that_became_read_only_is_left(address: str, store: PostgresStore) -> None:
    """No connection to it is kept: the next one finds whichever can be written."""
    with store._pool.transaction(READ) as first, store._pool.transaction(READ):
        pass
    assert len(store._pool._idle) == 2
    for connection in store._pool._idle:
        connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        store.apply(change(audit=[entry()]))
    assert first.closed
    assert not store._pool._idle
    store.apply(change(audit=[entry()]))
    raw(address, "SELECT 1")


def test_a_schema_that_others_migrated_is_noticed() -> None:
    """A node that still runs neither writes to it nor counts as following."""
    address = SHARED.fresh()
    with closing(PostgresStore(address, limits=UNHURRIED)) as store, closing(store.feed()) as feed:
        position = feed.poll(None, 0.0).position
        raw(address, "INSERT INTO schema_version VALUES (99, now())")
        with pytest.raises(StoreUnavailable, match=r"schema 99, made by a newer forewarn.*upgrade forewarn"):
            store.apply(change(audit=[entry()]))
        with pytest.raises(StoreUnavailable, match="schema 99"):
            feed.poll(position, 0.0)
        with pytest.raises(StoreUnavailable, match="schema 99"):
            store.scopes()  # and every caller gets the error


def test_a_pooler_that_leads_elsewhere_is_told_once(address: str) -> None:
    """What is agreed on through `store` is never so on `store_direct`: the follower gets an error, and does not try for ever."""
    elsewhere = SHARED.fresh()
    with closing(PostgresStore(address, direct=elsewhere, limits=UNHURRIED)) as store, closing(store.feed()) as feed:
        PostgresStore(address, limits=UNHURRIED).close()  # its schema
        raw(elsewhere, "UPDATE cluster SET timeline = timeline - 1")
        with pytest.raises(StoreUnavailable, match="the pooler leads to another server than store_direct"):
            feed.poll(None, 0.0)
        raw(elsewhere, "UPDATE cluster SET timeline = timeline + 1")
        assert feed.poll(None, 0.0).everything


@pytest.mark.parametrize(
    ("found", "actions"),
    [("timeline = timeline - 1", []), ("identity = 'another'", ["store held", "database restored"])],
    ids=["a failover", "a restored dump"],
)
def test_a_restored_dump_is_held_and_a_failover_is_not(
    address: str, store: PostgresStore, found: str, actions: list[str]
) -> None:
    """A new timeline alone is a failover. Another identity is another database, which may show done work as open."""
    raw(address, f"UPDATE cluster SET {found}")
    held = store.snapshot(Focus()).store_hold
    assert (held is not None) == bool(actions)
    assert [entry.action for entry in store.audit(AuditQuery())] == (actions or ["database failed over"])
    if held is not None:
        assert (held.cause, held.who) == (HoldCause.RESTORED, "service")
        store.apply(replace(change(held.held), resumes_store=held))
        position = store.position()
        assert position is not None
        assert position.resumed


def test_a_hold_waits_for_work_that_was_decided_before(address: str, store: PostgresStore) -> None:
    """A change that begins work locks the hold: it is saved before the hold, or not at all."""
    with_limits(store, address, UNHURRIED)
    hold = StoreHold(cause=HoldCause.REQUESTED, detail="x", who="alice", held=at(60))
    with psycopg.connect(address, options="-c search_path=forewarn") as connection:
        connection.execute(queries("postgres")["lock_store_hold"].encode())
        with ThreadPoolExecutor(1) as pool:
            holding = pool.submit(store.apply, replace(change(), store_hold=hold))
            until(lambda: waits_for_a_lock(address))
            assert not holding.done()
            connection.rollback()
            holding.result()
    with pytest.raises(Conflict, match="held meanwhile"):
        store.apply(replace(change(audit=[entry()]), begins_work=True))


def waits_for_a_lock(address: str) -> bool:
    with psycopg.connect(address) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        row = connection.execute(query).fetchone()
        return row is not None and row[0] > 0


@pytest.mark.parametrize(
    "focus", [Focus(), Focus(scopes=("shop",), document_only=True)], ids=["to decide on", "to show"]
)
def test_every_snapshot_is_of_the_server_that_was_agreed_on(address: str, focus: Focus) -> None:
    """A server that was replaced is left; one that took over is agreed on first; one that stays another is an error."""

    class UnsteadyStore(PostgresStore):
        """Agrees on no other server while `unsteady`."""

        unsteady = False

        def adopt(self) -> bool:
            return not self.unsteady and super().adopt()

    store = UnsteadyStore(address, limits=UNHURRIED)
    store.apply(change(scopes=[scope()]))
    raw(address, "UPDATE cluster SET timeline = timeline - 1")
    store.snapshot(focus)
    assert [entry.action for entry in store.audit(AuditQuery())] == ["database failed over"]
    store.unsteady = True
    raw(address, "UPDATE cluster SET timeline = timeline - 1")
    with pytest.raises(StoreUnavailable, match="leads to one server and then to another"):
        store.snapshot(focus)
    raw(address, "UPDATE cluster SET timeline = timeline + 1")
    (identity,) = store._agreed
    store._agreed[identity] += 1
    with pytest.raises(StoreUnavailable, match="this server was replaced by another"):
        store.snapshot(focus)
    store.close()


def test_every_login_ends_with_a_failover(address: str, store: PostgresStore) -> None:
    """A log-out may be among the lost commits, or later than a restored dump."""
    store.add_session(session())
    raw(address, "UPDATE cluster SET timeline = timeline - 1")
    store.snapshot(Focus())
    assert store.session(session().digest) is None


def test_to_recognise_the_server_costs_no_trip(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked with the rest: what is answered already is not waited for again."""
    trips: list[psycopg.Pipeline] = []
    sync = psycopg.Pipeline.sync

    def counted(pipeline: psycopg.Pipeline) -> None:
        trips.append(pipeline)
        sync(pipeline)

    monkeypatch.setattr(psycopg.Pipeline, "sync", counted)
    store.apply(change(scopes=[scope()], machines=[machine()]))
    trips.clear()
    store.snapshot(Focus(scopes=("shop",), whole_maintenances=False, document_only=True))
    assert len(trips) == 1
    trips.clear()
    store.snapshot(Focus(scopes=("shop",), whole_maintenances=False))
    assert len(trips) == 1  # nothing belongs to events that are not there
    store.apply(change(maintenances=[maintenance("M1")], events=[event("E1")]))
    trips.clear()
    store.snapshot(Focus(scopes=("shop",), whole_maintenances=False))
    assert len(trips) == 2  # the events, then what belongs to them
    trips.clear()
    store.snapshot(Focus(events=("E1",), whole_maintenances=False, open_events=False))
    assert len(trips) == 2  # the event with what belongs to it, then its scope and its maintenance


def test_when_another_server_is_agreed_on_no_idle_connection_is_kept(store: PostgresStore) -> None:
    """Lists ask nobody which server it is: no connection to the one before may wait for them."""
    store.scopes()
    found = {"identity": "this", "timeline": 1, "same": True, "schema": schema.SCHEMA_VERSION}
    store.recognise(found)
    store.recognise(found)
    assert store.connections().idle == 1
    store.recognise(found | {"timeline": 2, "same": False})  # not agreed on yet
    assert store.connections().idle == 1
    store.recognise(found | {"timeline": 2})
    assert store.connections().idle == 0


# -- in which order locks are taken


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'forewarn'"


def test_agreeing_on_a_server_locks_scopes_as_changes_do(address: str, store: PostgresStore) -> None:
    """By name, wherever they lie on disk: it waits for a change that has the first, and has no other of that change's yet."""
    with_limits(store, address, UNHURRIED)
    store.apply(change(scopes=[scope("b")]))
    store.apply(change(scopes=[scope("a")]))
    raw(address, "UPDATE cluster SET timeline = timeline - 1")
    adopted: list[bool] = []
    with watching() as ask, psycopg.connect(address) as other:
        other.execute("SELECT FROM forewarn.scopes WHERE name = 'a' FOR NO KEY UPDATE")
        thread = threading.Thread(target=lambda: adopted.append(store.adopt()))
        thread.start()
        until(lambda: ask(WAITING) == [(1,)])
        other.execute("SELECT FROM forewarn.scopes WHERE name = 'b' FOR NO KEY UPDATE NOWAIT")
    thread.join()
    assert adopted == [True]


def test_a_change_that_comes_too_late_waits_for_the_one_before(address: str, store: PostgresStore) -> None:
    """It has no event yet that the other may still write. If it had, the database would end one of them, maybe the other."""
    with_limits(store, address, UNHURRIED)
    store.apply(change(scopes=[scope()], maintenances=[maintenance("M1")], events=[event("E1")]))
    late = change(at(1), expect=[("shop", 7)], scopes=[replace(scope(), version=7)], events=[event("E1")])
    refusals: list[Exception] = []

    def apply() -> None:
        try:
            store.apply(late)
        except Conflict as refusal:
            refusals.append(refusal)

    with watching() as ask, psycopg.connect(address) as other:
        other.execute("SELECT FROM forewarn.scopes FOR NO KEY UPDATE")
        thread = threading.Thread(target=apply)
        thread.start()
        until(lambda: ask(WAITING) == [(1,)])
        other.execute("SELECT FROM forewarn.events FOR NO KEY UPDATE NOWAIT")
    thread.join()
    assert len(refusals) == 1


@pytest.mark.parametrize("how", ["written", "woken", "both"])
def test_a_change_locks_maintenances_before_scopes(address: str, store: PostgresStore, how: str) -> None:
    """Whether it writes them, wakes them or both: it waits for the first of them, and has no other and no scope yet."""
    with_limits(store, address, UNHURRIED)
    store.apply(change(scopes=[scope()], maintenances=[maintenance(i) for i in ("M2", "M1")], events=[event("E1")]))
    both = [replace(maintenance(i), version=1) for i in ("M2", "M1")]
    changed = change(
        at(1),
        expect=[("shop", 1)],
        scopes=[saved_scope(store)],
        maintenances=both if how == "written" else both[:1] if how == "both" else [],
        wakes=("M2", "M1") if how == "woken" else ("M1",) if how == "both" else (),
    )
    with watching() as ask, psycopg.connect(address) as other:
        other.execute("SELECT FROM forewarn.maintenances WHERE id = 'M1' FOR NO KEY UPDATE")
        thread = threading.Thread(target=store.apply, args=[changed])
        thread.start()
        until(lambda: ask(WAITING) == [(1,)])
        other.execute("SELECT FROM forewarn.maintenances WHERE id = 'M2' FOR NO KEY UPDATE NOWAIT")
        other.execute("SELECT FROM forewarn.scopes FOR NO KEY UPDATE NOWAIT")
    thread.join()
    assert saved_scope(store).version == 2


def test_forgetting_changes_waits_for_agreeing_on_a_server(address: str, store: PostgresStore) -> None:
    """Both write where the nodes are agreed and what changed: that first, so that neither holds what the other waits for."""
    with_limits(store, address, UNHURRIED)
    store.apply(change(scopes=[scope()]))
    raw(address, f"UPDATE forewarn.changes SET at = at - interval '{postgres_store.CHANGES_KEPT_S + 1} seconds'")
    forgotten: list[int] = []
    with watching() as ask, psycopg.connect(address) as other:
        other.execute("SELECT FROM forewarn.cluster FOR UPDATE")
        thread = threading.Thread(target=lambda: forgotten.append(store.forget_changes(10)))
        thread.start()
        until(lambda: ask(WAITING) == [(1,)])
        other.execute("SELECT FROM forewarn.changes FOR UPDATE NOWAIT")
    thread.join()
    assert forgotten == [1]


# -- what watches over time


def test_a_connection_that_was_given_more_time_is_not_cut(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """The watcher looks once more before it cuts; and what it cannot cut does not end every other time limit."""
    cuts = []
    first, second = (connect(Dsn(address)) for _ in range(2))

    def cut(connection: Connection) -> None:
        cuts.append(connection)
        deadlines.set(second, 600)  # answered, and at its next statement
        raise RuntimeError("unforeseen")

    deadlines = pool.Deadlines(check_every_s=0.01, cut=cut)
    deadlines._until_s = {first: 0.0, second: 0.0}
    deadlines.set(first, -1)
    until(lambda: cuts == [first] and "could not be cut" in caplog.text)
    third = connect(Dsn(address))
    deadlines.set(third, -1)
    until(lambda: len(cuts) > 1)
    assert cuts == [first, third]
    deadlines.stop()
    for connection in (first, second, third):
        connection.close()


def test_only_a_warning_of_the_commit_itself_is_a_doubt(store: PostgresStore) -> None:
    """A warning of the server during a read, or before a commit, says nothing about what is saved."""
    warn = b"DO $$ BEGIN RAISE WARNING 'look out'; END $$"
    for how in (READ, WRITE):
        with store._pool.transaction(how) as connection:
            connection.execute(warn)
        with store._pool.pipeline(how) as (connection, pipeline):
            connection.execute(warn)
            pipeline.sync()
    assert store.connections().idle == 1


# -- what is said


def test_what_is_missing_is_named_with_what_to_do() -> None:
    """The error of a refused connection has the server's message and what it means."""
    server = SHARED.server
    with pytest.raises(StoreUnavailable, match=r"no such database: create it with createdb.*\"nowhere\""):
        PostgresStore(server.address("nowhere"), limits=UNHURRIED)
    with pytest.raises(StoreUnavailable, match=r"refuses this user.*\"nobody\""):
        PostgresStore(f"postgresql://nobody@127.0.0.1:{server.port}/postgres", limits=UNHURRIED)
    server.execute("CREATE ROLE hardly LOGIN CONNECTION LIMIT 0")
    with pytest.raises(StoreUnavailable, match=r"no connection left: raise max_connections"):
        PostgresStore(f"postgresql://hardly@127.0.0.1:{server.port}/postgres", limits=UNHURRIED)


def test_options_of_an_address_come_before_ours(address: str) -> None:
    """Options in the address do not replace our limits or our search path."""
    with closing(PostgresStore(f"{address}?options=-c%20geqo%3Doff%20-c%20search_path%3Dpublic")) as store:
        with store._pool.transaction(READ) as connection:
            shown = [
                next(iter(connection.execute(f"SHOW {name}".encode()).fetchall()[0].values()))
                for name in ("geqo", "search_path", "statement_timeout", "idle_in_transaction_session_timeout")
            ]
        assert shown == ["off", "forewarn", "5s", "5s"]


@pytest.mark.parametrize("pooled", [False, True])
def test_no_statement_is_compiled(address: str, pooled: bool) -> None:
    """A server that compiles every statement it runs, however few rows it reads, compiles none of a node's."""
    address += "?options=-c%20jit_above_cost%3D0"
    with psycopg.connect(address) as connection:
        assert "JIT" in explained(connection)
    with closing(PostgresStore(address, direct=address if pooled else "", limits=UNHURRIED)) as store:
        with store._pool.transaction(READ) as connection:
            assert "JIT" not in explained(connection)
        with closing(connect(store._direct)) as connection:  # as the feed does
            assert "JIT" not in explained(connection)


def explained(connection: Connection | psycopg.Connection) -> str:
    return str(connection.execute("EXPLAIN ANALYZE SELECT count(*) FROM forewarn.scopes").fetchall())


def test_a_server_elsewhere_should_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server elsewhere whose identity is not verified is warned of; a socket, loopback and verified servers are not."""
    monkeypatch.delenv("PGSSLMODE", raising=False)
    monkeypatch.delenv("PGHOST", raising=False)
    for fine in (
        "/db",
        "localhost/db",
        "127.0.0.1,[::1]/db",
        "%2Frun%2Fpostgresql/db",
        "db.example/db?sslmode=verify-full",
    ):
        assert Dsn(f"postgresql://{fine}").unverified == ""
    for bad in ("db.example/db", "127.0.0.1,10.0.0.1/db", "db.example/db?sslmode=require"):
        assert "sslmode=verify-full" in Dsn(f"postgresql://{bad}").unverified
    monkeypatch.setenv("PGSSLMODE", "verify-ca")
    assert Dsn("postgresql://db.example/db").unverified == ""


def test_a_password_on_the_command_line_is_warned_of() -> None:
    """Every user of the machine can read it there; the warning does not repeat it."""
    assert holds_password(f"postgresql://u:{PASSWORD}@h/db")
    assert holds_password(f"postgresql://u@h/db?password={PASSWORD}")
    assert not holds_password("postgresql://u@h/db")
    command = [sys.executable, "-m", "forewarn", "serve", "--store", f"postgresql://u:{PASSWORD}@127.0.0.1:1/db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "FOREWARN_STORE" in done.stderr
    assert "~/.pgpass" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_the_number_of_connections_is_a_setting(address: str) -> None:
    """As many as the database can give to every node."""
    settings = load({"store": address}, {"FOREWARN_STORE_CONNECTIONS": "3"})
    store = open_store(settings.store_url, connections=settings.store_connections)
    assert isinstance(store, PostgresStore)
    assert store.connections().limit == 3
    store.close()
