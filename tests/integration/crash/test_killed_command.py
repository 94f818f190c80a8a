"""The service is killed while commands run: they continue, are not run again, and their results are saved."""

import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from forewarn.core.fleet import Fleet
from forewarn.core.model import (
    Actor,
    EventType,
    Host,
    HostMode,
    Machine,
    Maintenance,
    MaintenanceRequest,
    MaintenanceStatus,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Status,
    Targets,
)
from forewarn.service.clock import SystemClock
from forewarn.service.control import Control
from forewarn.store import EventQuery, MaintenanceQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.support.budget import chosen_seed
from tests.support.waiting import PATIENCE_S, until

ORDERS = 24
HOSTS = 8
KILLS = 3
PARALLEL = 3

WAITS = """
echo "$FOREWARN_ORDER_ID $FOREWARN_ATTEMPT" >> begun
while [ ! -e go ]; do sleep 0.02; done
echo "all is well with $FOREWARN_RESOURCES"
"""
WAITS_FOR_HOST = """
echo "$FOREWARN_ORDER_ID $FOREWARN_ATTEMPT" >> begun
while [ ! -e go ]; do sleep 0.02; done
echo "patched $FOREWARN_HOST, $FOREWARN_HOST_MODE"
"""
SHORT = """
echo "$FOREWARN_ORDER_ID $FOREWARN_ATTEMPT" >> begun
sleep 0.1
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder with a database whose orders wait for the command executor."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "forewarn.db"

    def prepare(self, orders: int, script: str) -> None:
        """Create scopes whose guests never polled: a maintenance there starts at once, and its order is open."""
        names = [f"s{n}" for n in range(orders)]
        scopes = {name: Scope(name=name, kind=ScopeKind.STANDALONE) for name in names}
        machines = {(name, "vm"): Machine(scope=name, name="vm") for name in names}
        ids = count(1)
        with closing(SqliteStore(self.database)) as store:
            control = Control(store, SystemClock(), new_id=lambda: f"ID-{next(ids)}", order_timeout_s=0)
            control.apply_fleet(Fleet(scopes, machines), Actor("test"))
            for name in names:
                control.submit(MaintenanceRequest(type=EventType.FREEZE, targets=Targets(scope=name)), Actor("test"))
        (self.folder / "script.sh").write_text(f"cd '{self.folder}'\n{script}")

    def prepare_hosts(self, hosts: int, script: str) -> None:
        """Create hosts without machines: maintenance of one has its order open at once."""
        names = [f"kvm-{n}" for n in range(hosts)]
        ids = count(1)
        with closing(SqliteStore(self.database)) as store:
            control = Control(store, SystemClock(), new_id=lambda: f"ID-{next(ids)}", order_timeout_s=0)
            control.apply_fleet(Fleet({}, {}, {name: Host(name=name, listed=True) for name in names}), Actor("test"))
            for name in names:
                request = MaintenanceRequest(
                    type=EventType.FREEZE, targets=Targets(hosts=(name,)), host_mode=HostMode.EVACUATE
                )
                control.submit(request, Actor("test"))
        (self.folder / "script.sh").write_text(f"cd '{self.folder}'\n{script}")

    @contextmanager
    def served(self) -> Iterator[str]:
        """Run the real service and kill it at the end; yield its operator address."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
        settings = {
            "FOREWARN_STORE": f"sqlite:{self.database}",
            "FOREWARN_STATE_DIR": str(self.folder),
            "FOREWARN_EXECUTOR": "command",
            "FOREWARN_COMMAND": f"/bin/sh {self.folder / 'script.sh'}",
            "FOREWARN_COMMAND_PARALLEL": str(PARALLEL),
            "FOREWARN_HOST_EXECUTOR": "command",
            "FOREWARN_HOST_COMMAND": f"/bin/sh {self.folder / 'script.sh'}",
            "FOREWARN_NODE_HOST": "elsewhere",
            "FOREWARN_GUEST": "127.0.0.1:0",
            "FOREWARN_OPERATOR": "127.0.0.1:0",
            "FOREWARN_LOG_LEVEL": "warning",
        }
        command = [sys.executable, "-m", "forewarn", "serve"]
        with subprocess.Popen(command, env=environment | settings, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                ready = re.match(r"ready .*operator=(\S+)", process.stdout.readline())
                assert ready is not None, f"it ended with {process.poll()}"
                yield ready[1]
            finally:
                process.kill()

    def begun(self) -> Counter[str]:
        """Count how often the command of each order has run."""
        path = self.folder / "begun"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def orders(self) -> list[Order]:
        with closing(SqliteStore(self.database)) as store:
            return [
                *store.orders(tuple(OrderState), 500),
                *store.orders(tuple(OrderState), 500, of_hosts=True),
            ]

    def all_done(self) -> bool:
        return all(order.state is OrderState.DONE for order in self.orders())

    def maintenances(self) -> list[Maintenance]:
        with closing(SqliteStore(self.database)) as store:
            return store.maintenances(MaintenanceQuery())

    def all_done_or_in_doubt(self) -> bool:
        return all(order.state in (OrderState.DONE, OrderState.IN_DOUBT) for order in self.orders())

    def runners(self) -> list[int]:
        """Return the runners that are alive: they have the folder in their command line."""
        pids = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"runner.py") for word in words) and any(
                str(self.folder).encode() in w for w in words
            ):
                pids.append(int(entry.name))
        return pids


