"""What each event type does to a real guest, and what an order says that cannot be carried out."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripts.kvm_bed.bed import Bed, Guest

import libvirt
from forewarn.core.event_types import EventType
from forewarn.core.order_verbs import Outcome
from forewarn.libvirt.connections import HostConnections
from forewarn.libvirt.executor import PREEMPT_GRACE_S, LibvirtExecutor
from forewarn.libvirt.hosted_domain import HostedDomain, LibvirtHost
from forewarn.libvirt.journal import Journal
from forewarn.libvirt.placement import NoTarget, Placement
from tests.integration.kvm.orders import QUICK, done, ended, executor_in, work_on
from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.integration.kvm.tcp_watch import PROGRAM, TcpWatch
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibvirtExecutor]:
    executor = executor_in(tmp_path_factory.mktemp("executor"))
    yield executor
    executor.close()


@contextmanager
def changes_of_state(bed: Bed, host: str) -> Iterator[list[int]]:
    """Have libvirt report what happens to the domains of a host; the list grows until the block ends."""
    changes: list[int] = []
    connections = HostConnections()
    connection = connections.get(bed.hosts[host])
    connection.domainEventRegisterAny(
        None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lambda _, domain, event, *more: changes.append(event), None
    )
    yield changes
    connections.close()


def test_machines_move_and_stop_as_their_orders_say(bed: Bed, executor: LibvirtExecutor, tmp_path: Path) -> None:
    """One guest through its life: live migration, suspension, reboot, redeployment, preemption, termination."""
    watch = TcpWatch(bed)
    guest = bed.add_guest("web-0", "kvm-a", {"program.py": PROGRAM})
    watch.until_it_goes_on()

    outcome = done(executor, work_on(bed, EventType.FREEZE, {"web-0": "kvm-a"}, live=True))
    assert outcome.ok
    assert outcome.new_hosts == {("shop", "web-0"): "kvm-b"}
    assert re.fullmatch(r"web-0 moved to kvm-b with a pause of \d+ ms", outcome.output)
    watch.until_it_goes_on(detail=guest.last_words)
    assert watch.connections == 1, "the guest's connection broke"
    assert guest.boots() == 1
    # It is None while the host does not answer soon enough.
    until(lambda: executor.machines_on("kvm-a", bed.hosts["kvm-a"]) == (), GUEST_PATIENCE_S)
    until(lambda: executor.machines_on("kvm-b", bed.hosts["kvm-b"]) == ("web-0",), GUEST_PATIENCE_S)

    # A migration that takes too long is aborted, and retried when it is faster.
    hasty = executor_in(tmp_path, replace(QUICK, migration_time_limit_s=1))
    order = work_on(bed, EventType.FREEZE, {"web-0": "kvm-b"}, live=True)
    bed.virsh("kvm-b", "migrate-setspeed", "web-0", "1")
    outcome = done(hasty, order)
    assert not outcome.ok
    assert "migration of web-0 to kvm-a failed, and it still runs on kvm-b" in outcome.reason
    assert bed.virsh("kvm-b", "domstate", "web-0") == "running"
    bed.virsh("kvm-b", "migrate-setspeed", "web-0", "1000")
    outcome = done(executor, replace(order, order=replace(order.order, attempt=2)))
    assert outcome.new_hosts == {("shop", "web-0"): "kvm-a"}
    assert done(executor, work_on(bed, EventType.FREEZE, {"web-0": "kvm-a"}, live=True)).ok
    hasty.close()

    with changes_of_state(bed, "kvm-b") as changes:
        outcome = done(executor, work_on(bed, EventType.FREEZE, {"web-0": "kvm-b"}, duration_s=2))
        assert outcome.ok
        assert float(re.findall(r"paused for ([\d.]+) s", outcome.output)[0]) >= 2
        until(
            lambda: changes[-2:] == [libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_RESUMED],
            GUEST_PATIENCE_S,
        )
    watch.until_it_goes_on(detail=guest.last_words)
    assert (watch.connections, guest.boots()) == (1, 1)

    assert done(executor, work_on(bed, EventType.REBOOT, {"web-0": "kvm-b"})).ok
    until(lambda: guest.boots() == 2, GUEST_PATIENCE_S)

    bed.virsh("kvm-b", "autostart", "web-0")
    outcome = done(executor, work_on(bed, EventType.REDEPLOY, {"web-0": "kvm-b"}))
    assert (outcome.ok, outcome.new_hosts) == (True, {("shop", "web-0"): "kvm-a"})
    until(lambda: guest.boots() == 3, GUEST_PATIENCE_S)
    assert bed.virsh("kvm-b", "list", "--all", "--name") == ""
    assert "web-0" in bed.virsh("kvm-a", "list", "--all", "--autostart", "--name")

    assert done(executor, work_on(bed, EventType.PREEMPT, {"web-0": "kvm-a"})).ok
    assert bed.virsh("kvm-a", "domstate", "web-0") == "shut off"

    assert done(executor, work_on(bed, EventType.TERMINATE, {"web-0": "kvm-a"})).ok
    assert bed.virsh("kvm-a", "list", "--all", "--name") == ""
    assert (guest.disk.exists(), guest.boots()) == (True, 3)
    watch.close()


def test_a_preempted_guest_gets_its_grace_and_no_more(bed: Bed, tmp_path: Path) -> None:
    """A guest that does not shut down in time is destroyed, and stays defined and off."""
    assert PREEMPT_GRACE_S == 30
    executor = executor_in(tmp_path, preempt_grace_s=1)
    guest = bed.add_guest("spot-0", "kvm-a", start=False)
    bed.virsh("kvm-a", "start", "spot-0", "--paused")
    assert done(executor, work_on(bed, EventType.PREEMPT, {"spot-0": "kvm-a"})).output == "spot-0 was stopped"
    assert bed.virsh("kvm-a", "domstate", "spot-0") == "shut off"
    assert guest.boots() == 0
    executor.close()


@pytest.fixture(scope="module")
def off(bed: Bed) -> Guest:
    """A guest that is defined and never started."""
    return bed.add_guest("off-0", "kvm-a", start=False)


def test_a_machine_that_is_off_moves_with_its_host(bed: Bed, executor: LibvirtExecutor, off: Guest) -> None:
    """An evacuation moves the definition of a machine that is off, and does not start it."""
    outcome = done(executor, work_on(bed, EventType.FREEZE, {"off-0": "kvm-a"}, live=True))
    assert (outcome.ok, outcome.output) == (True, "off-0 is off and moved to kvm-b")
    back = done(executor, work_on(bed, EventType.REDEPLOY, {"off-0": "kvm-b"}))
    assert back.new_hosts == {("shop", "off-0"): "kvm-a"}
    assert off.boots() == 0


def define(bed: Bed, off: Guest, name: str, change: tuple[str, str]) -> None:
    """Define a domain like `off-0` on kvm-a, with a piece of its XML replaced."""
    xml = bed.virsh("kvm-a", "dumpxml", "off-0", "--inactive")
    xml = re.sub(r"<uuid>.*?</uuid>|<mac .*?/>", "", xml).replace("<name>off-0<", f"<name>{name}<")
    assert change[0] in xml
    file = bed.folder / f"{name}.xml"
    file.write_text(xml.replace(*change))
    bed.virsh("kvm-a", "define", str(file))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (
            "huge-0",
            ("<memory unit='KiB'>131072</memory>", "<memory unit='TiB'>2</memory>"),
            r"no host can take huge-0: kvm-b: it has [\d,]+ MiB of memory left, and the machine needs 2,097,152 MiB",
        ),
        (
            "modern-0",
            (
                "<features>",
                "<cpu mode='custom' match='exact'><model fallback='forbid'>EPYC</model>"
                "<feature policy='require' name='sgx'/></cpu><features>",
            ),
            "kvm-b: its processor lacks features that the machine uses",
        ),
        (
            "local-0",
            ("</emulator>", "</emulator><disk type='file'><source file='/nowhere/d.img'/><target dev='vdb'/></disk>"),
            r"kvm-b: /nowhere/d\.img cannot be seen there: put it on storage that both hosts share",
        ),
    ],
)
def test_a_host_that_cannot_take_a_machine_is_not_chosen(
    bed: Bed, executor: LibvirtExecutor, off: Guest, name: str, change: tuple[str, str], sentence: str
) -> None:
    """Too little memory, a processor without its features, a disk that is not there: the order fails and nothing is done."""
    define(bed, off, name, change)
    outcome = done(executor, work_on(bed, EventType.REDEPLOY, {name: "kvm-a"}))
    assert not outcome.ok
    assert re.search(sentence, outcome.reason), outcome.reason
    assert name in bed.virsh("kvm-a", "list", "--all", "--name")
    bed.virsh("kvm-a", "undefine", name)


def test_memory_that_was_promised_counts_as_used(bed: Bed, off: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two machines that move at the same time, the second is refused if only one has room."""
    connections = HostConnections()
    memory = connections.get(bed.hosts["kvm-b"]).getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS)
    # Other programs of this machine use more or less memory from one moment to the next.
    monkeypatch.setattr(libvirt.virConnect, "getMemoryStats", lambda *_: memory)
    most = 6 * sum(memory[key] for key in ("free", "buffers", "cached")) // 10
    define(bed, off, "big-0", ("<memory unit='KiB'>131072</memory>", f"<memory unit='KiB'>{most}</memory>"))
    big = HostedDomain(LibvirtHost("kvm-a", bed.hosts["kvm-a"], connections), "big-0")
    target = LibvirtHost("kvm-b", bed.hosts["kvm-b"], connections)
    placement = Placement()
    with placement.choose(big, [target], needs_disks=False) as chosen:
        assert chosen is target
        with pytest.raises(NoTarget, match="MiB of memory left"), placement.choose(big, [target], needs_disks=False):
            pass
    with placement.choose(big, [target], needs_disks=False) as chosen:
        assert chosen is target
    bed.virsh("kvm-a", "undefine", "big-0")
    connections.close()


