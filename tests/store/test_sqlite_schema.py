"""The SQLite store's schema: fresh and migrated databases are the same, and SQL itself refuses what must not be."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from forewarn.core.errors import StoreUnavailable
from forewarn.core.model import OrderState, Status
from forewarn.store.sql.scripts import Migration, migrations
from forewarn.store.sqlite import file
from forewarn.store.sqlite.store import SqliteStore
from tests.support.records import (
    approval,
    at,
    change,
    ended,
    entry,
    event,
    machine,
    maintenance,
    order,
    receipt,
    scope,
    token,
)

# -- migrations


def shape(path: Path) -> dict[str, object]:
    """A database's schema without the spelling of it."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
        found: dict[str, object] = {f"{type_} {name}": (table, _plain(sql)) for type_, name, table, sql in rows}
        for pragma in ("user_version", "application_id"):
            found[pragma] = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
        return found


def _plain(sql: str | None) -> str:
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(re.sub(r"--.*", "", sql or "").split()))


def migrated(path: Path, steps: Sequence[Migration] = file.MIGRATIONS) -> list[str]:
    path.touch()
    return file.SqliteDatabase(path).migrate(steps)


def test_a_migrated_database_is_like_a_fresh_one(tmp_path: Path) -> None:
    """An upgrade step by step ends with the schema of a new installation."""
    SqliteStore(tmp_path / "fresh.db").close()
    steps = migrated(tmp_path / "migrated.db")
    assert shape(tmp_path / "migrated.db") == shape(tmp_path / "fresh.db")
    assert len(shape(tmp_path / "fresh.db")) > 20
    assert len(steps) == len(migrations("sqlite")) == file.SCHEMA_VERSION


def test_what_an_old_database_holds_is_found_by_the_new_lists(tmp_path: Path) -> None:
    """Orders and maintenances that were there before the lists came are found by scope like those that came after."""
    path = tmp_path / "x.db"
    migrated(path, file.MIGRATIONS[:2])
    with closing(file.connect(path)) as connection:
        columns = "'Reboot', 'Platform', '2030', '', NULL, NULL, -1, '', 0, 'hold', 0, 0, 'Planned', NULL, 1, NULL"
        connection.execute(f"INSERT INTO maintenances VALUES ('M1', {columns})")
        connection.execute(put())
        connection.execute(put(id="'E2'", position=2, resources="""'["web-8"]'"""))
        connection.execute("INSERT INTO orders VALUES ('E1', '2030', NULL, 'open', 1, '', NULL, NULL, '', '')")
    assert file.SqliteDatabase(path).migrate() == [
        "0003 operator_side",
        "0004 sightings",
        "0005 clock_hold",
        "0006 told",
        "0007 clock_confirmed",
        "0008 sessions",
        "0009 store_hold",
        "0010 audit_chain",
        "0011 in_doubt",
        "0012 targets",
        "0013 calendar_tokens",
        "0014 hooks",
        "0015 hook_owners",
        "0016 hosts",
        "0017 host_orders",
        "0018 fleet_rules",
        "0019 budgets",
        "0020 rescheduling",
        "0021 current_waves",
        "0022 drills",
        "0023 replaced_events",
        "0024 host_maintenances",
    ]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id, scope FROM orders").fetchall() == [("E1", "shop")]
        found = connection.execute("SELECT * FROM maintenance_scopes").fetchall()
        assert found == [("shop", "Planned", "2030", "M1")]


def test_orders_of_events_continue_beside_orders_of_hosts(tmp_path: Path) -> None:
    """The table is made anew: a running order stays as it is, and still goes with its event."""
    path = tmp_path / "x.db"
    (step,) = [each for each in migrations("sqlite") if each.name == "host_orders"]
    migrated(path, file.MIGRATIONS[: step.number - 1])
    columns = "'Reboot', 'Platform', '2030', '', NULL, NULL, -1, '', 0, 'hold', 0, 0, 'Running', NULL, 1, NULL, NULL"
    at_work = "2030-01-01T00:00:00.000000Z"
    running = ("E1", at_work, at_work, "running", 2, "command on a", at_work, None, "", "so far", "shop")
    with closing(file.connect(path)) as connection:
        connection.execute(f"INSERT INTO maintenances VALUES ('M1', {columns})")
        connection.execute(put())
        connection.execute(f"INSERT INTO orders VALUES ({', '.join('?' * 11)})", running)
    assert f"{step.number:04} host_orders" in file.SqliteDatabase(path).migrate()
    with closing(SqliteStore(path)) as store:
        (order,) = store.orders({OrderState.RUNNING}, 9)
        assert (order.id, order.attempt, order.node, order.output) == ("E1", 2, "command on a", "so far")
        assert (order.host, order.phase) == ("", "")
    with closing(file.connect(path)) as connection:
        connection.execute("DELETE FROM events")
        assert connection.execute("SELECT count(*) FROM orders").fetchone()[0] == 0