def wait_for_a_cycle(url: str) -> None:
    """Wait until the service has recovered and completed a cycle."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE_S) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    until(answers)


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    installed = Installation(tmp_path)
    yield installed
    (tmp_path / "go").touch()  # a command that a failed test leaves behind ends by itself
    for pid in installed.runners():
        with suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGKILL)


def test_a_command_continues_and_is_not_run_again(installed: Installation) -> None:
    """While the first run is alive the restarted service waits for it, and then takes its result."""
    installed.prepare(1, WAITS)
    with installed.served():
        until(installed.begun)
    (runner,) = installed.runners()
    (order,) = installed.orders()
    assert order.state is OrderState.RUNNING
    with installed.served() as url:
        wait_for_a_cycle(url)
        assert installed.runners() == [runner]
        assert installed.begun() == {f"{order.id} 1": 1}
        (installed.folder / "go").touch()
        until(installed.all_done)
    assert installed.begun() == {f"{order.id} 1": 1}
    (order,) = installed.orders()
    assert (order.attempt, order.output) == (1, "all is well with vm\n")
    with closing(SqliteStore(installed.database)) as store:
        assert [event.status for event in store.events(EventQuery()).events] == [Status.COMPLETED]


def test_a_command_that_ended_meanwhile_is_not_run_again(installed: Installation) -> None:
    """The service finds its result after the restart."""
    installed.prepare(1, WAITS)
    with installed.served():
        until(installed.begun)
    (installed.folder / "go").touch()
    until(lambda: not installed.runners())
    assert not installed.all_done()
    with installed.served():
        until(installed.all_done)
    (order,) = installed.orders()
    assert installed.begun() == {f"{order.id} 1": 1}
    assert order.output == "all is well with vm\n"


def test_no_command_runs_twice_however_often_the_service_is_killed(installed: Installation) -> None:
    """The service is killed at any moment. A kill between taking an order and beginning it leaves the order in doubt."""
    seed = chosen_seed(1)
    choose = random.Random(seed)
    installed.prepare(ORDERS, SHORT)
    for _ in range(KILLS):
        with installed.served():
            time.sleep(choose.uniform(0.0, 0.15))
    with installed.served():
        until(installed.all_done_or_in_doubt, detail=lambda: f"with seed {seed}")
    begun, orders = installed.begun(), installed.orders()
    assert len(orders) == ORDERS
    assert begun.keys() <= {f"{order.id} 1" for order in orders}, f"seed {seed}"
    for order in orders:
        runs = begun[f"{order.id} 1"]
        assert runs == 1 if order.state is OrderState.DONE else runs <= 1, f"{order.id} ran {runs} times, seed {seed}"
    # A kill meets at most the orders that the service takes at once.
    assert sum(order.state is OrderState.IN_DOUBT for order in orders) <= KILLS * PARALLEL, f"seed {seed}"


def test_work_on_a_host_continues_and_is_not_run_again(installed: Installation) -> None:
    """The host command counts its own runs: killing the service while it runs adds none."""
    installed.prepare_hosts(1, WAITS_FOR_HOST)
    with installed.served():
        until(installed.begun)
    (order,) = installed.orders()
    assert order.state is OrderState.RUNNING
    with installed.served() as url:
        wait_for_a_cycle(url)
        (installed.folder / "go").touch()
        # The tick after the report of the order ends the maintenance.
        until(lambda: all(maintenance.ended for maintenance in installed.maintenances()))
    assert installed.begun() == {f"{order.id} 1": 1}
    (order,) = installed.orders()
    assert order.state is OrderState.DONE
    assert order.output == "patched kvm-0, evacuate\n"
    assert [maintenance.status for maintenance in installed.maintenances()] == [MaintenanceStatus.COMPLETED]
    with closing(SqliteStore(installed.database)) as store:
        assert store.hosts()["kvm-0"].cordoned is None


def test_no_host_is_worked_on_twice_however_often_the_service_is_killed(installed: Installation) -> None:
    """A kill between taking the order of a host and beginning its work leaves the order in doubt."""
    seed = chosen_seed(2)
    choose = random.Random(seed)
    installed.prepare_hosts(HOSTS, SHORT)
    for _ in range(KILLS):
        with installed.served():
            time.sleep(choose.uniform(0.0, 0.15))
    with installed.served():
        until(installed.all_done_or_in_doubt, detail=lambda: f"with seed {seed}")
    begun, orders = installed.begun(), installed.orders()
    assert len(orders) == HOSTS
    for order in orders:
        runs = begun[f"{order.id} 1"]
        assert runs == 1 if order.state is OrderState.DONE else runs <= 1, f"{order.host} ran {runs} times, seed {seed}"