def test_disks_are_deleted_only_where_libvirt_manages_them(bed: Bed, off: Guest, tmp_path: Path) -> None:
    """With `delete`, a disk in no pool fails the order before anything is done; in a pool it is deleted."""
    executor = executor_in(tmp_path, replace(QUICK, terminate_storage="delete"))
    folder = bed.folder / "volumes"
    folder.mkdir()
    disk = folder / "data.img"
    disk.write_bytes(bytes(1024 * 1024))
    xml = bed.virsh("kvm-a", "dumpxml", "off-0", "--inactive")
    (network_disk,) = re.findall(r"<disk .*?</disk>", xml, re.DOTALL)
    define(bed, off, "old-0", (network_disk, f"<disk type='file'><source file='{disk}'/><target dev='vdb'/></disk>"))
    order = work_on(bed, EventType.TERMINATE, {"old-0": "kvm-a"})
    outcome = done(executor, order)
    assert (outcome.ok, disk.exists()) == (False, True)
    assert "data.img of old-0 is in no storage pool" in outcome.reason
    bed.virsh("kvm-a", "pool-create-as", "volumes", "dir", "--target", str(folder))
    assert done(executor, replace(order, order=replace(order.order, attempt=2))).ok
    assert not disk.exists()
    executor.close()


def test_one_host_that_is_down_fails_only_its_machine(bed: Bed, off: Guest, tmp_path: Path) -> None:
    """The order names the host and says that nothing was done there."""
    executor = executor_in(tmp_path, replace(QUICK, host_return_s=0))
    bed.kill_libvirtd("kvm-b")
    try:
        order = work_on(bed, EventType.REBOOT, {"off-0": "kvm-a", "lost-0": "kvm-b"})
        outcome = done(executor, order)
        assert not outcome.ok
        assert "Nothing was done; retry the order when the host is back" in outcome.reason
        assert outcome.output == "off-0 is off and stays off"
        assert executor.machines_on("kvm-b", bed.hosts["kvm-b"]) is None
    finally:
        bed.start_libvirtd("kvm-b")
        executor.close()


