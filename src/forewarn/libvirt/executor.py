"""The executor `libvirt`: stops, starts, moves and pauses the domains that the machines of an event are.

`take` writes a journal and starts threads, at most `parallel` for each host, which work on its machines in turn. After a
crash the node whose journal it is continues the order. Another node reports only what libvirt proves (`proven_end`), or that it
cannot tell. This module can be imported without libvirt-python.
"""

import importlib.util
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.core.change import Change
from forewarn.core.errors import InvalidSettings
from forewarn.core.order_verbs import OrderReport, Outcome, Unknown
from forewarn.executors.base import Executor, Progress, Work
from forewarn.executors.private_folder import make_private_folder
from forewarn.executors.settings import one_of, parse_duration, setting, whole_number
from forewarn.libvirt.journal import Journal

if TYPE_CHECKING:
    from forewarn.libvirt.machine_work import MachineEnd, MachineWork

MAX_ORDERS = 64
# How long `status` and `machines_on`, which the ticker calls, may wait for hosts.
ASK_WITHIN_S = 3.0
PREEMPT_GRACE_S = 30
RETRY_HOST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LibvirtSettings:
    shutdown_grace_s: int = setting(
        120, parse_duration, "how long a Reboot or Redeploy waits for a guest to shut down before it is destroyed"
    )
    migration_time_limit_s: int = setting(
        900, parse_duration, "a live migration that takes longer than this is aborted, and its order fails"
    )
    migration_downtime_ms: int = setting(
        300, whole_number(1, 60_000), "the longest pause of a live migration, in milliseconds, that QEMU plans for"
    )
    freeze_default_s: int = setting(
        9, parse_duration, "how long a Freeze outside an evacuation suspends a machine if its event has no duration"
    )
    terminate_storage: str = setting(
        "keep", one_of("keep", "delete"), 'what a Terminate does with the disks of a machine: "keep" or "delete"'
    )
    parallel: int = setting(8, whole_number(1, 100), "how many machines of one host are worked on at once")
    host_return_s: int = setting(
        300, parse_duration, "how long an order waits for the libvirt of a host that does not answer"
    )


