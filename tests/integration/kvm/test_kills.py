"""kill -9 of the process that carries out an order, in each phase of each action, and a libvirtd that dies meanwhile.

The guest counts its boots on its disk. Every case uses the same guest, and the next case begins when the count is as expected:
a step that ran twice shows as a boot too many.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from scripts.kvm_bed.bed import ROOT, Bed, Guest

from forewarn.core.event_types import EventType
from forewarn.core.model import Phase
from forewarn.core.order_verbs import OrderReport, Outcome, Unknown
from forewarn.executors import Progress, Work
from forewarn.libvirt.journal import Journal
from tests.integration.kvm.orders import ended, executor_in, work_on
from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.integration.kvm.tcp_watch import PROGRAM, TcpWatch
from tests.support.budget import BUDGET
from tests.support.waiting import until

STOP = ("chosen", "recorded", "stopping", "off")
# Each phase of each action, and whether the guest boots during it.
PHASES = {
    (EventType.REBOOT, False): (*STOP, "started", "done"),
    (EventType.REDEPLOY, False): (*STOP, "defined", "undefined", "started", "done"),
    (EventType.FREEZE, False): ("chosen", "recorded", "suspended", "suspension recorded", "resumed", "done"),
    (EventType.FREEZE, True): ("chosen", "recorded", "migrating", "moved", "done"),
    (EventType.PREEMPT, False): STOP,
}
ALL = [
    (kind, live, f"{when}:{phase}")
    for (kind, live), phases in PHASES.items()
    for phase in phases
    for when in ("before", "after")
]
# In `make test`: the moments in which the least is known.
CHOSEN = [
    (EventType.REBOOT, False, "after:off"),
    (EventType.REDEPLOY, False, "after:undefined"),
    (EventType.FREEZE, False, "before:suspension recorded"),
    (EventType.FREEZE, True, "after:moved"),
]
BOOTS = {EventType.REBOOT: 1, EventType.REDEPLOY: 1, EventType.FREEZE: 0, EventType.PREEMPT: 0}


@dataclass
class Victim:
    """The guest, where it is, and how often it must have booted. `watch` listened before it first started."""

    bed: Bed
    watch: TcpWatch
    guest: Guest
    host: str = "kvm-a"
    boots: int = 1

    def until_booted(self) -> None:
        until(lambda: self.guest.boots() >= self.boots, GUEST_PATIENCE_S)
        assert self.guest.boots() == self.boots, self.guest.last_words()

    def work(self, kind: EventType, *, live: bool = False) -> Work:
        return work_on(self.bed, kind, {"web-0": self.host}, live=live)

    def where(self) -> dict[str, str]:
        """Return the state of the guest on each host that knows it."""
        states = {}
        for host in self.bed.hosts:
            if "web-0" in self.bed.virsh(host, "list", "--all", "--name").split():
                states[host] = self.bed.virsh(host, "domstate", "web-0")
        return states


@pytest.fixture(scope="module")
def victim(bed: Bed) -> Iterator[Victim]:
    watch = TcpWatch(bed)
    yield Victim(bed, watch, bed.add_guest("web-0", "kvm-a", {"program.py": PROGRAM}))
    watch.close()


@contextmanager
def worker(victim: Victim, work: Work, folder: Path, moment: str) -> Iterator["subprocess.Popen[str]"]:
    request = {
        "moment": moment, "bed": victim.bed.hosts, "type": work.event.type, "hosts": dict(work.hosts),
        "order_id": work.order.id, "attempt": work.order.attempt, "phase": work.order.phase, "live": work.live,
        "folder": str(folder),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.integration.kvm.killed_worker", json.dumps(request)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def continued(work: Work, folder: Path) -> Outcome | Unknown:
    """Continue an order as a restarted node does."""
    executor = executor_in(folder)
    assert executor.status(work) is Progress.RUNNING
    executor.watch(work)
    outcome = ended(executor, work)
    executor.close()
    return outcome


def test_a_migration_whose_process_was_killed_begins_again(victim: Victim, tmp_path: Path) -> None:
    """libvirt aborts a migration whose client is gone. A restarted node migrates; the guest's connection lives on."""
    victim.until_booted()
    watch = victim.watch
    watch.until_it_goes_on(detail=victim.guest.last_words)
    connections = watch.connections
    victim.bed.virsh(victim.host, "migrate-setspeed", "web-0", "1")
    work = victim.work(EventType.FREEZE, live=True)
    with worker(victim, work, tmp_path, "never") as process:
        until(lambda: "Unbounded" in victim.bed.virsh(victim.host, "domjobinfo", "web-0"), GUEST_PATIENCE_S)
        process.send_signal(signal.SIGKILL)
    until(lambda: "None" in victim.bed.virsh(victim.host, "domjobinfo", "web-0"), GUEST_PATIENCE_S)
    victim.bed.virsh(victim.host, "migrate-setspeed", "web-0", "1000")
    outcome = continued(work, tmp_path)
    assert isinstance(outcome, Outcome)
    assert outcome.ok, outcome.reason
    assert outcome.new_hosts is not None
    victim.host = outcome.new_hosts["shop", "web-0"]
    watch.until_it_goes_on(detail=victim.guest.last_words)
    assert watch.connections == connections
    assert victim.where() == {victim.host: "running"}
    assert victim.guest.boots() == victim.boots
    watch.close()  # after its next boot the guest finds nobody to send to, and computes less


