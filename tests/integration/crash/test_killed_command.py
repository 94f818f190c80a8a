"""The service is killed while commands run: they go on, are not run again, and their results are picked up."""

import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from forewarn.core.fleet import Fleet
from forewarn.core.model import (
    Actor,
    EventType,
    Machine,
    MaintenanceRequest,
    Order,
    OrderState,
    Scope,
    ScopeKind,
    Status,
    Targets,
)
from forewarn.service.clock import SystemClock
from forewarn.service.control import Control
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.support.waiting import until

ORDERS = 24
KILLS = 3

WAITS = """
echo "$FOREWARN_ORDER_ID $FOREWARN_ATTEMPT" >> begun
while [ ! -e go ]; do sleep 0.02; done
echo "all is well with $FOREWARN_RESOURCES"
"""
SHORT = """
echo "$FOREWARN_ORDER_ID $FOREWARN_ATTEMPT" >> begun
sleep 0.1
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with a database whose orders wait for the command executor."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "forewarn.db"

    def prepare(self, orders: int, script: str) -> None:
        """Scopes that nobody watches: a maintenance there starts when it is asked for, and its order is open."""
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

    @contextmanager
    def served(self) -> Iterator[str]:
        """The real service, ready; killed at the end. Yields its operator's address."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
        settings = {
            "FOREWARN_STORE": f"sqlite:{self.database}",
            "FOREWARN_STATE_DIR": str(self.folder),
            "FOREWARN_EXECUTOR": "command",
            "FOREWARN_COMMAND": f"/bin/sh {self.folder / 'script.sh'}",
            "FOREWARN_COMMAND_PARALLEL": "3",
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
        """How often each order's command was run."""
        path = self.folder / "begun"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def orders(self) -> list[Order]:
        with closing(SqliteStore(self.database)) as store:
            return store.orders(tuple(OrderState), 500)

    def all_done(self) -> bool:
        return all(order.state is OrderState.DONE for order in self.orders())

    def runners(self) -> list[int]:
        """Our runners that are alive: they bear the folder in their command line."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"runner.py") for word in words) and any(
                str(self.folder).encode() in w for w in words
            ):
                found.append(int(entry.name))
        return found


def wait_for(condition: Callable[[], object], what: str) -> None:
    until(condition, told=lambda: what)


def wait_for_a_cycle(url: str) -> None:
    """Recovered, and has looked at its orders at least once."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except urllib.error.URLError:
            return False

    wait_for(answers, "the ticker has cycled")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for pid in place.runners():
        os.kill(pid, signal.SIGKILL)


def test_a_command_goes_on_and_is_not_run_again(place: Place) -> None:
    """While the first run is alive the restarted service waits for it, and then takes its result."""
    place.prepare(1, WAITS)
    with place.served():
        wait_for(place.begun, "the command runs")
    (runner,) = place.runners()
    (order,) = place.orders()
    assert order.state is OrderState.RUNNING
    with place.served() as url:
        wait_for_a_cycle(url)
        assert place.runners() == [runner]
        assert place.begun() == {f"{order.id} 1": 1}
        (place.folder / "go").touch()
        wait_for(place.all_done, "the result is picked up")
    assert place.begun() == {f"{order.id} 1": 1}
    (order,) = place.orders()
    assert (order.attempt, order.output) == (1, "all is well with vm\n")
    with closing(SqliteStore(place.database)) as store:
        assert [event.status for event in store.events(EventQuery()).events] == [Status.COMPLETED]


def test_a_command_that_ended_meanwhile_is_not_run_again(place: Place) -> None:
    """Its result waited for the service."""
    place.prepare(1, WAITS)
    with place.served():
        wait_for(place.begun, "the command runs")
    (place.folder / "go").touch()
    wait_for(lambda: not place.runners(), "the command has ended while nobody served")
    assert not place.all_done()
    with place.served():
        wait_for(place.all_done, "the result is picked up")
    (order,) = place.orders()
    assert place.begun() == {f"{order.id} 1": 1}
    assert order.output == "all is well with vm\n"


def test_commands_run_once_each_however_often_the_service_is_killed(place: Place) -> None:
    """Killed at any moment, between taking an order and running it too: every order is run, and none a second time."""
    seed = random.SystemRandom().randrange(10**9)
    choose = random.Random(seed)
    place.prepare(ORDERS, SHORT)
    for _ in range(KILLS):
        with place.served():
            time.sleep(choose.uniform(0.0, 0.15))
    with place.served():
        wait_for(place.all_done, f"every order is done, seed {seed}")
    assert place.begun() == {f"{order.id} 1": 1 for order in place.orders()}, f"seed {seed}"
    assert len(place.orders()) == ORDERS
