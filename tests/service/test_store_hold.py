"""A held store: nothing starts and no order is handed out until an operator resumes it."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from forewarn.app.service import Service
from forewarn.core.change import Snapshot
from forewarn.core.errors import StoreUnavailable
from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, OrderState, Scope, ScopeKind
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.core.store_hold import restored
from forewarn.endpoint.documents import Documents
from forewarn.executors import Progress, Work
from forewarn.service.clock import ManualClock
from forewarn.service.settings import Settings
from forewarn.service.store_memory import StoreMemory
from forewarn.store import AuditQuery, Focus, Store, StorePosition
from forewarn.store.sqlite import file
from forewarn.store.sqlite.store import SqliteStore
from forewarn.testing.stories import START
from tests.support.services import OPERATOR, AwayStore, ScriptedExecutor, make_service, reboot, ticker_with


def test_a_restored_backup_hands_out_no_order(tmp_path: Path) -> None:
    """The order was open when the backup was made and has been done since: the restored store must not repeat it."""
    path, copy = tmp_path / "forewarn.db", tmp_path / "copy.db"
    with closing(SqliteStore(path)) as store:
        reboot(make_service(store, enabled=False))
        file.backup(path, copy)
    file.restore(copy, path, restored(copy, now=START, actor=OPERATOR))
    with closing(SqliteStore(path)) as store:
        executor = ScriptedExecutor()
        ticker = ticker_with(make_service(store), executor)
        ticker.recover()
        ticker.cycle_until_idle()
        assert executor.calls == []
        assert len(store.orders({OrderState.OPEN}, 10)) == 1


def held_service(store: Store) -> Service:
    """Return a service with one open order, whose store an operator held."""
    service = make_service(store, enabled=False)
    reboot(service)
    service.control.hold_store("a drill", OPERATOR)
    return service


def resume(service: Service) -> None:
    held = service.control.store_hold()
    assert held is not None
    service.control.resume_store(held.held, OPERATOR)


def test_a_resumed_store_hands_out_its_orders(store: Store) -> None:
    """While the store is held the ticker has nothing to do, and does not spin; then the order is taken once."""
    service, executor = held_service(store), ScriptedExecutor()
    ticker = ticker_with(service, executor)
    ticker.cycle_until_idle()
    assert not ticker.cycle()
    assert executor.calls == []
    resume(service)
    ticker.cycle_until_idle()
    assert executor.calls == ["take 1 running on h"]


def test_a_hold_during_recovery_stops_it(store: Store) -> None:
    """An operator holds the store while the node asks about its orders: none is begun again before the store is resumed."""
    service = make_service(store, enabled=False)
    reboot(service)
    ticker_with(service, ScriptedExecutor()).cycle_until_idle()

    class Holding(ScriptedExecutor):
        def status(self, work: Work) -> Progress | Outcome | Unknown:
            if service.control.store_hold() is None and "status" not in self.calls:
                service.control.hold_store("", OPERATOR)
            return super().status(work)

    executor = Holding(Progress.NOT_BEGUN)
    ticker = ticker_with(service, executor)
    ticker.recover()
    ticker.cycle_until_idle()
    assert executor.calls == ["status"]
    resume(service)
    ticker.cycle_until_idle()
    assert executor.calls == ["status", "status", "take 1 running on h"]


def test_a_hold_is_noticed_by_the_last_read_before_an_order_is_handed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator holds the store just before a recovering node reads the order for the last time."""
    service = make_service(store, enabled=False)
    order_id = reboot(service)
    ticker_with(service, ScriptedExecutor()).cycle_until_idle()
    executor = ScriptedExecutor(Progress.NOT_BEGUN)
    read = store.snapshot

    def hold_before_the_last_read(focus: Focus) -> Snapshot:
        if "status" in executor.calls and focus.events == (order_id,) and read(Focus()).store_hold is None:
            service.control.hold_store("", OPERATOR)
        return read(focus)

    with monkeypatch.context() as patch:
        patch.setattr(store, "snapshot", hold_before_the_last_read)
        ticker_with(service, executor).recover()
    assert service.control.store_hold() is not None
    assert executor.calls == ["status"]