@pytest.mark.parametrize(("kind", "live", "moment"), ALL if BUDGET > 1 else CHOSEN)
def test_killed_work_is_continued_once(
    victim: Victim, tmp_path: Path, kind: EventType, live: bool, moment: str
) -> None:
    """After kill -9 a restarted node finishes the order, and the guest has booted as often as once without the kill."""
    victim.until_booted()
    work = victim.work(kind, live=live)
    with worker(victim, work, tmp_path, moment) as process:
        until(lambda: process.poll() is not None, GUEST_PATIENCE_S)
        assert process.returncode == -signal.SIGKILL
    # Another node, which lacks the journal, proves what was done or says that it cannot tell. It never does anything.
    other = executor_in(tmp_path / "other")
    seen = other.status(work)
    assert isinstance(seen, Unknown) or (isinstance(seen, Outcome) and seen.ok), seen
    other.close()
    outcome = continued(work, tmp_path)
    assert isinstance(outcome, Outcome), outcome
    assert outcome.ok, outcome.reason
    victim.boots += BOOTS[kind]
    if kind is EventType.PREEMPT:
        assert victim.where() == {victim.host: "shut off"}
        victim.bed.virsh(victim.host, "start", "web-0")
        victim.boots += 1
    if outcome.new_hosts:
        victim.host = outcome.new_hosts["shop", "web-0"]
    assert victim.where() == {victim.host: "running"}
    victim.until_booted()


@pytest.mark.parametrize("moment", ["after:recorded", "before:undefined", "after:undefined"])
def test_a_killed_termination_removes_the_machine(victim: Victim, tmp_path: Path, moment: str) -> None:
    """After kill -9 a restarted node removes the definition, or sees that it did so before."""
    name = f"old-{len(victim.bed.guests)}"
    victim.bed.add_guest(name, "kvm-a", start=False)
    work = work_on(victim.bed, EventType.TERMINATE, {name: "kvm-a"})
    with worker(victim, work, tmp_path, moment) as process:
        until(lambda: process.poll() is not None, GUEST_PATIENCE_S)
        assert process.returncode == -signal.SIGKILL
    outcome = continued(work, tmp_path)
    assert isinstance(outcome, Outcome)
    assert (outcome.ok, outcome.output) == (True, f"{name} was removed from kvm-a")
    assert name not in victim.bed.virsh("kvm-a", "list", "--all", "--name").split()


IN_PLACE = [
    (f"{when}:{stopping}", f"{when}:{starting}")
    for when in ("before", "after")
    for stopping, starting in (("chosen", "started"), ("recorded", "started"), ("stopping", "done"), ("off", "done"))
]


@pytest.mark.parametrize(("stopping", "starting"), IN_PLACE if BUDGET > 1 else [("after:stopping", "before:started")])
def test_killed_work_in_place_stops_and_starts_once(
    victim: Victim, tmp_path: Path, stopping: str, starting: str
) -> None:
    """After kill -9 of either order a restarted node finishes it: off, then running, with one boot more."""
    victim.until_booted()
    stop = work_on(victim.bed, EventType.REBOOT, {"web-0": victim.host}, phase=Phase.STOP)
    start = replace(stop, order=replace(stop.order, attempt=2, phase=Phase.START))
    for work, moment, state in ((stop, stopping, "shut off"), (start, starting, "running")):
        with worker(victim, work, tmp_path, moment) as process:
            assert process.wait(GUEST_PATIENCE_S) == -signal.SIGKILL
        outcome = continued(work, tmp_path)
        assert isinstance(outcome, Outcome), outcome
        assert outcome.ok, outcome.reason
        assert victim.where() == {victim.host: state}
        executor = executor_in(tmp_path)
        executor.report_saved(OrderReport(work.order.id, work.order.attempt, outcome))
        executor.close()
    victim.boots += 1
    victim.until_booted()


@pytest.mark.parametrize(
    ("kind", "phase"),
    [(EventType.REBOOT, "off"), (EventType.REDEPLOY, "defined"), (EventType.REDEPLOY, "undefined")][
        : None if BUDGET > 1 else 1
    ],
)
def test_work_waits_for_a_libvirtd_that_died(victim: Victim, tmp_path: Path, kind: EventType, phase: str) -> None:
    """The libvirtd of a machine's host dies during its order. When it is back, the work goes on, and is done once."""
    victim.until_booted()
    host = victim.host
    killed: list[str] = []

    class KillingJournal(Journal):
        def note(self, machine: str, **values: Any) -> None:
            super().note(machine, **values)
            if values.get("phase") == phase and not killed:
                killed.append(host)
                victim.bed.kill_libvirtd(host)

    executor = executor_in(tmp_path, journal_type=KillingJournal)
    work = victim.work(kind)
    executor.take(work)
    until(lambda: (victim.bed.folder / host / "down").exists(), GUEST_PATIENCE_S)
    victim.bed.start_libvirtd(host)
    outcome = ended(executor, work)
    assert isinstance(outcome, Outcome), outcome
    assert outcome.ok, outcome.reason
    executor.close()
    victim.boots += 1
    if outcome.new_hosts:
        victim.host = outcome.new_hosts["shop", "web-0"]
    victim.until_booted()
    assert victim.where() == {victim.host: "running"}