def test_tokens_and_their_uses_survive_the_role_calendar(tmp_path: Path) -> None:
    """The table is made anew for another role: tokens, their ends and their last uses stay."""
    path = tmp_path / "x.db"
    (step,) = [each for each in migrations("sqlite") if each.name == "calendar_tokens"]
    migrated(path, file.MIGRATIONS[: step.number - 1])
    rows = [
        ("T1", "ci", "viewer", "[]", "a" * 64, "2030", "", None),
        ("T2", "o", "owner", '["s"]', "b" * 64, "2031", "x", "2032"),
    ]
    with closing(file.connect(path)) as connection:
        connection.executemany(f"INSERT INTO tokens VALUES ({', '.join('?' * 8)})", rows)
        connection.execute("INSERT INTO token_uses VALUES ('T2', '2031')")
    assert f"{step.number:04} calendar_tokens" in file.SqliteDatabase(path).migrate()
    with closing(file.connect(path)) as connection:
        assert [tuple(row) for row in connection.execute("SELECT * FROM tokens ORDER BY id")] == rows
        assert [tuple(row) for row in connection.execute("SELECT * FROM token_uses")] == [("T2", "2031")]
        connection.execute(f"INSERT INTO tokens VALUES ('T3', 'c', 'calendar', '[]', '{'c' * 64}', '2030', '', NULL)")
        connection.execute("DELETE FROM tokens")
        assert connection.execute("SELECT count(*) FROM token_uses").fetchone()[0] == 0


def test_migrations_are_numbered_without_gaps() -> None:
    """The last number is the schema's version, so none may be missing or doubled."""
    assert [step.number for step in migrations("sqlite")] == list(range(1, 1 + file.SCHEMA_VERSION))


def test_migrating_twice_does_nothing(tmp_path: Path) -> None:
    """A database that is up to date stays as it is."""
    migrated(tmp_path / "x.db")
    before = shape(tmp_path / "x.db")
    assert file.SqliteDatabase(tmp_path / "x.db").migrate() == []
    assert shape(tmp_path / "x.db") == before


def test_a_failing_step_rolls_back_whole(tmp_path: Path) -> None:
    """A step happens or does not: what it did before its fault is gone, the steps before it stay."""
    path = tmp_path / "x.db"
    migrated(path)
    before, version = shape(path), file.SCHEMA_VERSION
    good = Migration(version + 1, "good", "ALTER TABLE scopes ADD COLUMN colour TEXT;")
    bad = Migration(version + 2, "bad", "CREATE TABLE half (x); DROP TABLE audit; INSERT INTO nowhere VALUES (1);")
    with pytest.raises(StoreUnavailable, match="nowhere"):
        migrated(path, [*file.MIGRATIONS, replace(bad, number=version + 1)])
    assert shape(path) == before
    with pytest.raises(StoreUnavailable, match="nowhere"):
        migrated(path, [*file.MIGRATIONS, good, bad])
    after = shape(path)
    assert after["user_version"] == version + 1
    assert "colour" in str(after["table scopes"])
    assert after.keys() == before.keys()


# -- what SQL refuses


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """An event in every status; web-0 is in the Started one."""
    path = tmp_path / "forewarn.db"
    store = SqliteStore(path)
    events = [event(str(status), position=n, status=status) for n, status in enumerate(Status)]
    store.apply(
        change(
            scopes=[scope(), scope("blog")],
            machines=[machine(addresses=("10.0.0.1",), instance_id="i-1"), machine("web-1", instance_id="i-2")],
            maintenances=[maintenance("M1"), maintenance("M2"), ended(maintenance("M3"), at(1))],
            events=events,
            approvals=[approval("Scheduled")],
            orders=[order("Started")],
            audit=[entry()],
            tokens=[token()],
            receipts=[receipt()],
        )
    )
    store.close()
    with closing(file.connect(path)) as connection:
        yield connection


