"""The stores every contract, story and property runs on."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from forewarn.store import Store
from forewarn.store.memory import MemoryStore
from forewarn.store.postgres.store import PostgresStore
from forewarn.store.sqlite.store import SqliteStore
from tests.caller import PROXIES, forget_the_caller
from tests.support.budget import BUDGET
from tests.support.postgres_servers import ANY_TIME_S, SHARED, UNHURRIED

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile(
    "any machine", deadline=None, derandomize=BUDGET == 1, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A shell that starts the tests in the background lets them ignore SIGINT, and `nohup` SIGHUP; so would every program that they
# start.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What a service writes into its state folder, which must never be the working directory.
STATE_FILES = ("store.json", "operator.token", "forewarn.db")

StoreFactory = Callable[[Path], Store]

STORES: dict[str, StoreFactory] = {
    "memory": lambda _: MemoryStore(),
    "postgres": lambda _: PostgresStore(SHARED.emptied(), decided_within_s=ANY_TIME_S, limits=UNHURRIED),
    "sqlite": lambda folder: SqliteStore(folder / "forewarn.db"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what is seen into stories and golden files")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROXIES] = forget_the_caller()  # before any test module reads the environment


def pytest_runtest_teardown() -> None:
    stray = [name for name in STATE_FILES if Path(name).exists()]
    assert not stray, f"{', '.join(stray)} in {Path.cwd()}: give the service of this test a state_dir, and delete it"


def pytest_unconfigure() -> None:
    SHARED.close()


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = STORES[request.param](tmp_path)
    yield made
    made.close()