def test_an_order_is_not_repeated_after_a_restart_while_the_store_is_held(store: Store) -> None:
    """The executor is not even asked about a running order: it would begin the work again, and tidy away the rest."""
    service = make_service(store, enabled=False)
    reboot(service)
    ticker_with(service, ScriptedExecutor()).cycle_until_idle()
    service.control.hold_store("", OPERATOR)
    executor = ScriptedExecutor(Progress.RUNNING)
    ticker = ticker_with(service, executor)
    ticker.recover()
    ticker.cycle_until_idle()
    assert executor.calls == []
    resume(service)
    ticker.cycle_until_idle()
    assert executor.calls == ["status", "watch"]


def test_a_recovery_that_the_store_interrupts_is_repeated() -> None:
    """The store fails while a resumed node asks about its orders: the next cycle asks about all of them."""
    store = AwayStore()
    service = make_service(store, enabled=False)
    reboot(service)
    ticker_with(service, ScriptedExecutor()).cycle_until_idle()
    service.control.hold_store("", OPERATOR)
    executor = ScriptedExecutor(Progress.NOT_BEGUN)
    ticker = ticker_with(service, executor)
    ticker.recover()
    resume(service)
    store.orders_away = True
    with pytest.raises(StoreUnavailable):
        ticker.cycle()
    store.orders_away = False
    ticker.cycle_until_idle()
    assert executor.calls == ["status", "take 1 running on h"]


def test_what_resuming_would_do_is_shown_first(store: Store) -> None:
    """The preview names the event that would start and the orders that executors would get, and changes nothing."""
    service = make_service(store, scopes=3, enabled=False)
    taken = reboot(service, "s-0")
    ticker_with(service, ScriptedExecutor()).cycle_until_idle()
    open_order = reboot(service, "s-1")
    service.control.hold_store("", OPERATOR)
    waiting = reboot(service, "s-2")
    effects = service.control.effects_of_resuming(10)
    assert effects.hold == service.control.store_hold()
    assert [event.id for event in effects.starts] == [waiting]
    assert {order.id: (order.state, event.id) for order, event in effects.orders} == {
        taken: (OrderState.RUNNING, taken),
        open_order: (OrderState.OPEN, open_order),
    }
    assert not effects.more
    assert service.control.effects_of_resuming(1).more
    assert service.control.effects_of_resuming(10) == effects


def test_a_held_store_is_a_warning_and_a_figure(store: Store) -> None:
    """Monitoring shows the hold and what to do; the service stays ready."""
    service = held_service(store)
    assert "`forewarn db resume`" in service.health.warnings()["store_hold"]
    assert service.health.facts(Documents(store, service.clock)).store_held
    resume(service)
    assert "store_hold" not in service.health.warnings()
    assert service.health.facts(Documents(store, service.clock)).store_held is False


# -- the database that a node remembers


