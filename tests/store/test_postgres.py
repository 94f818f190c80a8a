"""The shared store: what SQL itself refuses, how it is made and opened, what it says when something is wrong, its limits."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from forewarn.core.errors import Conflict, InvalidSettings, InvariantBroken, StoreUnavailable
from forewarn.core.model import Event, OrderState, Status, Targets
from forewarn.core.operator_model import Role
from forewarn.store import AuditQuery, Focus, OrderQuery
from forewarn.store.postgres import dsn, schema
from forewarn.store.postgres import store as postgres_store
from forewarn.store.postgres.dsn import READ, Dsn, TimeLimits
from forewarn.store.postgres.pool import Connection, Deadlines, Pool, connect, cut
from forewarn.store.postgres.store import STATEMENTS_AT_ONCE, PostgresStore
from forewarn.store.sql.scripts import migrations
from tests.integration.nodes.nodes import wire_to
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED, server
from tests.support.records import (
    approval,
    at,
    change,
    delivery,
    ended,
    entry,
    event,
    hook,
    machine,
    maintenance,
    one_maintenance,
    order,
    saved_maintenance,
    saved_scope,
    scope,
    token,
)
from tests.support.waiting import PATIENCE_S, until

PASSWORD = "correct-horse"


@pytest.fixture
def address() -> str:
    return SHARED.emptied()


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    made = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    yield made
    made.close()


def raw(address: str, *statements: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("SET search_path = forewarn")
        for statement in statements:
            connection.execute(statement.encode())


# -- what SQL refuses

FORBIDDEN = {
    "a machine of no scope": "INSERT INTO machines VALUES ('gone', 'x', 0, 0, '', '', '')",
    "two machines of one name": "INSERT INTO machines VALUES ('shop', 'web-0', 0, 0, '', '', '')",
    "one address for two machines": "INSERT INTO machine_addresses VALUES ('', '10.0.0.1', 'shop', 'web-1')",
    "one instance id for two machines": "UPDATE machines SET instance_id = 'i-0' WHERE name = 'web-1'",
    "a scope without machines' leave": "DELETE FROM scopes WHERE name = 'shop'",
    "an incarnation of 0": "UPDATE scopes SET incarnation = 0",
    "enabled without an epoch": "UPDATE scopes SET enabled = true, epoch = 0",
    "an event that goes backwards": "UPDATE events SET status = 'Scheduled' WHERE id = 'E1'",
    "another NotBefore": "UPDATE events SET not_before = not_before + interval '1 hour' WHERE id = 'E1'",
    "an ended event that lives again": "UPDATE events SET status = 'Started', ended = NULL WHERE id = 'E2'",
    "a machine in two started events": "UPDATE events SET status = 'Started', started = not_before WHERE id = 'E3'",
    "an event without machines": "UPDATE events SET resources = '{}' WHERE id = 'E3'",
    "an ended maintenance that wakes": "UPDATE maintenances SET wake_at = now() WHERE id = 'M2'",
    "an unknown status": "UPDATE events SET status = 'Lost' WHERE id = 'E3'",
    "an order of no event": "INSERT INTO orders (id, issued, state, attempt, node, reason, output)"
    " VALUES ('E9', now(), 'open', 1, '', '', '')",
    "an order in no state": "UPDATE orders SET state = 'late'",
    "an order in doubt without a node": "UPDATE orders SET state = 'in-doubt', node = '', deadline = NULL",
    "an order in doubt with a time limit": "UPDATE orders SET state = 'in-doubt', node = 'a', deadline = now()",
    "an approval of no event": "INSERT INTO approvals VALUES ('E9', 'web-0', '', now(), '')",
    "another audit": "UPDATE audit SET who = 'nobody'",
    "two holds of the store": "INSERT INTO store_hold SELECT false, 'restored', '', '', now(), NULL, ''",
    "two holds": "INSERT INTO clock_hold SELECT false, now(), now(), 31, ''",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_sql_itself_refuses(address: str, store: PostgresStore, what: str) -> None:
    """A program that writes past forewarn meets the same rules."""
    store.apply(
        change(
            scopes=[scope()],
            machines=[machine("web-0", addresses=("10.0.0.1",), instance_id="i-0"), machine("web-1")],
            maintenances=[maintenance("M1"), maintenance("M2"), maintenance("M3")],
            events=[
                event("E1", "M1", status=Status.STARTED),
                event("E2", "M2", status=Status.COMPLETED),
                event("E3", "M3"),
            ],
            orders=[order("E1")],
            approvals=[approval("E1")],
            audit=[entry()],
        )
    )
    store.apply(change(maintenances=[ended(saved_maintenance(store, "M2"), at(1_000))]))
    with pytest.raises(psycopg.IntegrityError):
        raw(address, FORBIDDEN[what])


def test_a_refusal_of_sql_is_ours_to_report(store: PostgresStore) -> None:
    """A change that breaks a constraint is refused whole, as a broken invariant."""
    store.apply(one_maintenance(status=Status.STARTED))
    twice = change(maintenances=[maintenance("M2")], events=[event("E2", "M2", status=Status.STARTED)], audit=[entry()])
    with pytest.raises(InvariantBroken, match="nothing was saved"):
        store.apply(twice)
    assert store.maintenance("M2") is None


@pytest.mark.parametrize("batch", [2, 1_000])
def test_a_fleet_is_saved_whole(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Each machine is saved with its addresses, ids and labels, and replaced as a whole, however many a statement takes."""
    monkeypatch.setattr(postgres_store, "BATCH", batch)
    fleet = [
        machine("without-address"),
        machine("by-address", addresses=("10.0.0.1", "fd00::1"), update_domain=3, fault_domain=1, host="host-1"),
        machine("by-interface", interface="tap0", labels={"rack": 'b"4\\ \N{SNOWMAN}'}),
        machine("by-id", instance_id="i-1"),
        machine("other", addresses=("10.0.0.2",)),
    ]
    store.apply(change(expect=[("shop", 0)], scopes=[scope()], machines=fleet))
    assert store.inventory().machines == {each.key: each for each in fleet}
    swapped = [replace(fleet[3], addresses=("10.0.0.2",)), replace(fleet[4], addresses=("10.0.0.1",)), fleet[0]]
    moved = [replace(fleet[1], addresses=("10.0.0.3",), host=""), *swapped]
    store.apply(change(expect=[("shop", 1)], scopes=[replace(scope(), version=1)], machines=moved))
    assert store.inventory().machines == {each.key: each for each in (*fleet, *moved)}


