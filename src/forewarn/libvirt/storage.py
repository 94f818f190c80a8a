"""Deletes the disks of a domain that is removed for good, as far as libvirt manages them."""

import xml.etree.ElementTree as ElementTree
from typing import Any

import libvirt
from forewarn.libvirt.connections import Connection


def undeletable_disks(connection: Connection, domain_xml: str) -> list[str]:
    """Return the disks that `delete_disks` could not delete, because they are in no storage pool."""
    return [name for name in _disks(domain_xml) if _volume(connection, name) is None]


def delete_disks(connection: Connection, domain_xml: str) -> None:
    """Delete the disks of the domain. Pass over disks that are gone: they were deleted before a crash."""
    for name in _disks(domain_xml):
        volume = _volume(connection, name)
        if volume is not None:
            volume.delete(0)


def _disks(domain_xml: str) -> list[str]:
    """Return the paths of disks, or POOL/VOLUME; neither media nor disks that other machines may use."""
    found = []
    for disk in ElementTree.fromstring(domain_xml).iterfind("devices/disk"):  # noqa: S314 - from libvirt
        source = disk.find("source")
        if source is None or disk.get("device", "disk") != "disk":
            continue
        if disk.find("readonly") is not None or disk.find("shareable") is not None:
            continue
        pool, volume = source.get("pool"), source.get("volume")
        path = source.get("file") or source.get("dev") or source.get("name") or "a disk"
        found.append(f"{pool}/{volume}" if pool else path)
    return found


def _volume(connection: Connection, name: str) -> Any:
    """Return the volume, or None if no active pool has it."""
    try:
        if name.startswith("/"):
            return connection.storageVolLookupByPath(name)
        pool, _, volume = name.partition("/")
        return connection.storagePoolLookupByName(pool).storageVolLookupByName(volume)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_STORAGE_POOL, libvirt.VIR_ERR_NO_STORAGE_VOL):
            return None
        raise