class Opened:
    """Services that open their SQLite file themselves, as `forewarn serve` does, with one state folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def service(self, name: str = "forewarn.db") -> Service:
        settings = Settings(store=f"sqlite:{self.folder / name}", state_dir=self.folder / "state", executor="external")
        return Service(settings, clock=ManualClock(START), node="here")

    def fill(self, name: str = "forewarn.db") -> None:
        """Serve a database, schedule a maintenance in it, and stop."""
        with closing(self.service(name)) as service:
            fleet = Fleet(
                {"s-0": Scope(name="s-0", kind=ScopeKind.AVAILABILITY_SET)},
                {("s-0", "m"): Machine(scope="s-0", name="m")},
            )
            service.control.apply_fleet(fleet, OPERATOR)
            reboot(service)
            service.ticker.cycle_until_idle()

    def why_held(self, name: str = "forewarn.db") -> str:
        """Start a service; return why its store is held, or ""."""
        with closing(self.service(name)) as service:
            held = service.control.store_hold()
            return held.detail if held is not None else ""


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)


def test_the_same_database_goes_on(opened: Opened) -> None:
    """A restart, also after more work, holds nothing."""
    opened.fill()
    assert opened.why_held() == ""
    assert opened.why_held() == ""


def test_an_older_copy_of_the_database_is_held(opened: Opened) -> None:
    """An operator copied a backup over the file, without `forewarn db restore`."""
    opened.fill()
    file.backup(opened.folder / "forewarn.db", opened.folder / "copy.db")
    with closing(opened.service()) as service:
        reboot(service)
        service.ticker.cycle_until_idle()
    for each in opened.folder.glob("forewarn.db*"):
        each.unlink()
    shutil.copy(opened.folder / "copy.db", opened.folder / "forewarn.db")
    assert "in an earlier state than this node remembers" in opened.why_held()
    with closing(opened.service()) as service:
        actions = [entry.action for entry in service.store.audit(AuditQuery(limit=2))]
        assert actions == ["store held", "database replaced"]
        resume(service)
    assert opened.why_held() == ""


def test_another_database_with_open_work_is_held_once(opened: Opened) -> None:
    """After an operator has resumed it, it is not held again, also not by a node that still remembers the first one."""
    opened.fill()
    memory = (opened.folder / "state" / "store.json").read_text()
    other = Opened(opened.folder / "other")
    other.fill()
    shutil.copy(other.folder / "forewarn.db", opened.folder / "forewarn.db")
    assert "not the database that this node used last" in opened.why_held()
    with closing(opened.service()) as service:
        resume(service)
    (opened.folder / "state" / "store.json").write_text(memory)
    assert opened.why_held() == ""


def test_each_file_is_remembered_by_its_path(opened: Opened) -> None:
    """Files that share a state folder go on in turns. An older copy of one is held wherever it is; so is an older release's."""
    opened.fill()
    Opened(opened.folder / "other").fill()
    assert [opened.why_held(name) for name in ("other/forewarn.db", "forewarn.db", "other/forewarn.db")] == ["", "", ""]
    file.backup(opened.folder / "forewarn.db", opened.folder / "copy.db")
    with closing(opened.service()) as service:
        reboot(service)
        service.ticker.cycle_until_idle()
    assert "in an earlier state than this node remembers" in opened.why_held("copy.db")
    path = opened.folder / "state" / "store.json"
    known = json.loads(path.read_text())["stores"]
    path.write_text(json.dumps({**known[str(opened.folder / "forewarn.db")], "audit_id": 1_000}))
    assert "in an earlier state than this node remembers" in opened.why_held()


def test_another_database_without_open_work_is_not_held(opened: Opened) -> None:
    """A new database has nothing to repeat."""
    opened.fill()
    assert opened.why_held("new.db") == ""


def test_a_restored_backup_is_held_once(opened: Opened) -> None:
    """`forewarn db restore` holds it. The node's memory adds nothing, and does not hold it again once it is resumed."""
    opened.fill()
    path, copy = opened.folder / "forewarn.db", opened.folder / "copy.db"
    file.backup(path, copy)
    file.restore(copy, path, restored(copy, now=START, actor=OPERATOR))
    with closing(opened.service()) as service:
        actions = [entry.action for entry in service.store.audit(AuditQuery(limit=3))]
        assert actions[:2] == ["store held", "database restored"]
        resume(service)
    assert opened.why_held() == ""


def test_a_memory_that_cannot_be_read_holds_nothing(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file is logged and written anew."""
    opened.fill()
    path = opened.folder / "state" / "store.json"
    path.write_text("{")
    assert opened.why_held() == ""
    assert "cannot be read, so a restored database would not be noticed" in caplog.text
    assert [each["audit_id"] > 0 for each in json.loads(path.read_text())["stores"].values()] == [True]


def test_a_later_position_is_not_forgotten(tmp_path: Path) -> None:
    """A node that read an earlier position writes last, or the database was set back: the later position stays."""
    with closing(SqliteStore(tmp_path / "f.db")) as store:
        position = store.position()
        assert position is not None
        positions = [replace(position, audit_id=5), replace(position, audit_id=3), replace(position, audit_id=3)]
        positions += [replace(position, audit_id=1, timeline=2), replace(position, audit_id=1, identity="another")]
        remembered = []
        for found in positions:
            memory = StoreMemory(tmp_path, cast(Store, Position(found)), place="here")
            memory.remember()
            remembered.append(json.loads((tmp_path / "store.json").read_text())["stores"]["here"]["audit_id"])
    assert remembered == [5, 5, 5, 1, 1]


class Position:
    """A store at a position."""

    def __init__(self, position: StorePosition) -> None:
        self._position = position

    def position(self) -> StorePosition:
        return self._position


def test_a_folder_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The service works without a memory, and the log says what is missing."""
    with closing(SqliteStore(tmp_path / "f.db")) as store:
        memory = StoreMemory(Path("/proc/nowhere"), store, place="here")
        memory.remember()
        memory.remember()
    assert caplog.text.count("a restored database would not be noticed") == 1
