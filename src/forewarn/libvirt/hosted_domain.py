"""One domain on one host: what libvirt says of it, and the calls that change it.

Every method makes its calls in a thread that is given up after `CALL_WITHIN_S`, because a call may hang although the connection
lives. Every method finds the domain again: libvirt's objects remember the id that a domain had.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import libvirt
from forewarn.libvirt.connections import Connection, Domain, HostConnections, HostUnreachable
from forewarn.libvirt.record import NAMESPACE, PREFIX, OrderRecord, parse_record

CALL_WITHIN_S = 15.0
CHECK_EVERY_S = 0.1

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

Answer = TypeVar("Answer")
RUNNING, PAUSED, OFF = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_SHUTOFF
_UNDEFINE_FOR_GOOD = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)


class DomainMissing(Exception):
    """The host has no such domain."""


def within(seconds: float, function: Callable[[], Answer], what: str) -> Answer:
    """Return what the function returns, or raise HostUnreachable if it does not end in time; its thread is left alone."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name=what)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise HostUnreachable(f"{what} does not answer within {seconds:g} s: check its libvirtd and QEMU")
    return answers[0]


class LibvirtHost:
    """A host by name, with its URI."""

    def __init__(
        self, name: str, uri: str, connections: HostConnections, *, call_within_s: float = CALL_WITHIN_S
    ) -> None:
        self.name = name
        self.uri = uri
        self._connections = connections
        self._call_within_s = call_within_s

    def call(self, function: Callable[[Connection], Answer], seconds: float | None = None) -> Answer:
        connection = self._connections.get(self.uri)
        within_s = self._call_within_s if seconds is None else seconds
        try:
            return within(within_s, lambda: function(connection), f"libvirt on {self.name}")
        except HostUnreachable:
            # libvirtd works on five calls of a connection at once: calls that hang would hold up all others.
            self._connections.retire(self.uri, connection)
            raise
        except libvirt.libvirtError as error:
            if self._connections.get_if_alive(self.uri) is None:
                raise HostUnreachable(f"the connection to libvirt on {self.name} broke: {error}") from error
            raise

    def connection(self) -> Connection:
        return self._connections.get(self.uri)


