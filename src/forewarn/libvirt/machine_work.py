"""The work of an order on one machine, as steps that can be continued after a crash.

Each action reads libvirt first and does only what is missing, so `run` after a crash, or in a later attempt, continues where
the work ended. The record in the domain (`record.py`) says which steps are this order's own. What `run` cannot tell from libvirt
raises InDoubt; nothing is then done.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

import libvirt
from forewarn.core.event_types import EventType
from forewarn.core.model import Phase
from forewarn.executors.base import Work
from forewarn.libvirt.connections import HostConnections, HostUnreachable
from forewarn.libvirt.hosted_domain import PAUSED, RUNNING, DomainMissing, HostedDomain, LibvirtHost
from forewarn.libvirt.journal import Journal
from forewarn.libvirt.placement import NoTarget, Placement
from forewarn.libvirt.record import OrderRecord
from forewarn.libvirt.storage import delete_disks, undeletable_disks

# After a migration is aborted, libvirt needs a moment to tidy up.
JOB_ENDS_WITHIN_S = 30.0


class WorkFailed(Exception):
    """The work on a machine failed. The message is a sentence that says what to do."""


class InDoubt(Exception):
    """libvirt does not show what became of the work on a machine."""


@dataclass(frozen=True, slots=True)
class MachineEnd:
    """How the work on a machine ended; `host` is where the machine is now if it moved."""

    sentence: str
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLimits:
    shutdown_grace_s: int
    migration_time_limit_s: int
    migration_downtime_ms: int
    freeze_default_s: int
    delete_storage: bool
    preempt_grace_s: int


class MachineWork:
    def __init__(
        self,
        work: Work,
        machine: str,
        *,
        connections: HostConnections,
        placement: Placement,
        journal: Journal,
        limits: ActionLimits,
    ) -> None:
        self._work = work
        self._name = machine
        self._connections = connections
        self._placement = placement
        self._journal = journal
        self._limits = limits
        self._order = work.order.id
        self._host_name = work.hosts.get(machine, "")

    def run(self) -> MachineEnd:
        """Do the work, or what is missing of it. Raise WorkFailed, InDoubt or HostUnreachable."""
        reboot = {Phase.NONE: self._reboot, Phase.STOP: self._stop_in_place, Phase.START: self._start_in_place}
        actions = {
            EventType.REBOOT: reboot[self._work.order.phase],
            EventType.REDEPLOY: self._redeploy,
            EventType.FREEZE: self._migrate if self._work.live else self._freeze,
            EventType.PREEMPT: self._preempt,
            EventType.TERMINATE: self._terminate,
        }
        try:
            return self._finished_before() or actions[self._work.event.type]()
        except DomainMissing as error:
            raise WorkFailed(
                f"{error}: if the machine is elsewhere, update its host in the fleet; otherwise finish or abandon the event"
            ) from error
        except NoTarget as error:
            raise WorkFailed(f"no host can take {self._name}: {error}") from error
        except libvirt.libvirtError as error:
            raise WorkFailed(f"libvirt refused to work on {self._name} on {self._host_name}: {error}") from error

    def begun(self) -> bool:
        """Whether this node may have changed something on the machine."""
        return bool(self._journal.of(self._name))

    def _finished_before(self) -> MachineEnd | None:
        """Return the end of the work if this order has finished the machine: an attempt for others of its event came later."""
        domain = self._domain()
        if not domain.exists():
            return None
        record = domain.record(self._order)
        if record is None or record.phase != "done":
            return None
        return MachineEnd(f"{self._name} was finished before", record.target)

    # -- the actions

    def _reboot(self) -> MachineEnd:
        domain = self._domain()
        record = domain.record(self._order)
        if record is None:
            if not domain.is_active():
                return MachineEnd(f"{self._name} is off and stays off")
            self._require_persistent(domain)
            self._begin(domain)
        self._power_off(domain, self._limits.shutdown_grace_s)
        if not domain.is_active():
            self._start(domain)
        return self._ended(domain, "was rebooted")

    def _stop_in_place(self) -> MachineEnd:
        """Shut the machine down for the work on its host. The record tells `_start_in_place` whether it ran before."""
        domain = self._domain()
        record = domain.record(self._order)
        if record is None or (domain.is_active() and record.attempt != self._work.order.attempt):
            self._require_persistent(domain)
            record = self._begin(domain)
        self._power_off(domain, self._limits.shutdown_grace_s)
        if domain.is_active():
            raise WorkFailed(f"{self._name} was started again on {domain.host.name}: retry the order")
        return MachineEnd(f"{self._name} {'is off and stays off' if record.domain_id < 0 else 'was shut down'}")

    def _start_in_place(self) -> MachineEnd:
        """Start the machine again after the work on its host, unless it was off before."""
        domain = self._domain()
        record = domain.record(self._order)
        if not domain.is_active():
            if record is not None and record.domain_id < 0:
                return MachineEnd(f"{self._name} is off and stays off")
            self._start(domain)
        return self._ended(domain, "was started again")

    def _preempt(self) -> MachineEnd:
        domain = self._domain()
        self._stop_for_good(domain)
        return MachineEnd(f"{self._name} was stopped")

    def _terminate(self) -> MachineEnd:
        domain = self._domain()
        delete = self._limits.delete_storage
        if not domain.exists() and self._journal.of(self._name).get("phase"):
            return MachineEnd(f"{self._name} was removed from {domain.host.name}")
        persistent = domain.is_persistent()
        xml = domain.xml() if delete else ""
        if (
            delete
            and domain.record(self._order) is None
            and (kept := domain.host.call(lambda connection: undeletable_disks(connection, xml)))
        ):
            raise WorkFailed(
                f"{', '.join(kept)} of {self._name} is in no storage pool, so libvirt cannot delete it: define a pool for its"
                ' folder, or set terminate_storage to "keep"'
            )
        self._stop_for_good(domain)
        if delete:
            domain.host.call(lambda connection: delete_disks(connection, xml))
            self._reached("deleted")
        if persistent and domain.exists():
            domain.undefine(for_good=True)
        self._reached("undefined")
        if domain.exists():
            raise WorkFailed(f"{self._name} is still defined on {domain.host.name}: remove it with `virsh undefine`")
        return MachineEnd(f"{self._name} was removed from {domain.host.name}")

    def _freeze(self) -> MachineEnd:
        domain = self._domain()
        record = domain.record(self._order)
        if record is None:
            if not domain.is_active():
                return MachineEnd(f"{self._name} is off and stays off")
            self._require_running(domain)
            record = self._begin(domain)
        pause = "for a time that was not measured, because its work was interrupted"
        if record.phase == "begun" and record.same_run and domain.state() == RUNNING:
            domain.suspend()
            suspended_s = time.monotonic()
            self._reached("suspended")
            domain.write_record(replace(record, phase="suspended"))
            self._reached("suspension recorded")
            duration_s = self._work.event.duration_s
            time.sleep(duration_s if duration_s > 0 else self._limits.freeze_default_s)
            domain.resume()
            pause = f"for {time.monotonic() - suspended_s:.1f} s"
        elif domain.state() == PAUSED:
            domain.resume()  # it was suspended while no process worked on it, however long that was
        self._reached("resumed")
        if domain.state() == PAUSED:
            raise WorkFailed(f"{self._name} is paused and cannot be resumed on {domain.host.name}: use `virsh resume`")
        return self._ended(domain, f"was paused {pause}")

    def _redeploy(self) -> MachineEnd:
        source = self._domain()
        if not source.exists():
            return self._start_moved()
        record = source.record(self._order)
        if record is None or (source.is_active() and record.attempt != self._work.order.attempt):
            self._require_persistent(source)
            if kept := source.kept_only_here():
                raise WorkFailed(
                    f"{self._name} has {kept} on {source.host.name}, which cannot be moved: remove them first"
                )
            with self._target_of(source, needs_disks=True) as target:
                record = self._begin(source, target=target.name, autostart=source.autostarts())
                return self._move_off(source, record)
        return self._move_off(source, record)

    def _move_off(self, source: HostedDomain, record: OrderRecord) -> MachineEnd:
        """Stop the machine and move its definition; start it on the target."""
        target = self._on(record.target)
        if source.is_active() and not record.same_run:
            raise WorkFailed(
                f"{self._name} was started again on {source.host.name} during its redeployment: retry the order"
            )
        self._power_off(source, self._limits.shutdown_grace_s)
        if source.is_active():
            raise WorkFailed(
                f"{self._name} was started again on {source.host.name} during its redeployment: retry the order"
            )
        if not target.exists() and (why := self._work.closed(record.target)):
            self._return_to(source, record)
            raise WorkFailed(
                f"{why} since {self._name} was to go there, and it stays on {source.host.name}: retry the order"
            )
        source.set_autostart(False)
        try:
            if not target.exists():
                target.define(source.xml())
        except libvirt.libvirtError as error:
            self._return_to(source, record)
            raise WorkFailed(
                f"{target.host.name} refused the definition of {self._name}, which stays on {source.host.name}: {error}"
            ) from error
        self._reached("defined", target=record.target)
        # The definition on the target, and only it, starts from here on.
        source.undefine(for_good=False)
        self._reached("undefined")
        return self._start_moved()

    def _return_to(self, source: HostedDomain, record: OrderRecord) -> None:
        source.set_autostart(record.autostart)
        if record.domain_id >= 0:
            source.start()

    def _start_moved(self) -> MachineEnd:
        target, record = self._moved()
        if record.autostart:
            target.set_autostart(True)
        if record.domain_id < 0:
            return MachineEnd(f"{self._name} is off and moved to {target.host.name}", target.host.name)
        if not target.is_active():
            self._start(target)
        return self._ended(target, f"was redeployed to {target.host.name}", target.host.name)

    def _migrate(self) -> MachineEnd:
        source = self._domain()
        if not source.exists():
            return self._end_migration()
        if not source.is_active():
            return self._redeploy()  # nothing runs: its definition is all that moves
        record = source.record(self._order)
        if record is not None and record.attempt == self._work.order.attempt:
            self._await_abort(source, self._on(record.target))
            if not source.exists():
                return self._end_migration()
        self._require_running(source)
        with self._target_of(source, needs_disks=False) as target:
            self._begin(source, target=target.name, autostart=source.autostarts())
            self._reached("migrating")
            try:
                source.migrate(
                    self._on(target.name),
                    time_limit_s=self._limits.migration_time_limit_s,
                    downtime_ms=self._limits.migration_downtime_ms,
                )
            except libvirt.libvirtError as error:
                raise self._failed_migration(source, target, error) from error
            self._reached("moved")
        return self._end_migration()

    def _await_abort(self, source: HostedDomain, target: HostedDomain) -> None:
        """Wait until libvirt has aborted a migration that an earlier process began: its client is gone."""
        source.wait_until(lambda: not (source.is_active_here() and source.job_under_way()), JOB_ENDS_WITHIN_S)
        if not source.is_active_here():
            return
        target.wait_until(lambda: not target.exists(), JOB_ENDS_WITHIN_S)
        if source.state() != RUNNING or target.exists():
            raise InDoubt(
                f"a migration of {self._name} was interrupted, and {source.host.name} and {target.host.name} do not show where it"
                " runs: keep the right one with `virsh resume`, and destroy the other"
            )

    def _failed_migration(self, source: HostedDomain, target: LibvirtHost, error: Exception) -> Exception:
        source.wait_until(lambda: source.state() == RUNNING, JOB_ENDS_WITHIN_S)
        if source.state() == RUNNING and not self._on(target.name).is_active_here():
            return WorkFailed(
                f"the live migration of {self._name} to {target.name} failed, and it still runs on {source.host.name}: {error}."
                f" If it took too long, raise migration_time_limit or migration_downtime"
            )
        return InDoubt(
            f"the live migration of {self._name} to {target.name} failed, and its state is not clear: {error}"
        )

    def _end_migration(self) -> MachineEnd:
        target, record = self._moved()
        if not target.is_active():
            raise InDoubt(f"{self._name} is on {target.host.name} after its live migration, but it does not run")
        if record.autostart:
            target.set_autostart(True)
        downtime_ms = target.downtime_ms()
        pause = "" if downtime_ms is None else f" with a pause of {downtime_ms} ms"
        return self._ended(target, f"moved to {target.host.name}{pause}", target.host.name)

    # -- what the actions share

    def _domain(self) -> HostedDomain:
        if not self._host_name:
            raise WorkFailed(f"the host of {self._name} is not known: add it to the fleet")
        return self._on(self._host_name)

    def _on(self, host: str) -> HostedDomain:
        return HostedDomain(self._host(host), self._name, self._work.instance_ids.get(self._name, ""))

    def _host(self, name: str) -> LibvirtHost:
        uri = self._work.connections.get(name, "")
        if not uri:
            raise WorkFailed(
                f"forewarn does not know how to reach libvirt on {name}: give the host a connection in the fleet"
            )
        return LibvirtHost(name, uri, self._connections)

    def _target_of(self, source: HostedDomain, *, needs_disks: bool) -> AbstractContextManager[LibvirtHost]:
        """Choose a target right before the move: the machine may have waited long for its turn."""
        hosts = [self._host(name) for name in self._work.targets.get(self._name, ()) if name != self._host_name]
        return self._placement.choose(source, hosts, needs_disks=needs_disks, closed=self._work.closed)

    def _reached(self, phase: str, **values: str) -> None:
        self._journal.note(self._name, phase=phase, **values)

    def _require_persistent(self, domain: HostedDomain) -> None:
        if not domain.is_persistent():
            raise WorkFailed(
                f"libvirt forgets {self._name} when it stops, because it is transient: define it with `virsh define`"
            )

    def _require_running(self, domain: HostedDomain) -> None:
        """Refuse a machine that others have paused: the order would resume it."""
        if domain.state() != RUNNING:
            raise WorkFailed(f"{self._name} is already paused on {domain.host.name}: resume it, then retry the order")

    def _begin(self, domain: HostedDomain, *, target: str = "", autostart: bool = False) -> OrderRecord:
        """Record the order in the domain, before anything is done to it."""
        record = OrderRecord(
            order=self._order,
            attempt=self._work.order.attempt,
            domain_id=domain.domain_id(),
            target=target,
            autostart=autostart,
            same_run=domain.is_active(),
        )
        self._reached("chosen", target=target)
        domain.write_record(record)
        self._reached("recorded")
        return record

    def _stop_for_good(self, domain: HostedDomain) -> None:
        if not domain.exists() and self.begun():
            return  # libvirt forgets a transient domain when it stops
        if domain.record(self._order) is None:
            self._begin(domain)
        self._power_off(domain, self._limits.preempt_grace_s)

    def _power_off(self, domain: HostedDomain, grace_s: float) -> None:
        """Stop the run of the domain that the record was written in, and no later run."""
        if not self._same_run(domain):
            return
        self._reached("stopping")
        with suppress(libvirt.libvirtError, HostUnreachable):  # a guest that does not listen is destroyed below
            domain.shut_down()
        if not domain.wait_until(lambda: not self._same_run(domain), grace_s) and self._same_run(domain):
            self._reached("destroying")
            domain.destroy()
        if self._same_run(domain):
            raise WorkFailed(f"{self._name} cannot be stopped on {domain.host.name}: check its QEMU process there")
        self._reached("off")

    def _same_run(self, domain: HostedDomain) -> bool:
        if not domain.is_active_here():
            return False
        record = domain.record(self._order)
        return record is not None and record.same_run

    def _start(self, domain: HostedDomain) -> None:
        try:
            domain.start()
        except libvirt.libvirtError as error:
            raise WorkFailed(
                f"{self._name} is off on {domain.host.name} and cannot be started: {error}. Remove the cause and retry"
            ) from error
        self._reached("started")

    def _moved(self) -> tuple[HostedDomain, OrderRecord]:
        """Return the domain where this order moved it to."""
        noted = self._journal.of(self._name).get("target")
        names = [noted] if noted else [name for name in self._work.connections if name != self._host_name]
        for name in names:
            domain = self._on(name)
            try:
                record = domain.record(self._order)
            except DomainMissing:
                continue
            if record is not None:
                return domain, record
        raise DomainMissing(f"{self._host_name} has no domain {self._name}")

    def _ended(self, domain: HostedDomain, what: str, host: str = "") -> MachineEnd:
        """Verify that the domain runs, and record the end."""
        if domain.state() != RUNNING:
            raise WorkFailed(
                f"{self._name} does not run on {domain.host.name}: start it with `virsh start`, then retry"
            )
        record = domain.record(self._order)
        if record is not None:
            domain.write_record(replace(record, phase="done"))
        self._reached("done")
        return MachineEnd(f"{self._name} {what}", host)


def proven_end(work: Work, machine: str, hosts: Mapping[str, LibvirtHost]) -> MachineEnd | None:
    """Return how the work on a machine ended if libvirt alone proves it, without the journal of the node that did it."""
    name, order = work.hosts.get(machine, ""), work.order.id
    if name not in hosts:
        return None
    source = HostedDomain(hosts[name], machine, work.instance_ids.get(machine, ""))
    moves = work.event.type is EventType.REDEPLOY or (work.event.type is EventType.FREEZE and work.live)
    if not source.exists():
        if not moves:
            return None
        for other in hosts.values():
            domain = HostedDomain(other, machine, work.instance_ids.get(machine, ""))
            if other.name != name and domain.is_active_here() and domain.record(order) is not None:
                return MachineEnd(f"{machine} moved to {other.name}", other.name)
        return None
    record = source.record(order)
    if record is None or moves:
        return None
    stopped = not source.is_active() or not record.same_run
    is_off = work.order.phase is Phase.STOP
    proofs = {
        EventType.REBOOT: stopped and source.is_active() is not is_off,
        EventType.FREEZE: record.phase in ("suspended", "done") and source.state() == RUNNING,
        EventType.PREEMPT: stopped,
    }
    return MachineEnd(f"{machine}: libvirt shows that the work was done") if proofs.get(work.event.type) else None
