"""The steps of the executor on libvirt's driver for tests, which keeps its domains in this process."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import libvirt
from forewarn.core.event_types import EventType
from forewarn.core.model import Phase
from forewarn.executors import Work
from forewarn.libvirt.connections import Connection, Domain, HostConnections, HostUnreachable
from forewarn.libvirt.executor import LibvirtExecutor, LibvirtSettings
from forewarn.libvirt.hosted_domain import HostedDomain, LibvirtHost
from forewarn.libvirt.journal import Journal
from forewarn.libvirt.machine_work import ActionLimits, MachineEnd, MachineWork, WorkFailed, proven_end
from forewarn.libvirt.placement import Placement
from forewarn.libvirt.record import OrderRecord
from tests.support.services import ORDER_ID, work
from tests.support.waiting import PATIENCE_S, until

DOMAIN = """
<domain type='test'>
  <name>{name}</name>
  <memory>262144</memory>
  <vcpu>1</vcpu>
  <os><type>hvm</type></os>
</domain>
"""
LIMITS = ActionLimits(
    shutdown_grace_s=5,
    migration_time_limit_s=5,
    migration_downtime_ms=100,
    freeze_default_s=0,
    delete_storage=False,
    preempt_grace_s=30,
)


class Site:
    """One host of the test driver, and the work on its machines."""

    def __init__(self, folder: Path) -> None:
        node = folder / "node.xml"
        node.write_text(f"<node>{DOMAIN.format(name='web-0')}{DOMAIN.format(name='web-1')}</node>")
        self.uri = f"test://{node}"
        self.connections = HostConnections()
        self.journal = Journal(folder / "order.json")
        assert self.journal.lock()
        self.host = LibvirtHost("kvm-a", self.uri, self.connections)

    def order(self, kind: EventType, machine: str = "web-0") -> Work:
        base = work(resources=(machine,))
        event = replace(base.event, type=kind, duration_s=-1)
        return replace(base, event=event, hosts={machine: "kvm-a"}, connections={"kvm-a": self.uri})

    def steps(self, order: Work) -> MachineWork:
        (machine,) = order.event.resources
        return MachineWork(
            order, machine, connections=self.connections, placement=Placement(), journal=self.journal, limits=LIMITS
        )

    def run(self, kind: EventType, machine: str = "web-0") -> MachineEnd:
        return self.steps(self.order(kind, machine)).run()

    def in_place(self, phase: Phase, attempt: int) -> Work:
        """Return the order of a machine whose host is maintained in place."""
        order = self.order(EventType.REBOOT)
        return replace(order, order=replace(order.order, phase=phase, attempt=attempt))

    def domain(self, name: str = "web-0") -> HostedDomain:
        return HostedDomain(self.host, name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.journal.unlock()
    site.connections.close()


def test_a_reboot_stops_and_starts_once(site: Site) -> None:
    """The domain runs with another id; the same order, run again, changes nothing."""
    before = site.domain().domain_id()
    assert site.run(EventType.REBOOT).sentence == "web-0 was rebooted"
    after = site.domain().domain_id()
    assert after != before
    assert site.run(EventType.REBOOT).sentence == "web-0 was finished before"
    assert site.domain().domain_id() == after


def test_a_machine_that_is_off_stays_off(site: Site) -> None:
    """A Reboot or a Freeze does not start a machine that its owner has stopped."""
    site.domain().destroy()
    for kind in (EventType.REBOOT, EventType.FREEZE):
        assert site.run(kind).sentence == "web-0 is off and stays off"
    assert not site.domain().is_active()


def test_a_machine_is_off_during_the_work_on_its_host(site: Site) -> None:
    """The first order shuts it down, the second starts it; each, run again, changes nothing."""
    stop, start = site.in_place(Phase.STOP, 1), site.in_place(Phase.START, 2)
    for _ in range(2):
        assert site.steps(stop).run().sentence == "web-0 was shut down"
        assert not site.domain().is_active()
    assert site.steps(start).run().sentence == "web-0 was started again"
    after = site.domain().domain_id()
    assert site.steps(start).run().sentence == "web-0 was finished before"
    assert site.domain().domain_id() == after


def test_a_machine_that_was_off_before_the_work_on_its_host_stays_off(site: Site) -> None:
    """Its owner stopped it, and forewarn does not start it."""
    site.domain().destroy()
    for order in (site.in_place(Phase.STOP, 1), site.in_place(Phase.START, 2)):
        assert site.steps(order).run().sentence == "web-0 is off and stays off"
    assert not site.domain().is_active()


def test_a_machine_that_was_started_by_hand_is_not_called_off(site: Site) -> None:
    """Its order fails; a retry shuts this run of it down too."""
    domain = site.domain()
    domain.write_record(OrderRecord(order=ORDER_ID, attempt=1, domain_id=domain.domain_id(), same_run=True))
    domain.destroy()
    domain.start()
    with pytest.raises(WorkFailed, match="web-0 was started again on kvm-a: retry the order"):
        site.steps(site.in_place(Phase.STOP, 1)).run()
    assert site.steps(site.in_place(Phase.STOP, 2)).run().sentence == "web-0 was shut down"
    assert not domain.is_active()


def test_machines_that_an_operator_stopped_are_started(site: Site) -> None:
    """Without a record, because an operator finished the first order by hand, the machine is started all the same."""
    site.domain().destroy()
    assert site.steps(site.in_place(Phase.START, 2)).run().sentence == "web-0 was started again"


def test_a_freeze_pauses_and_resumes(site: Site) -> None:
    """The domain runs afterwards, with the same id, and the pause is reported."""
    before = site.domain().domain_id()
    assert site.run(EventType.FREEZE).sentence.startswith("web-0 was paused for ")
    assert site.domain().domain_id() == before


def test_a_machine_that_others_paused_is_not_resumed(site: Site) -> None:
    """A Freeze of a machine that is already paused fails and leaves it paused."""
    site.domain().suspend()
    with pytest.raises(WorkFailed, match="already paused on kvm-a: resume it"):
        site.run(EventType.FREEZE)
    assert site.domain().state() == 3


def test_a_preempted_machine_is_off_and_defined(site: Site) -> None:
    """Preempt stops a machine and keeps its definition."""
    assert site.run(EventType.PREEMPT).sentence == "web-0 was stopped"
    assert not site.domain().is_active()


def test_a_later_run_of_the_domain_is_never_stopped(site: Site) -> None:
    """If somebody stopped and started the machine after the order was recorded, the reboot counts as done."""
    domain = site.domain()
    domain.write_record(OrderRecord(order=ORDER_ID, attempt=1, domain_id=domain.domain_id(), same_run=True))
    domain.destroy()
    domain.start()
    restarted = domain.domain_id()
    assert site.run(EventType.REBOOT).sentence == "web-0 was rebooted"
    assert domain.domain_id() == restarted


def test_a_missing_domain_fails_with_what_to_do(site: Site) -> None:
    """No action invents a domain."""
    for kind in EventType:
        with pytest.raises(WorkFailed, match="kvm-a has no domain db-0: if the machine is elsewhere, update its host"):
            site.run(kind, "db-0")


def test_an_unreachable_host_is_an_error_of_its_own(site: Site) -> None:
    """The executor decides what it means: it depends on whether the work had begun."""
    order = replace(site.order(EventType.REBOOT), connections={"kvm-a": "qemu+unix:///system?socket=/nowhere"})
    steps = site.steps(order)
    with pytest.raises(HostUnreachable):
        steps.run()
    assert not steps.begun()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hosts": {}}, "the host of web-0 is not known: add it to the fleet"),
        ({"connections": {}}, "does not know how to reach libvirt on kvm-a: give the host a connection"),
    ],
)
def test_what_the_fleet_lacks_is_named(site: Site, change: dict[str, dict[str, str]], sentence: str) -> None:
    """A machine without a host, or a host without a connection, fails its order."""
    with pytest.raises(WorkFailed, match=sentence):
        site.steps(replace(site.order(EventType.REBOOT), **change)).run()  # type: ignore[arg-type]


def test_a_move_without_targets_fails_before_anything_is_done(site: Site) -> None:
    """The machine goes on running where it is."""
    before = site.domain().domain_id()
    with pytest.raises(WorkFailed, match="no host can take web-0: no other host is up and not cordoned"):
        site.run(EventType.REDEPLOY)
    assert site.domain().domain_id() == before


def redeployment_to_cordoned(site: Site, folder: Path) -> Work:
    """Return the order of a move whose only target, kvm-b, was cordoned after the order was taken."""
    node = folder / "other.xml"
    node.write_text(f"<node>{DOMAIN.format(name='other')}</node>")
    base = site.order(EventType.REDEPLOY)
    return replace(
        base,
        connections={**base.connections, "kvm-b": f"test://{node}"},
        targets={"web-0": ("kvm-b",)},
        closed=lambda host: f"host {host} is cordoned",
    )


def test_a_machine_does_not_go_to_a_host_that_was_cordoned_meanwhile(site: Site, tmp_path: Path) -> None:
    """Its turn came late: the machine goes on running where it is."""
    before = site.domain().domain_id()
    with pytest.raises(WorkFailed, match="no host can take web-0: kvm-b: host kvm-b is cordoned"):
        site.steps(redeployment_to_cordoned(site, tmp_path)).run()
    assert site.domain().domain_id() == before


def test_a_machine_whose_target_is_cordoned_while_it_shuts_down_stays(site: Site, tmp_path: Path) -> None:
    """It is started again where it was; a retry chooses another host."""
    order, domain = redeployment_to_cordoned(site, tmp_path), site.domain()
    before = domain.domain_id()
    domain.write_record(OrderRecord(order=ORDER_ID, attempt=1, domain_id=before, target="kvm-b", same_run=True))
    with pytest.raises(WorkFailed, match="host kvm-b is cordoned since web-0 was to go there, and it stays on kvm-a"):
        site.steps(order).run()
    assert domain.is_active()
    assert domain.domain_id() != before


def test_what_libvirt_proves_without_a_journal(site: Site) -> None:
    """Another node may report a finished reboot; of one that has only begun it says nothing."""
    order, hosts = site.order(EventType.REBOOT), {"kvm-a": site.host}
    domain = site.domain()
    assert proven_end(order, "web-0", hosts) is None
    domain.write_record(OrderRecord(order=ORDER_ID, attempt=1, domain_id=domain.domain_id(), same_run=True))
    assert proven_end(order, "web-0", hosts) is None
    domain.destroy()
    assert proven_end(order, "web-0", hosts) is None
    assert proven_end(site.order(EventType.PREEMPT), "web-0", hosts) is not None
    stop, start = site.in_place(Phase.STOP, 1), site.in_place(Phase.START, 2)
    assert proven_end(stop, "web-0", hosts) is not None
    assert proven_end(start, "web-0", hosts) is None
    domain.start()
    assert proven_end(order, "web-0", hosts) is not None
    assert proven_end(stop, "web-0", hosts) is None
    assert proven_end(start, "web-0", hosts) is not None


def test_a_host_without_a_connection_is_never_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirt would connect to the machine that runs forewarn, and answer what runs there."""
    node = tmp_path / "node.xml"
    node.write_text("<node/>")
    monkeypatch.setenv("LIBVIRT_DEFAULT_URI", f"test://{node}")
    executor = LibvirtExecutor(LibvirtSettings(), tmp_path / "state" / "libvirt")
    until(lambda: executor.machines_on("kvm-a", f"test://{node}") == ())  # None if it does not answer soon enough
    assert executor.machines_on("kvm-a", "") is None
    executor.close()