class HostedDomain:
    """A domain by its UUID or, if its instance id is no UUID, by its name."""

    def __init__(self, host: LibvirtHost, name: str, instance_id: str = "") -> None:
        self.host = host
        self.name = name
        self._uuid = instance_id if _UUID.fullmatch(instance_id) else ""

    def call(self, function: Callable[[Domain], Answer], seconds: float | None = None) -> Answer:
        """Call a method of the domain; raise DomainMissing or HostUnreachable."""
        try:
            return self.host.call(lambda connection: function(self.find(connection)), seconds)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                raise DomainMissing(f"{self.host.name} has no domain {self.name}") from error
            raise

    def find(self, connection: Connection) -> Domain:
        return connection.lookupByUUIDString(self._uuid) if self._uuid else connection.lookupByName(self.name)

    def exists(self) -> bool:
        try:
            self.call(lambda domain: domain.ID())
        except DomainMissing:
            return False
        return True

    def state(self) -> int:
        return int(self.call(lambda domain: domain.state()[0]))

    def is_active(self) -> bool:
        return bool(self.call(lambda domain: domain.isActive()))

    def is_active_here(self) -> bool:
        """Whether the host has the domain and runs it."""
        try:
            return self.is_active()
        except DomainMissing:
            return False

    def is_persistent(self) -> bool:
        return bool(self.call(lambda domain: domain.isPersistent()))

    def domain_id(self) -> int:
        return int(self.call(lambda domain: domain.ID()))

    def memory_bytes(self) -> int:
        return int(self.call(lambda domain: domain.maxMemory())) * 1024

    def xml(self, *, live: bool = False) -> str:
        flags = libvirt.VIR_DOMAIN_XML_SECURE | (0 if live else libvirt.VIR_DOMAIN_XML_INACTIVE)
        return str(self.call(lambda domain: domain.XMLDesc(flags)))

    def autostarts(self) -> bool:
        return bool(self.call(lambda domain: domain.autostart()))

    def set_autostart(self, on: bool) -> None:
        self.call(lambda domain: domain.setAutostart(int(on)))

    def kept_only_here(self) -> str:
        """Return what libvirt keeps of the domain on this host and does not move with a definition, or ""."""

        def kept(domain: Domain) -> str:
            if domain.snapshotNum(0):
                return "snapshots"
            return "a saved memory" if domain.hasManagedSaveImage(0) else ""

        return self.call(kept)

    # -- the record of an order

    def record(self, order: str) -> OrderRecord | None:
        """Return the record of this order: of the live definition if the domain runs, of the persistent one otherwise."""
        try:
            xml = self.call(lambda domain: domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE, 0))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                return None
            raise
        record = parse_record(xml)
        return record if record is not None and record.order == order else None

    def write_record(self, record: OrderRecord) -> None:
        """Write the persistent definition first: a live record without one would be lost with the run of the domain."""
        if self.is_persistent():
            self._write(replace(record, same_run=False), libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        if self.is_active():
            self._write(record, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def _write(self, record: OrderRecord, flags: int) -> None:
        def write(domain: Domain) -> None:
            domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, record.xml(), PREFIX, NAMESPACE, flags)

        self.call(write)

    # -- what changes its state

    def shut_down(self) -> None:
        self.call(lambda domain: domain.shutdown())

    def destroy(self) -> None:
        with _already():
            self.call(lambda domain: domain.destroy())

    def start(self) -> None:
        with _already():
            self.call(lambda domain: domain.create(), 4 * CALL_WITHIN_S)

    def suspend(self) -> None:
        self.call(lambda domain: domain.suspend())

    def resume(self) -> None:
        self.call(lambda domain: domain.resume())

    def undefine(self, *, for_good: bool) -> None:
        """Remove the definition; for good, also everything that libvirt keeps with it."""
        flags = _UNDEFINE_FOR_GOOD if for_good else libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
        self.call(lambda domain: domain.undefineFlags(flags))

    def define(self, xml: str) -> None:
        self.host.call(lambda connection: connection.defineXML(xml))

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Return whether the condition became true in time."""
        deadline_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(CHECK_EVERY_S)
        return True

    # -- live migration

    def job_under_way(self) -> bool:
        return bool(self.call(lambda domain: domain.jobInfo()[0] != libvirt.VIR_DOMAIN_JOB_NONE))

    def migrate(self, target: "HostedDomain", *, time_limit_s: float, downtime_ms: int) -> None:
        """Migrate live, or raise libvirtError. A migration that takes too long is aborted, and libvirt reports that."""
        flags = libvirt.VIR_MIGRATE_LIVE
        if self.is_persistent():
            flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        destination = target.host.connection()
        # libvirtd works on five calls of a connection at once, and a migration is a long one.
        own = HostConnections()
        source = LibvirtHost(self.host.name, self.host.uri, own).call(self.find)
        self.call(lambda domain: domain.migrateSetMaxDowntime(downtime_ms, 0))
        ended = threading.Event()
        threading.Thread(
            target=self._abort_after, args=(time_limit_s, ended), daemon=True, name=f"time limit of {self.name}"
        ).start()
        try:
            # After an abort the call returns; if libvirt hangs, it is given up.
            within(
                time_limit_s + 2 * CALL_WITHIN_S,
                lambda: source.migrate3(destination, {}, flags),
                f"the migration of {self.name} from {self.host.name}",
            )
        finally:
            ended.set()
            own.close()

    def _abort_after(self, time_limit_s: float, ended: threading.Event) -> None:
        """Abort the migration when its time is over. Repeat the request: libvirt refuses it until the migration has begun."""
        ended.wait(time_limit_s)
        while not ended.wait(CHECK_EVERY_S):
            with suppress(libvirt.libvirtError, HostUnreachable, DomainMissing):
                self.call(lambda domain: domain.abortJob())

    def downtime_ms(self) -> int | None:
        """Return how long the migration that brought the domain here paused it, if libvirt knows."""
        try:
            stats: dict[str, Any] = self.call(
                lambda domain: domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED), CALL_WITHIN_S
            )
        except libvirt.libvirtError:
            return None
        found = stats.get(libvirt.VIR_DOMAIN_JOB_DOWNTIME)
        return None if found is None else int(found)


@contextmanager
def _already() -> Iterator[None]:
    """Suppress the error of a domain that is already in the state that a call would bring about."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID:
            raise


def active_domains(host: LibvirtHost) -> tuple[str, ...]:
    """Return the names of all domains that the host runs, sorted."""

    def names(connection: Connection) -> list[str]:
        return [domain.name() for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)]

    return tuple(sorted(host.call(names)))
