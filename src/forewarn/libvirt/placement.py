"""Chooses the host that a machine moves to: the first one with enough memory and a compatible processor.

A machine that is started there must also find its disks. Memory that this process has promised to other machines counts as used
until they have arrived.
"""

import threading
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import libvirt
from forewarn.libvirt.connections import Connection, HostUnreachable
from forewarn.libvirt.hosted_domain import HostedDomain, LibvirtHost

MIB = 1024 * 1024
_COMPATIBLE = (libvirt.VIR_CPU_COMPARE_IDENTICAL, libvirt.VIR_CPU_COMPARE_SUPERSET)


class NoTarget(Exception):
    """No host can take a machine. The message names each host with its reason."""


class Placement:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._promised: Counter[str] = Counter()

    @contextmanager
    def choose(
        self,
        source: HostedDomain,
        hosts: Sequence[LibvirtHost],
        *,
        needs_disks: bool,
        closed: Callable[[str], str] = lambda _: "",
    ) -> Iterator[LibvirtHost]:
        """Yield the first host that can take the domain and is not closed; keep its memory promised until the block ends."""
        needed = source.memory_bytes()
        xml = source.xml(live=source.is_active())
        reasons = []
        for host in hosts:
            try:
                reason = closed(host.name) or _obstacle(source, xml, host, needs_disks=needs_disks)
            except (HostUnreachable, libvirt.libvirtError) as error:
                reason = str(error)
            if not reason and not (reason := self._promise(host, needed)):
                try:
                    yield host
                finally:
                    with self._lock:
                        self._promised[host.name] -= needed
                return
            reasons.append(f"{host.name}: {reason}")
        raise NoTarget("; ".join(reasons) or "no other host is up and not cordoned: add one, or uncordon one")

    def _promise(self, host: LibvirtHost, needed: int) -> str:
        stats = host.call(lambda connection: connection.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS))
        available = sum(stats.get(key, 0) for key in ("free", "buffers", "cached")) * 1024
        with self._lock:
            free = available - self._promised[host.name]
            if free < needed:
                return f"it has {max(free, 0) // MIB:,} MiB of memory left, and the machine needs {needed // MIB:,} MiB"
            self._promised[host.name] += needed
        return ""


def _obstacle(source: HostedDomain, xml: str, host: LibvirtHost, *, needs_disks: bool) -> str:
    """Return why the host cannot take the domain, or ""."""
    if HostedDomain(host, source.name).exists():
        return f"it already has a domain {source.name}: remove the old definition with `virsh undefine`"
    domain = ElementTree.fromstring(xml)  # noqa: S314 - from libvirt
    if not _cpu_fits(domain, source.host, host):
        return "its processor lacks features that the machine uses: choose a CPU model that all hosts have"
    if needs_disks and (missing := _files_not_there(domain, host)):
        return f"{', '.join(missing)} cannot be seen there: put it on storage that both hosts share"
    return ""


def _cpu_fits(domain: ElementTree.Element, source: LibvirtHost, host: LibvirtHost) -> bool:
    cpu = domain.find("cpu")
    if cpu is None:
        return True
    if cpu.get("mode") in ("host-passthrough", "maximum"):
        # The guest sees the processor itself: the other host's must have everything that this one has.
        here = ElementTree.fromstring(source.call(lambda connection: connection.getCapabilities()))  # noqa: S314
        found = here.find("host/cpu")
        if found is None:
            return True
        processor = ElementTree.tostring(found, encoding="unicode")
        return host.call(lambda connection: connection.compareCPU(processor, 0)) in _COMPATIBLE
    if cpu.get("mode") == "host-model":
        return True  # an inactive domain: the model is chosen anew where it starts
    kind = domain.find("os/type")
    arch, machine = (None, None) if kind is None else (kind.get("arch"), kind.get("machine"))
    model = ElementTree.tostring(cpu, encoding="unicode")

    def compare(connection: Connection) -> int:
        return int(
            connection.compareHypervisorCPU(
                domain.findtext("devices/emulator"), arch, machine, domain.get("type"), model
            )
        )

    return host.call(compare) in _COMPATIBLE


def _files_not_there(domain: ElementTree.Element, host: LibvirtHost) -> list[str]:
    """Return the disks and boot files of the domain that the host cannot see. Disks on a network are seen everywhere."""
    missing = []
    for disk in domain.iterfind("devices/disk"):
        source = disk.find("source")
        if source is None or disk.find("transient") is not None:
            continue
        if pool := source.get("pool"):
            volume = source.get("volume", "")
            if not host.call(lambda connection, pool=pool, volume=volume: _has_volume(connection, pool, volume)):  # type: ignore[misc]
                missing.append(f"{pool}/{volume}")
        elif (path := source.get("file") or source.get("dev")) and not host.call(
            lambda connection, path=path: _has_file(connection, path)  # type: ignore[misc]
        ):
            missing.append(path)
    for tag in ("os/kernel", "os/initrd", "os/nvram"):
        path = (domain.findtext(tag) or "").strip()
        if path and not host.call(lambda connection, path=path: _has_file(connection, path)):  # type: ignore[misc]
            missing.append(path)
    return missing


def _has_volume(connection: Connection, pool: str, volume: str) -> bool:
    try:
        found = connection.storagePoolLookupByName(pool)
        found.refresh(0)
        found.storageVolLookupByName(volume)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_STORAGE_POOL, libvirt.VIR_ERR_NO_STORAGE_VOL):
            return False
        raise
    return True


def _has_file(connection: Connection, path: str) -> bool:
    """Ask libvirt for a file by a pool of its folder, which exists only for the question."""
    folder, _, name = path.rpartition("/")
    pool_xml = ElementTree.Element("pool", {"type": "dir"})
    ElementTree.SubElement(pool_xml, "name").text = f"forewarn-check-{threading.get_native_id()}"
    ElementTree.SubElement(ElementTree.SubElement(pool_xml, "target"), "path").text = folder or "/"
    try:
        connection.storageVolLookupByPath(path)
        return True
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
            raise
    try:
        pool = connection.storagePoolCreateXML(ElementTree.tostring(pool_xml, encoding="unicode"), 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_FAILED:
            return _is_in_other_pool(connection, folder, name)
        return False  # there is no such folder
    try:
        return name in pool.listVolumes()
    finally:
        pool.destroy()


def _is_in_other_pool(connection: Connection, folder: str, name: str) -> bool:
    """Two pools cannot have one folder: refresh the pool that has it, and ask that one."""
    for pool in connection.listAllStoragePools(libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE):
        target = ElementTree.fromstring(pool.XMLDesc(0)).findtext("target/path")  # noqa: S314 - from libvirt
        if target == folder:
            pool.refresh(0)
            return name in pool.listVolumes()
    return False