def test_a_host_that_hangs_holds_up_no_other(bed: Bed, executor: LibvirtExecutor, off: Guest) -> None:
    """While the libvirtd of one host is stopped, an order on the other host is carried out."""
    executor.machines_on("kvm-b", bed.hosts["kvm-b"])
    bed.signal_libvirtd("kvm-b", "STOP")
    hanging = work_on(bed, EventType.REBOOT, {"lost-0": "kvm-b"})
    try:
        executor.take(hanging)
        assert done(executor, work_on(bed, EventType.REBOOT, {"off-0": "kvm-a"})).output == "off-0 is off and stays off"
        assert executor.at_work() == 1
    finally:
        bed.signal_libvirtd("kvm-b", "CONT")
    outcome = ended(executor, hanging)
    assert isinstance(outcome, Outcome)
    assert not outcome.ok


def test_a_guest_that_ignores_its_power_button_is_destroyed(bed: Bed, tmp_path: Path) -> None:
    """A paused machine cannot shut down: after the grace it is destroyed and started, once. A retry must wait."""
    bed.add_guest("deaf-0", "kvm-a", start=False)
    bed.virsh("kvm-a", "start", "deaf-0", "--paused")
    retried = threading.Event()

    class HeldJournal(Journal):
        def note(self, machine: str, **values: Any) -> None:
            assert retried.wait(PATIENCE_S)
            super().note(machine, **values)

    executor = executor_in(tmp_path, replace(QUICK, shutdown_grace_s=1), journal_type=HeldJournal)
    order = work_on(bed, EventType.REBOOT, {"deaf-0": "kvm-a"})
    with changes_of_state(bed, "kvm-a") as changes:
        executor.take(order)
        with pytest.raises(BlockingIOError, match="an earlier attempt is still at work"):
            executor.take(replace(order, order=replace(order.order, attempt=2)))
        retried.set()
        outcome = ended(executor, order)
        assert isinstance(outcome, Outcome)
        assert outcome.ok
        starts_and_stops = (libvirt.VIR_DOMAIN_EVENT_STARTED, libvirt.VIR_DOMAIN_EVENT_STOPPED)
        until(lambda: libvirt.VIR_DOMAIN_EVENT_STARTED in changes, GUEST_PATIENCE_S)
        assert [change for change in changes if change in starts_and_stops] == [*reversed(starts_and_stops)]
    assert bed.virsh("kvm-a", "domstate", "deaf-0") == "running"
    executor.close()