def test_a_migration_has_a_connection_to_itself(site: Site) -> None:
    """libvirtd works on five calls of a connection at once: five long migrations would hold up every other call."""
    used: list[object] = []

    class NotingDomain(HostedDomain):
        def find(self, connection: Connection) -> Domain:
            used.append(connection)
            return super().find(connection)

    with pytest.raises(libvirt.libvirtError):  # the driver for tests cannot migrate
        NotingDomain(site.host, "web-0").migrate(site.domain(), time_limit_s=5, downtime_ms=100)
    shared = site.connections.get(site.uri)
    assert [each for each in used if each is not shared]


class SlowDomain:
    """A domain whose migration begins only after libvirt has refused to abort it twice; it ends when it is aborted."""

    def __init__(self) -> None:
        self.refused = 0
        self.aborted = threading.Event()

    def isPersistent(self) -> int:  # noqa: N802 - a name of libvirt
        return 0

    def migrateSetMaxDowntime(self, _: int, __: int) -> None:  # noqa: N802
        pass

    def abortJob(self) -> None:  # noqa: N802
        if self.refused < 2:
            self.refused += 1
            raise libvirt.libvirtError("no job is active on the domain")
        self.aborted.set()

    def migrate3(self, *_: object) -> None:
        assert self.aborted.wait(PATIENCE_S)
        raise libvirt.libvirtError("operation aborted")


def test_a_migration_that_begins_after_its_time_limit_is_aborted(site: Site) -> None:
    """On a busy host the time limit may end before libvirt has begun the migration, and then there is nothing to abort yet."""
    domain = SlowDomain()

    class FoundDomain(HostedDomain):
        def find(self, _: Connection) -> Domain:
            return domain

    with pytest.raises(libvirt.libvirtError, match="operation aborted"):
        FoundDomain(site.host, "web-0").migrate(site.domain(), time_limit_s=0, downtime_ms=100)
    assert domain.refused == 2
