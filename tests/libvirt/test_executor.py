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
from forewarn.libvirt.machine_work import InDoubt, MachineEnd, MachineWork, WorkFailed
from tests.support.services import work
from tests.support.waiting import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LOST = HostUnreachable("libvirt on rack1-a does not answer")


class Script:
    """What `MachineWork.run` does in turn, in place of work on a domain."""

    def __init__(self, *ends: MachineEnd | Exception, begun: bool = True) -> None:
        self.ends = list(ends)
        self.begun = begun

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def run(_: MachineWork) -> MachineEnd:
            end = self.ends.pop(0)
            if isinstance(end, Exception):
                raise end
            return end

        patch.setattr(MachineWork, "run", run)
        patch.setattr(MachineWork, "begun", lambda _: self.begun)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[LibvirtExecutor]:
    executor = LibvirtExecutor(LibvirtSettings(), tmp_path / "state" / "libvirt")
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


def test_a_failed_machine_fails_the_order_and_the_others_count(
    executor: LibvirtExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report has the reason of the failure, and the new hosts of the machines that moved."""
    Script(MachineEnd("one moved", "rack2-a"), WorkFailed("the other is stuck: free it")).install(monkeypatch)
    outcome = ended(executor, work())
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, outcome.reason, outcome.output) == (False, "the other is stuck: free it", "one moved")
    assert outcome.new_hosts is not None
    assert list(outcome.new_hosts.values()) == ["rack2-a"]


@pytest.mark.parametrize("error", [InDoubt("nobody knows"), ValueError("a defect")])
def test_doubt_about_one_machine_is_doubt_about_the_order(
    executor: LibvirtExecutor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What the work itself does not call a failure is in doubt, and this process does not begin it again."""
    Script(MachineEnd("fine"), error).install(monkeypatch)
    order = work()
    outcome = ended(executor, order)
    assert outcome == Unknown(str(error))
    assert executor.status(order) == outcome


def test_a_host_that_does_not_return_before_work_began_fails_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was done, and the reason says so."""
    executor = LibvirtExecutor(LibvirtSettings(host_return_s=0), tmp_path / "libvirt")
    Script(LOST, LOST, begun=False).install(monkeypatch)
    outcome = ended(executor, work(resources=("web-0",)))
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, "Nothing was done; retry" in outcome.reason) == (False, True)


@pytest.mark.parametrize("begun", [False, True])
def test_work_goes_on_when_a_lost_host_is_back(
    executor: LibvirtExecutor, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """An order waits for its host, whether its work has begun or not: a libvirtd that is restarted fails no order."""
    Script(LOST, LOST, MachineEnd("done"), begun=begun).install(monkeypatch)
    outcome = ended(executor, work(resources=("web-0",)))
    assert isinstance(outcome, Outcome)
    assert outcome.ok


def test_a_host_that_does_not_return_leaves_its_work_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `host_return` nobody knows what became of work that had begun."""
    executor = LibvirtExecutor(LibvirtSettings(host_return_s=0), tmp_path / "libvirt")
    Script(LOST, LOST, LOST).install(monkeypatch)
    outcome = ended(executor, work(resources=("web-0",)))
    assert isinstance(outcome, Unknown)
    assert "the work had begun when a host was lost" in outcome.reason


def test_a_restarted_node_continues_its_own_orders_only(
    executor: LibvirtExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal in the state folder lets `watch` continue; without one, and without a host to ask, nothing is known."""
    order = work(resources=("web-0",))
    assert isinstance(executor.status(order), Unknown)
    Script(WorkFailed("first"), MachineEnd("second")).install(monkeypatch)
    ended(executor, order)
    again = LibvirtExecutor(LibvirtSettings(), tmp_path / "state" / "libvirt")
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


def test_an_order_has_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many machines its event has: at most `parallel` for each host."""
    threads: set[threading.Thread] = set()

    def run(work: MachineWork) -> MachineEnd:
        threads.add(threading.current_thread())
        return MachineEnd("done")

    monkeypatch.setattr(MachineWork, "run", run)
    executor = LibvirtExecutor(LibvirtSettings(parallel=2), tmp_path / "state" / "libvirt")
    names = tuple(f"web-{number}" for number in range(20))
    order = replace(work(resources=names), hosts={name: f"kvm-{len(name)}" for name in names})
    assert ended(executor, order) == Outcome(True, "", "\n".join(["done"] * 20))
    assert len(threads) <= 4
    executor.close()


def test_a_host_without_a_connection_cannot_be_asked(executor: LibvirtExecutor) -> None:
    """libvirt would otherwise answer for the machine that forewarn runs on."""
    assert executor.machines_on("kvm-a", "") is None
    assert executor.machines_on("kvm-a", "test:///default") == ("test",)


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