def test_many_statements_do_not_share_the_time_of_one(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit begins again after every STATEMENTS_AT_ONCE statements of a change."""
    begun = 0
    set_limit = store._pool.deadlines.set

    def count(connection: Connection, within_s: float) -> None:
        nonlocal begun
        begun += 1
        set_limit(connection, within_s)

    def limits_of(maintenance_id: str, number: int) -> int:
        before = begun
        events = [event(f"{maintenance_id}-{n}", maintenance_id, position=n) for n in range(number)]
        store.apply(change(maintenances=[maintenance(maintenance_id)], events=events))
        return begun - before

    store.apply(change(scopes=[scope()]))
    monkeypatch.setattr(store._pool.deadlines, "set", count)
    assert limits_of("M2", 3 * STATEMENTS_AT_ONCE) >= limits_of("M1", 1) + 3


def test_one_address_of_two_machines_is_a_conflict(store: PostgresStore) -> None:
    """Nothing of a fleet is saved if two of its machines have the same address."""
    fleet = [machine("a", addresses=("10.0.0.1",)), machine("b", addresses=("10.0.0.1",))]
    with pytest.raises(Conflict, match="another machine has the same address or instance id"):
        store.apply(change(expect=[("shop", 0)], scopes=[scope()], machines=fleet))
    assert not store.inventory().machines


def test_the_time_to_commit_grows_with_the_events_up_to_two_minutes(address: str) -> None:
    """A change without events has no notice, so it may be of any age."""
    store = PostgresStore(address, limits=UNHURRIED)
    limits = [store._not_later_than(change(events=[event("E1")] * number)) for number in (0, 1_000, 100_000)]
    store.close()
    assert limits == [None, change().at + timedelta(seconds=4), change().at + timedelta(seconds=120)]


# -- making and migrating it


def test_ten_processes_may_start_at_once() -> None:
    """On an empty database one makes the schema and the others find it made."""
    address = SHARED.server.address(SHARED.server.database())
    program = (
        "from forewarn.store.postgres.store import PostgresStore, TimeLimits\n"
        f"PostgresStore({address!r}, limits={UNHURRIED}).close()"
    )
    begun = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(10)]
    for process in begun:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT version FROM forewarn.schema_version").fetchall()
    assert found == [(step.number,) for step in migrations("postgres")]


def test_migrations_are_numbered_without_gaps() -> None:
    """The last number is the schema's version, so none may be missing or doubled."""
    assert [s.number for s in migrations("postgres")] == list(range(1, 1 + schema.SCHEMA_VERSION))


def test_another_version_is_not_touched(address: str) -> None:
    """A newer schema asks for a newer forewarn, an older one for a backup and `db migrate`."""
    address = SHARED.fresh()
    raw(address, "INSERT INTO schema_version VALUES (99, clock_timestamp())")
    with pytest.raises(StoreUnavailable, match=r"made by a newer forewarn.*upgrade forewarn"):
        PostgresStore(address, limits=UNHURRIED)
    with pytest.raises(StoreUnavailable, match="made by a newer forewarn"):
        schema.PostgresDatabase(address).migrate()


def test_an_old_schema_is_brought_up_to_date() -> None:
    """Step by step, whole or not at all, and only on request."""
    address = SHARED.server.address(SHARED.server.database())
    *older, last = schema.MIGRATIONS
    schema.PostgresDatabase(address).migrate(older)
    bad = replace(last, name="bad", script="CREATE TABLE half (x int); INSERT INTO nowhere VALUES (1)")
    good = replace(last, name="good", script=f"{last.script}; CREATE TABLE whole (x int)")
    with pytest.raises(StoreUnavailable, match=r"this forewarn needs .*pg_dump.*forewarn db migrate"):
        PostgresStore(address, limits=UNHURRIED)
    with pytest.raises(StoreUnavailable):
        schema.PostgresDatabase(address).migrate([*older, bad])
    assert schema.PostgresDatabase(address).migrate([*older, good]) == [f"{last.number:04d} good"]
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT to_regclass('forewarn.half'), to_regclass('forewarn.whole')").fetchone()
    assert found == (None, "forewarn.whole")
    PostgresStore(address, limits=UNHURRIED).close()


@pytest.mark.parametrize("before", ["calendar_tokens", "hook_owners", "host_orders"])
def test_what_an_old_schema_holds_is_kept(before: str) -> None:
    """Tokens with their ends and uses, orders, maintenances, events, the audit and hooks are the same after a migration.

    The rows of a database of today are put into the tables of a schema from before a step. Afterwards the tables take rows
    that are new, and the orders of events still go with their events.
    """
    today, address = SHARED.fresh(), SHARED.server.address(SHARED.server.database())
    (step,) = [each for each in migrations("postgres") if each.name == before]
    schema.PostgresDatabase(address).migrate(schema.MIGRATIONS[: step.number - 1])

    def started(id_: str, name: str, position: int) -> Event:
        return event(id_, status=Status.STARTED, resources=(name,), position=position)

    store = PostgresStore(today, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    store.apply(
        change(
            scopes=[scope()],
            machines=[machine(addresses=("10.0.0.1",)), machine("web-1")],
            maintenances=[maintenance(targets=Targets(scope="shop"))],
            events=[started("E1", "web-0", 1), started("E2", "web-1", 2)],
            approvals=[approval()],
            orders=[order("E1", state=OrderState.FAILED, reason="no"), order("E2", state=OrderState.IN_DOUBT)],
            audit=[entry()],
            tokens=[token(), token("T2", role=Role.OWNER, scopes=("shop",), expires=at(9))],
            hooks=[hook(), hook("H2", scope="shop", failures=2, failing_since=at(3), error="no answer")],
        )
    )
    store.record_token_uses({"T2": at(5)})
    store.save_hooks(store.hooks(), [delivery(1), delivery(1, "H2", delivered=False)])
    _copy_rows(today, address)
    old = migrations("postgres")[step.number - 1 :]
    assert schema.PostgresDatabase(address).migrate() == [f"{each.number:04d} {each.name}" for each in old]

    migrated = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    for read in (
        lambda of: of.tokens(),
        lambda of: of.token_uses(),
        lambda of: of.snapshot(Focus(maintenances=("M1",), inventory=True, scopes=("shop",))),
        lambda of: of.orders_page(OrderQuery()),
        lambda of: of.audit(AuditQuery()),
        lambda of: of.hooks() if before != "calendar_tokens" else (),
        lambda of: [of.hook_deliveries(i, limit=5) for i in ("H1", "H2")] if before != "calendar_tokens" else (),
    ):
        assert read(migrated) == read(store)
    migrated.apply(
        change(
            tokens=[token("T3", role=Role.CALENDAR), token("T4", role=Role.CALENDAR, scopes=("shop",))],
            hooks=[hook("H3", owner_token="T2")],
            orders=[order("O1", state=OrderState.PLANNED, host="kvm-a", maintenance_id="M1")],
        )
    )
    (of_host,) = migrated.orders({OrderState.PLANNED}, 9, of_hosts=True)
    assert (of_host.id, of_host.host) == ("O1", "kvm-a")
    raw(address, "DELETE FROM events WHERE id = 'E1'")
    assert [each.id for each in migrated.orders(tuple(OrderState), 9)] == ["E2"]
    assert [each.role for each in migrated.tokens()].count(Role.CALENDAR) == 2
    assert migrated.hooks()[-1].owner_token == "T2"
    store.close()
    migrated.close()


def _copy_rows(source: str, target: str) -> None:
    """Copy the rows of every table that both databases have, in the columns that both have."""
    columns = """
        SELECT table_name, array_agg(column_name::text) FROM information_schema.columns
        WHERE table_schema = 'forewarn'
          AND table_name NOT IN ('schema_version', 'cluster', 'store_hold', 'audit_start', 'changes')
        GROUP BY table_name"""
    with psycopg.connect(source) as old, psycopg.connect(target) as new:
        for connection in (old, new):
            connection.execute("SET search_path = forewarn")
        new.execute("SET session_replication_role = replica")  # in any order of tables
        there: dict[str, list[str]] = dict(old.execute(columns).fetchall())
        for table, known in new.execute(columns).fetchall():
            names = ", ".join(sorted(set(known) & set(there[table])))
            rows = old.execute(f"SELECT {names} FROM {table}".encode()).fetchall()
            values = ", ".join(["%s"] * (names.count(",") + 1))
            overriding = "OVERRIDING SYSTEM VALUE" if table in ("events", "audit") else ""
            with new.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} ({names}) {overriding} VALUES ({values})".encode(), rows)


def test_an_ordinary_user_suffices() -> None:
    """The owner of an empty database needs no other right."""
    server = SHARED.server
    server.execute("CREATE ROLE plain_user LOGIN")
    server.execute("CREATE DATABASE plainly_owned OWNER plain_user TEMPLATE template0")
    address = f"postgresql://plain_user@127.0.0.1:{server.port}/plainly_owned"
    store = PostgresStore(address, decided_within_s=ANY_TIME_S, limits=UNHURRIED)
    store.apply(one_maintenance())
    feed = store.feed()
    assert feed.poll(None, 0.0).everything
    feed.close()
    store.close()


# -- what it says


def test_no_password_is_ever_told() -> None:
    """Neither an address that cannot be read nor a server that refuses it puts the password into an error."""
    for wrong in (
        f"postgresql://user:{PASSWORD}@[host/db",
        f"postgresql://user:pass@{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://user:{PASSWORD}@127.0.0.1:1/db?unheard_of={PASSWORD}",
    ):
        with pytest.raises(InvalidSettings, match="not a PostgreSQL address") as caught:
            Dsn(wrong)
        assert PASSWORD not in str(caught.value)
    for refusing in (
        f"user:{PASSWORD}@127.0.0.1:1/db",
        f"u:{PASSWORD}@host:port/db",
    ):
        with pytest.raises(StoreUnavailable) as refused:
            PostgresStore(f"postgresql://{refusing}")
        assert PASSWORD not in str(refused.value)
    assert Dsn(f"postgresql://user:{PASSWORD}@host:1/db").shown == "postgresql://host:1/db"


# -- limits


def test_a_pool_is_bounded(address: str) -> None:
    """A caller that finds every connection busy waits a little, and then gets an error."""
    made = Pool(Dsn(address, limits=replace(UNHURRIED, free_s=0.2)), size=2)
    with (
        made.transaction(READ),
        made.transaction(READ),
        pytest.raises(StoreUnavailable, match=r"all 2 connections .* were busy"),
        made.transaction(READ),
    ):
        pass
    with made.transaction(READ):
        pass
    made.close()


def test_a_server_that_falls_silent_is_given_up_on(address: str, store: PostgresStore) -> None:
    """A connection that is open and says nothing ends in time; then all fail at once, until it is back."""
    del store  # the schema is there
    given_up: list[Connection] = []

    def cut_and_note(connection: Connection) -> None:
        given_up.append(connection)
        cut(connection)

    with wire_to(SHARED.server.port) as wire:
        wired = address.replace(f":{SHARED.server.port}/", f":{wire.port}/")
        stalled = PostgresStore(wired, limits=UNHURRIED)
        stalled._pool.deadlines = Deadlines(cut=cut_and_note)
        stalled.scopes()
        wire.stall()
        soon = TimeLimits(away_s=ANY_TIME_S, patience_s=0.5 - dsn.STATEMENT_WITHIN_S)
        stalled._pool.dsn = Dsn(wired, limits=soon)
        with pytest.raises(StoreUnavailable):
            stalled.next_wakeup()
        assert len(given_up) == 1
        stalled._pool.connect = lambda _: pytest.fail("nobody knocks at it")
        for _ in range(20):
            with pytest.raises(StoreUnavailable):
                stalled.apply(change(audit=[entry()]))
        stalled._pool.connect = connect
        stalled._pool.dsn = Dsn(wired, limits=replace(soon, patience_s=PATIENCE_S))
        wire.mend()
        feed = stalled.feed()
        feed.poll(None, 0.0)  # whoever follows notices that it is back
        stalled.apply(change(audit=[entry()]))
        feed.close()
        stalled.close()


def test_connections_that_died_are_replaced(address: str, store: PostgresStore) -> None:
    """After the server ended every connection the next read works: nobody needs to try twice."""
    store.scopes()
    ours = "FROM pg_stat_activity WHERE application_name = 'forewarn'"
    raw(address, f"SELECT pg_terminate_backend(pid) {ours}")
    until(lambda: SHARED.server.execute(f"SELECT count(*) {ours}") == [(0,)])
    assert store.scopes() == {}


def test_through_a_pooler_nothing_outlives_a_transaction(address: str) -> None:
    """With an address of its own for what needs one, the rest brings its settings along, and leaves none behind."""
    store = PostgresStore(address, direct=address, decided_within_s=ANY_TIME_S)
    store.apply(one_maintenance())
    assert saved_scope(store).version == 1
    store.inventory()
    with store._pool.transaction(READ) as connection:
        (inside,) = connection.execute("SHOW statement_timeout").fetchall()
        (where,) = connection.execute("SHOW search_path").fetchall()
    assert (inside["statement_timeout"], where["search_path"]) == ("5s", "forewarn")
    outside = connection.execute("SHOW search_path").fetchall()
    assert outside[0]["search_path"] != "forewarn"
    store.close()


def test_a_refused_change_leaves_the_connection_usable(store: PostgresStore) -> None:
    """Statements travel together: whichever of them fails, the whole change is undone and the next one works."""
    store.apply(one_maintenance(status=Status.STARTED))
    for n in range(20):
        with pytest.raises(InvariantBroken):
            store.apply(change(maintenances=[maintenance(f"N{n}")], events=[event("E1", f"N{n}")], audit=[entry()]))
        with pytest.raises(Conflict):
            store.apply(change(maintenances=[maintenance("M1")], audit=[entry()]))
        store.apply(change(audit=[entry(detail=str(n))]))
    assert store.maintenance("N0") is None
    assert store.audit(AuditQuery(limit=1))[0].detail == "19"
    assert len(store._pool._idle) == 1


def test_what_no_standby_confirmed_is_not_acknowledged() -> None:
    """A commit whose wait for the synchronous standby is cancelled is an error, although PostgreSQL reports success."""
    with server() as alone:
        alone.execute("CREATE DATABASE forewarn")
        store = PostgresStore(alone.address("forewarn"), limits=UNHURRIED)
        alone.let_commits_wait()
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        errors: list[BaseException] = []

        def write() -> None:
            try:
                store.apply(change(scopes=[scope()]))
            except StoreUnavailable as error:
                errors.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        until(lambda: alone.execute(f"SELECT count(*) {waiting}") == [(1,)])
        alone.execute(f"SELECT pg_cancel_backend(pid) {waiting}")
        thread.join()
        assert "may be lost with the server" in str(errors[0])
        store.close()


def test_crosswise_changes_both_succeed(store: PostgresStore) -> None:
    """Two that touch the same scopes and maintenances in another order wait for each other, and never crosswise."""
    store.apply(
        change(
            scopes=[scope("a"), scope("b")],
            maintenances=[maintenance("M1"), maintenance("M2")],
            events=[event("E1", "M1", scope="a"), event("E2", "M2", scope="b")],
        )
    )
    together = threading.Barrier(2)
    failed: list[BaseException] = []

    def write(*ids: str) -> None:
        try:
            together.wait()
            for _ in range(25):
                store.apply(change(at(1), wakes=ids, audit=[entry()]))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=ids) for ids in (("M1", "M2"), ("M2", "M1"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert {m.version for m in store.snapshot(Focus(maintenances=("M1", "M2"))).maintenances.values()} == {51}