ADD_ORDER = (
    """INSERT INTO orders (id, issued, deadline, state, attempt, node, taken, ended, reason, output, scope) VALUES """
)


def put(**columns: object) -> str:
    """Insert an event like E1, with these columns (SQL literals) instead."""
    values: dict[str, object] = {
        "id": "'E1'",
        "maintenance_id": "'M1'",
        "wave": 1,
        "position": 99,
        "scope": "'shop'",
        "update_domain": 0,
        "type": "'Reboot'",
        "source": "'Platform'",
        "resources": """'["web-7"]'""",
        "description": "''",
        "duration_s": -1,
        "emergency": 0,
        "status": "'Planned'",
        "born_approved": 0,
        "needs_approval": 1,
        "approval": "'any'",
        "sequence": 0,
        "minimum_notice_s": 0,
        "reason": "''",
        **columns,
    }
    return f"INSERT INTO events ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


TIMES = {"published": "'2030-01-01'", "not_before": "'2030-01-02'"}
BROKEN: dict[str, str] = {
    # scopes
    "a scope of no kind": "UPDATE scopes SET kind = 'cluster'",
    "a scope with no mode of approval": "UPDATE scopes SET approval = 'some'",
    "a scope half enabled": "UPDATE scopes SET enabled = 2, epoch = 2",
    "a scope enabled without an epoch": "UPDATE scopes SET enabled = 1",
    "a scope with incarnation 0": "UPDATE scopes SET incarnation = 0",
    "a scope with version 0": "UPDATE scopes SET version = 0",
    "a scope with fewer than no operations": "UPDATE scopes SET max_user_operations = -1",
    "a scope with too short a notice": "UPDATE scopes SET terminate_notice_s = 299",
    "a scope with too long a notice": "UPDATE scopes SET terminate_notice_s = 901",
    "a scope with a user setting of 2": "UPDATE scopes SET approve_user_events = 2",
    "two scopes of one name": "UPDATE scopes SET name = 'shop'",
    "a scope without its machines": "DELETE FROM scopes WHERE name = 'shop'",
    # machines
    "a machine of no scope": "INSERT INTO machines VALUES ('gone', 'x', 0, 0, '', '', '', '{}')",
    "two machines of one name": "INSERT INTO machines VALUES ('shop', 'web-0', 0, 0, '', '', '', '{}')",
    "a machine in no update domain": "UPDATE machines SET update_domain = -1",
    "a machine in no fault domain": "UPDATE machines SET fault_domain = -1",
    "two machines with one instance id": "UPDATE machines SET instance_id = 'i-1'",
    "a machine without a word on its host": "UPDATE machines SET host = NULL",
    "one address for two machines": "INSERT INTO machine_addresses VALUES ('', '10.0.0.1', 'shop', 'web-1')",
    "an address of no machine": "INSERT INTO machine_addresses VALUES ('', '10.0.0.2', 'shop', 'web-9')",
    # maintenances
    "a maintenance with no answer to failure": "UPDATE maintenances SET on_failure = 'ignore'",
    "a maintenance in no status": "UPDATE maintenances SET status = 'Waiting'",
    "a maintenance that is over without an end": "UPDATE maintenances SET status = 'Failed' WHERE id = 'M1'",
    "a maintenance that ended and goes on": "UPDATE maintenances SET ended = '2030' WHERE id = 'M1'",
    "a maintenance that ended and wakes": "UPDATE maintenances SET wake_at = '2030' WHERE id = 'M3'",
    "a maintenance forgotten before its events": "DELETE FROM maintenances WHERE id = 'M1'",
    # events, as they come
    "two events of one id": put(id="'Planned'"),
    "two events in one place": put(position=0),
    "an event of no maintenance": put(maintenance_id="'M9'"),
    "an event in wave 0": put(wave=0),
    "an event of no type": put(type="'Explode'"),
    "an event of no source": put(source="'Guest'"),
    "an event in no status": put(status="'Paused'"),
    "an event with no mode of approval": put(approval="'some'"),
    "an event about no machine": put(resources="'[]'"),
    "an event whose machines are no list": put(resources="""'"web-0"'"""),
    "an open event with an end": put(ended="'2030'"),
    "an ended event without its end": put(status="'Cancelled'"),
    "an event told without a time of telling": put(status="'Scheduled'"),
    "an event started without a start": put(status="'Started'", **TIMES),
    "an event told without a NotBefore": put(published="'2030'"),
    "a NotBefore before the telling": put(published="'2030-01-02'", not_before="'2030-01-01'"),
    "a start before the telling": put(status="'Started'", started="'2029'", **TIMES),
    "an end before the start": put(status="'Completed'", started="'2031'", ended="'2030-06-01'", **TIMES),
    "a second started event with web-0": put(
        status="'Started'", started="'2031'", resources="""'["web-0", "web-7"]'""", **TIMES
    ),
    # events, as they change
    "a second event with web-0 that starts": "UPDATE events SET status = 'Started', started = not_before"
    " WHERE id = 'Scheduled'",
    "a completed event that changes": "UPDATE events SET reason = 'other' WHERE id = 'Completed'",
    "a cancelled event that comes back": "UPDATE events SET status = 'Scheduled', ended = NULL WHERE id = 'Cancelled'",
    "an abandoned event that completes": "UPDATE events SET status = 'Completed' WHERE id = 'Abandoned'",
    "an event that changes its id": "UPDATE events SET id = 'other' WHERE id = 'Planned'",
    "an event that changes its maintenance": "UPDATE events SET maintenance_id = 'M2' WHERE id = 'Planned'",
    "a NotBefore that comes earlier": "UPDATE events SET not_before = published WHERE id = 'Scheduled'",
    "a NotBefore that goes away": "UPDATE events SET not_before = NULL, published = NULL WHERE id = 'Scheduled'",
    "a time of telling that changes": "UPDATE events SET published = '2029' WHERE id = 'Started'",
    "a started event that is scheduled": "UPDATE events SET status = 'Scheduled' WHERE id = 'Started'",
    "a started event that is planned": "UPDATE events SET status = 'Planned' WHERE id = 'Started'",
    "a started event that is cancelled": "UPDATE events SET status = 'Cancelled', ended = '2031' WHERE id = 'Started'",
    "a scheduled event that is planned": "UPDATE events SET status = 'Planned' WHERE id = 'Scheduled'",
    # approvals, orders, audit
    "one approval twice": "INSERT INTO approvals VALUES ('Scheduled', 'web-0', 'x', '2030', '')",
    "an approval of no event": "INSERT INTO approvals VALUES ('E9', 'web-0', 'x', '2030', '')",
    "an order of no event": ADD_ORDER + "('E9', '2030', NULL, 'open', 1, '', NULL, NULL, '', '', 'shop')",
    "two orders of one event": ADD_ORDER + "('Started', '2030', NULL, 'open', 1, '', NULL, NULL, '', '', 'shop')",
    "an order of a host of no maintenance": "INSERT INTO orders (id, issued, state, attempt, node, reason, output, host,"
    " maintenance_id) VALUES ('H9', '2030', 'planned', 1, '', '', '', 'kvm-1', 'M9')",
    "an order of a host without a maintenance": "UPDATE orders SET host = 'kvm-1'",
    "an order of an event that is cancelled": "UPDATE orders SET state = 'cancelled'",
    "an order of an event that is abandoned": "UPDATE orders SET state = 'abandoned'",
    "an order of an event that is planned from the start": "UPDATE orders SET state = 'planned'",
    "an order in no phase": "UPDATE orders SET phase = 'sleep'",
    "a maintenance of hosts in no mode": "UPDATE maintenances SET host_mode = 'gently'",
    "an order in no state": "UPDATE orders SET state = 'late'",
    "an order in doubt without a node": "UPDATE orders SET state = 'in-doubt'",
    "an order in doubt with a time limit": "UPDATE orders SET state = 'in-doubt', node = 'a', deadline = '2030'",
    "an order never tried": "UPDATE orders SET attempt = 0",
    "an audit entry rewritten": "UPDATE audit SET who = 'nobody'",
    "an order without a scope": "UPDATE orders SET scope = NULL",
    # tokens and receipts
    "a token of no role": "UPDATE tokens SET role = 'guest'",
    "a token without a name": "UPDATE tokens SET name = ''",
    "a token with half a secret": "UPDATE tokens SET digest = 'abc'",
    "two tokens of one secret": "INSERT INTO tokens SELECT 'T2', name, role, scopes, digest, created, '', NULL FROM tokens",
    "two tokens of one id": "INSERT INTO tokens SELECT id, name, role, scopes, lower(hex(zeroblob(32))), created, '', NULL"
    " FROM tokens",
    "an owner of nothing": "UPDATE tokens SET role = 'owner'",
    "an operator who owns a scope": """UPDATE tokens SET scopes = '["shop"]'""",
    "a login with half a digest": "INSERT INTO sessions VALUES ('abc', 'T1', '2030', '2031')",
    "a use of no token": "INSERT INTO token_uses VALUES ('T9', '2030')",
    "one request answered twice": "INSERT INTO receipts SELECT token_id, key, 'd', 200, '', at FROM receipts",
    # what is found by scope
    "a maintenance twice in a scope": "INSERT INTO maintenance_scopes VALUES ('shop', 'Failed', '2030', 'M1')",
    "a scope of no maintenance": "INSERT INTO maintenance_scopes VALUES ('shop', 'Failed', '2030', 'M9')",
    "a machine seen that is none": "INSERT INTO last_seen VALUES ('shop', 'web-9', '2030')",
}


