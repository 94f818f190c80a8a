"""The executor `libvirt` around the work on machines: reports, doubt, hosts that are lost, settings."""

import importlib.util
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.core.order_verbs import Outcome, Unknown
from forewarn.executors import Progress, Work
from forewarn.libvirt.connections import HostUnreachable
from forewarn.libvirt.executor import LibvirtExecutor, LibvirtSettings
from forewarn.libvirt.journal import Journal
from forewarn.libvirt.machine_work import InDoubt, MachineEnd, MachineWork, WorkFailed
from tests.support.services import work
from tests.support.waiting import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LOST = HostUnreachable("libvirt on rack1-a does not answer")


class ScriptedWork(MachineWork):
    """Ends as a script says, in place of work on a domain."""

    def __init__(self, ends: list[MachineEnd | Exception], *, begun: bool) -> None:
        self._ends, self._begun = ends, begun

    def run(self) -> MachineEnd:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def begun(self) -> bool:
        return self._begun


class ScriptedExecutor(LibvirtExecutor):
    """Gives the work on machines these ends, in turn; it had begun if `begun`."""

    def __init__(self, folder: Path, settings: LibvirtSettings | None = None) -> None:
        super().__init__(settings or LibvirtSettings(), folder)
        self.ends: list[MachineEnd | Exception] = []
        self.begun = True

    def machine_work(self, work: Work, machine: str, journal: Journal) -> MachineWork:
        return ScriptedWork(self.ends, begun=self.begun)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ScriptedExecutor]:
    executor = ScriptedExecutor(tmp_path / "state" / "libvirt")
    yield executor
    executor.close()


def ended(executor: LibvirtExecutor, order: Work) -> Outcome | Unknown:
    executor.take(order)
    return reported(executor)


def reported(executor: LibvirtExecutor) -> Outcome | Unknown:
    found: list[Outcome | Unknown] = []

    def seen() -> bool:
        found.extend(report.outcome for report in executor.reports(NOW))
        return bool(found)

    until(seen)
    return found[0]


def test_a_failed_machine_fails_the_order_and_the_others_count(executor: ScriptedExecutor) -> None:
    """The report has the reason of the failure, and the new hosts of the machines that moved."""
    executor.ends = [MachineEnd("one moved", "rack2-a"), WorkFailed("the other is stuck: free it")]
    outcome = ended(executor, work())
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, outcome.reason, outcome.output) == (False, "the other is stuck: free it", "one moved")
    assert outcome.new_hosts is not None
    assert list(outcome.new_hosts.values()) == ["rack2-a"]


@pytest.mark.parametrize("error", [InDoubt("nobody knows"), ValueError("a defect")])
def test_doubt_about_one_machine_is_doubt_about_the_order(executor: ScriptedExecutor, error: Exception) -> None:
    """What the work itself does not call a failure is in doubt, and this process does not begin it again."""
    executor.ends = [MachineEnd("fine"), error]
    order = work()
    outcome = ended(executor, order)
    assert outcome == Unknown(str(error))
    assert executor.status(order) == outcome


def test_a_host_that_does_not_return_before_work_began_fails_the_order(tmp_path: Path) -> None:
    """Nothing was done, and the reason says so."""
    executor = ScriptedExecutor(tmp_path / "libvirt", LibvirtSettings(host_return_s=0))
    executor.ends, executor.begun = [LOST, LOST], False
    outcome = ended(executor, work(resources=("web-0",)))
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, "Nothing was done; retry" in outcome.reason) == (False, True)


@pytest.mark.parametrize("begun", [False, True])
def test_work_goes_on_when_a_lost_host_is_back(executor: ScriptedExecutor, begun: bool) -> None:
    """An order waits for its host, whether its work has begun or not: a libvirtd that is restarted fails no order."""
    executor.ends, executor.begun = [LOST, LOST, MachineEnd("done")], begun
    outcome = ended(executor, work(resources=("web-0",)))
    assert isinstance(outcome, Outcome)
    assert outcome.ok


def test_a_host_that_does_not_return_leaves_its_work_in_doubt(tmp_path: Path) -> None:
    """After `host_return` nobody knows what became of work that had begun."""
    executor = ScriptedExecutor(tmp_path / "libvirt", LibvirtSettings(host_return_s=0))
    executor.ends = [LOST, LOST, LOST]
    outcome = ended(executor, work(resources=("web-0",)))
    assert isinstance(outcome, Unknown)
    assert "the work had begun when a host was lost" in outcome.reason


def test_a_restarted_node_continues_its_own_orders_only(executor: ScriptedExecutor, tmp_path: Path) -> None:
    """A journal in the state folder lets `watch` continue; without one, and without a host to ask, nothing is known."""
    order = work(resources=("web-0",))
    assert isinstance(executor.status(order), Unknown)
    executor.ends = [WorkFailed("first")]
    ended(executor, order)
    again = ScriptedExecutor(tmp_path / "state" / "libvirt")
    again.ends = [MachineEnd("second")]
    assert again.status(order) is Progress.RUNNING
    again.watch(order)
    again.watch(order)
    outcome = reported(again)
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, outcome.output, again.at_work()) == (True, "second", 0)
    again.tidy([order])
    assert again.status(order) is Progress.RUNNING
    again.tidy([])
    assert isinstance(again.status(order), Unknown)
    again.close()


def test_an_order_has_few_threads(tmp_path: Path) -> None:
    """However many machines its event has: at most `parallel` for each host."""
    threads: set[threading.Thread] = set()

    class NotingExecutor(ScriptedExecutor):
        def machine_work(self, work: Work, machine: str, journal: Journal) -> MachineWork:
            threads.add(threading.current_thread())
            return ScriptedWork([MachineEnd("done")], begun=True)

    executor = NotingExecutor(tmp_path / "state" / "libvirt", LibvirtSettings(parallel=2))
    names = tuple(f"web-{number}" for number in range(20))
    order = replace(work(resources=names), hosts={name: f"kvm-{len(name)}" for name in names})
    assert ended(executor, order) == Outcome(True, "", "\n".join(["done"] * 20))
    assert len(threads) <= 4
    executor.close()


def test_a_host_without_a_connection_cannot_be_asked(executor: LibvirtExecutor) -> None:
    """libvirt would otherwise answer for the machine that forewarn runs on."""
    assert executor.machines_on("kvm-a", "") is None
    # None if it does not answer soon enough.
    until(lambda: executor.machines_on("kvm-a", "test:///default") == ("test",))


def test_a_time_limit_of_orders_leaves_room_for_the_work() -> None:
    """An order must not fail while its migration still runs."""
    settings = LibvirtSettings(migration_time_limit_s=900)
    LibvirtExecutor.check(settings, order_timeout_s=0)
    LibvirtExecutor.check(settings, order_timeout_s=901)
    with pytest.raises(InvalidSettings, match="order_timeout: it must be longer"):
        LibvirtExecutor.check(settings, order_timeout_s=900)
    with pytest.raises(InvalidSettings, match="order_timeout: it must be longer"):
        LibvirtExecutor.check(replace(settings, shutdown_grace_s=2_000), order_timeout_s=1_000)


def test_without_libvirt_python_the_service_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the packages and the extra."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidSettings, match=r"libvirt-dev, pkg-config and gcc.*forewarn\[server,libvirt\]"):
        LibvirtExecutor.from_settings(LibvirtSettings(), tmp_path)