class LibvirtExecutor(Executor):
    name = "libvirt"
    settings_class = LibvirtSettings
    sees_hosts = True

    def __init__(
        self,
        settings: LibvirtSettings,
        folder: Path,
        *,
        preempt_grace_s: int = PREEMPT_GRACE_S,
        journal_type: type[Journal] = Journal,
    ) -> None:
        from forewarn.libvirt.connections import HostConnections
        from forewarn.libvirt.machine_work import ActionLimits
        from forewarn.libvirt.placement import Placement

        self._settings = settings
        self._limits = ActionLimits(
            shutdown_grace_s=settings.shutdown_grace_s,
            migration_time_limit_s=settings.migration_time_limit_s,
            migration_downtime_ms=settings.migration_downtime_ms,
            freeze_default_s=settings.freeze_default_s,
            delete_storage=settings.terminate_storage == "delete",
            preempt_grace_s=preempt_grace_s,
        )
        self._folder = folder
        self._journal_type = journal_type
        self._connections: HostConnections = HostConnections()
        self._placement = Placement()
        self._watched: set[tuple[str, int]] = set()
        # Orders that this process could not tell the end of: an operator decides, or a restart of the service tries again.
        self._doubted: dict[tuple[str, int], Unknown] = {}
        self._ended: queue.SimpleQueue[OrderReport] = queue.SimpleQueue()
        self._nudge: Callable[[], None] = lambda: None
        self._host_slots: dict[str, threading.BoundedSemaphore] = {}
        make_private_folder(folder.parent)
        make_private_folder(folder)

    @classmethod
    def check(cls, settings: LibvirtSettings, *, order_timeout_s: int) -> None:
        longest_s = max(settings.shutdown_grace_s, settings.migration_time_limit_s)
        if 0 < order_timeout_s <= longest_s:
            raise InvalidSettings(
                "order_timeout: it must be longer than libvirt_migration_time_limit and libvirt_shutdown_grace, or an order would"
                " fail while it is carried out"
            )

    @classmethod
    def from_settings(cls, settings: LibvirtSettings, state_dir: Path) -> "LibvirtExecutor":
        if importlib.util.find_spec("libvirt") is None:
            raise InvalidSettings(
                "executor: libvirt needs libvirt-python: install the packages libvirt-dev, pkg-config and gcc, then"
                " `pip install 'forewarn[server,libvirt]'`"
            )
        return cls(settings, state_dir / "libvirt")

    def connect(self, nudge: Callable[[], None], _: Callable[[Callable[[Change], None]], None]) -> None:
        self._nudge = nudge

    def status(self, work: Work) -> Progress | Outcome | Unknown:
        if (doubt := self._doubted.get(_key(work))) is not None:
            return doubt
        if _key(work) in self._watched or self._journal(work).exists():
            return Progress.RUNNING  # `watch` continues it if the process that took it has ended
        from forewarn.libvirt.connections import HostUnreachable, LibvirtError
        from forewarn.libvirt.hosted_domain import within

        try:
            ends = within(ASK_WITHIN_S, lambda: self._proven_ends(work), "libvirt")
        except (HostUnreachable, LibvirtError) as error:
            return Unknown(f"its state folder has no trace of it, and libvirt does not answer: {error}")
        if ends is None:
            return Unknown("its state folder has no trace of it, and libvirt does not prove that it was done")
        return self._success(work, ends)

    def free_slots(self) -> int:
        return MAX_ORDERS - len(self._watched)

    def at_work(self) -> int:
        return len(self._watched)

    def take(self, work: Work) -> None:
        journal = self._journal(work)
        if not journal.lock():
            raise BlockingIOError("an earlier attempt is still at work; retry when it has ended")
        self._start(work, journal)

    def watch(self, work: Work) -> None:
        if _key(work) not in self._watched:
            self._start(work, None)

    def reports(self, _: datetime) -> list[OrderReport]:
        ended = []
        while not self._ended.empty():
            ended.append(self._ended.get())
        self._watched -= {(report.order_id, report.attempt or 0) for report in ended}
        return ended

    def report_saved(self, report: OrderReport) -> None:
        if not any(order_id == report.order_id for order_id, _ in self._watched):  # a later attempt needs it
            Journal(self._folder / f"{report.order_id}.json").remove()

    def machines_on(self, host: str, connection: str) -> tuple[str, ...] | None:
        if not connection:
            return None  # libvirt would answer for a hypervisor of its own choice
        from forewarn.libvirt.connections import HostUnreachable, LibvirtError
        from forewarn.libvirt.hosted_domain import LibvirtHost, active_domains, within

        try:
            there = LibvirtHost(host, connection, self._connections)
            return within(ASK_WITHIN_S, lambda: active_domains(there), f"libvirt on {host}")
        except (HostUnreachable, LibvirtError):
            return None

    def tidy(self, unfinished: Collection[Work]) -> None:
        known = {self._journal_path(work) for work in unfinished}
        for path in self._folder.glob("*.json"):
            journal = Journal(path)
            if path not in known and journal.lock():
                journal.unlock()
                journal.remove()

    def close(self) -> None:
        self._connections.close()

    def _journal_path(self, work: Work) -> Path:
        # One for all attempts: a later one must not begin while an earlier one is still at work.
        return self._folder / f"{work.order.id}.json"

    def _journal(self, work: Work) -> Journal:
        return self._journal_type(self._journal_path(work))

    def _start(self, work: Work, journal: Journal | None) -> None:
        self._watched.add(_key(work))
        name = f"order-{work.order.id}"
        threading.Thread(target=self._run, args=(work, journal), daemon=True, name=name).start()

    def _run(self, work: Work, journal: Journal | None) -> None:
        """Work on all machines of an order, then report. Without a journal, first wait for the process that has its lock."""
        if journal is None:
            journal = self._journal(work)
            journal.lock(wait=True)
        results: dict[str, MachineEnd | Exception] = {}
        by_host: dict[str, deque[str]] = {}
        for machine in work.event.resources:
            by_host.setdefault(work.hosts.get(machine, ""), deque()).append(machine)
        threads = [
            threading.Thread(target=self._run_machines, args=(work, machines, journal, results), daemon=True)
            for machines in by_host.values()
            for _ in range(min(len(machines), self._settings.parallel))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcome = self._outcome(work, results)
        if isinstance(outcome, Unknown):
            self._doubted[_key(work)] = outcome
        journal.unlock()  # before the report: a retry may follow it at once
        self._ended.put(OrderReport(work.order.id, work.order.attempt, outcome))
        self._nudge()

    def _run_machines(
        self, work: Work, machines: deque[str], journal: Journal, results: "dict[str, MachineEnd | Exception]"
    ) -> None:
        """Work on machines of one host until none is left; other threads take from the same ones."""
        with suppress(IndexError):
            while True:
                self._run_machine(work, machines.popleft(), journal, results)

    def _run_machine(
        self, work: Work, machine: str, journal: Journal, results: "dict[str, MachineEnd | Exception]"
    ) -> None:
        machine_work = self.machine_work(work, machine, journal)
        slots = self._host_slots.setdefault(
            work.hosts.get(machine, ""), threading.BoundedSemaphore(self._settings.parallel)
        )
        with slots:
            try:
                results[machine] = self._run_until_host_answers(machine_work)
            except Exception as error:
                results[machine] = error

    def machine_work(self, work: Work, machine: str, journal: Journal) -> "MachineWork":
        """Return the work on one machine of an order."""
        from forewarn.libvirt.machine_work import MachineWork

        return MachineWork(
            work,
            machine,
            connections=self._connections,
            placement=self._placement,
            journal=journal,
            limits=self._limits,
        )

    def _run_until_host_answers(self, machine_work: "MachineWork") -> "MachineEnd":
        """Run the work. If a host does not answer, begin or continue when it is back."""
        from forewarn.libvirt.connections import HostUnreachable
        from forewarn.libvirt.machine_work import InDoubt, WorkFailed

        deadline_s = time.monotonic() + self._settings.host_return_s
        while True:
            try:
                return machine_work.run()
            except HostUnreachable as error:
                if time.monotonic() > deadline_s:
                    if machine_work.begun():
                        raise InDoubt(f"the work had begun when a host was lost: {error}") from error
                    raise WorkFailed(f"{error}. Nothing was done; retry the order when the host is back") from error
            time.sleep(RETRY_HOST_S)

    def _outcome(self, work: Work, results: "dict[str, MachineEnd | Exception]") -> Outcome | Unknown:
        from forewarn.libvirt.machine_work import MachineEnd, WorkFailed

        ends = {name: end for name, end in results.items() if isinstance(end, MachineEnd)}
        if len(ends) == len(results):
            return self._success(work, ends)
        problems = {name: end for name, end in results.items() if isinstance(end, Exception)}
        reason = "; ".join(str(error) or repr(error) for error in problems.values())
        if not all(isinstance(error, WorkFailed) for error in problems.values()):
            return Unknown(reason)
        return Outcome(False, reason, _lines(ends), _new_hosts(work, ends))

    def _success(self, work: Work, ends: "dict[str, MachineEnd]") -> Outcome:
        return Outcome(True, "", _lines(ends), _new_hosts(work, ends))

    def _proven_ends(self, work: Work) -> "dict[str, MachineEnd] | None":
        from forewarn.libvirt.hosted_domain import LibvirtHost
        from forewarn.libvirt.machine_work import proven_end

        hosts = {name: LibvirtHost(name, uri, self._connections) for name, uri in work.connections.items() if uri}
        ends = {machine: proven_end(work, machine, hosts) for machine in work.event.resources}
        proven = {machine: end for machine, end in ends.items() if end is not None}
        return proven if len(proven) == len(ends) else None


def _key(work: Work) -> tuple[str, int]:
    return work.order.id, work.order.attempt


def _lines(ends: "dict[str, MachineEnd]") -> str:
    return "\n".join(end.sentence for _, end in sorted(ends.items()))


def _new_hosts(work: Work, ends: "dict[str, MachineEnd]") -> dict[tuple[str, str], str] | None:
    return {(work.event.scope, name): end.host for name, end in ends.items() if end.host} or None