@pytest.mark.parametrize("statement", BROKEN.values(), ids=BROKEN)
def test_the_database_itself_refuses(database: sqlite3.Connection, statement: str) -> None:
    """Whatever program writes into the file, a row that breaks a rule is refused and nothing changes."""
    before = list(database.iterdump())
    with pytest.raises(sqlite3.IntegrityError):
        database.execute(statement)
    assert list(database.iterdump()) == before


def test_the_database_takes_what_is_right(database: sqlite3.Connection) -> None:
    """The statements above fail for their one fault: without it they pass."""
    database.execute(put())
    database.execute(put(id="'E2'", position=100, status="'Started'", started="'2031'", **TIMES))
    database.execute("UPDATE events SET status = 'Scheduled', published = '2030', not_before = '2030' WHERE id = 'E1'")
    database.execute("INSERT INTO machines VALUES ('shop', 'web-2', 0, 0, '', '', '', '{}')")
    database.execute("INSERT INTO machine_addresses VALUES ('', '10.0.0.2', 'shop', 'web-2')")
    database.execute("INSERT INTO approvals VALUES ('Scheduled', 'web-1', 'x', '2030', '')")
    database.execute(ADD_ORDER + "('Planned', '2030', NULL, 'open', 1, '', NULL, NULL, '', '', 'shop')")
    assert database.execute("SELECT count(*) FROM events").fetchone()[0] == len(Status) + 2


def test_a_machine_is_free_again_when_its_event_ends(database: sqlite3.Connection) -> None:
    """The started event's hold on its machines goes with the status, by the database's own doing."""
    start = "UPDATE events SET status = 'Started', started = not_before WHERE id = 'Scheduled'"
    with pytest.raises(sqlite3.IntegrityError, match="event_machines"):
        database.execute(start)
    database.execute("UPDATE events SET status = 'Completed', ended = '2031' WHERE id = 'Started'")
    database.execute(start)
    holding = database.execute(
        "SELECT e.id FROM event_machines m JOIN events e ON e.number = m.event_number WHERE m.started = 1"
    ).fetchall()
    assert [row["id"] for row in holding] == ["Scheduled"]


def test_where_a_maintenance_lies_goes_with_its_status(database: sqlite3.Connection) -> None:
    """A maintenance is found by scope under the status it has, and no longer once it is forgotten."""
    found = "SELECT scope, status FROM maintenance_scopes WHERE maintenance_id = 'M1'"
    database.execute(put(scope="'blog'"))
    assert {tuple(row) for row in database.execute(found)} == {("shop", "Planned"), ("blog", "Planned")}
    database.execute("UPDATE maintenances SET status = 'Running' WHERE id = 'M1'")
    assert {tuple(row) for row in database.execute(found)} == {("shop", "Running"), ("blog", "Running")}
    database.execute("DELETE FROM events")
    database.execute("DELETE FROM maintenances")
    assert database.execute(found).fetchall() == []


def test_forgetting_an_event_forgets_its_parts(database: sqlite3.Connection) -> None:
    """Machines, approvals and the order of an event go with it."""
    database.execute("DELETE FROM events")
    for table in ("event_machines", "approvals", "orders"):
        assert database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0
