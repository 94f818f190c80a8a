"""Reads the domains of a host from libvirt."""

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any
from xml.etree import ElementTree

import libvirt
from forewarn.core.errors import Invalid
from forewarn.core.model import MAX_ADDRESSES_PER_MACHINE, check_name
from forewarn.libvirt.connections import Connection, HostConnections, HostUnreachable
from forewarn.libvirt.hosted_domain import CALL_WITHIN_S, LibvirtHost, within
from forewarn.libvirt.inventory import Domain, HostReading
from forewarn.libvirt.statements import METADATA_URI

# Why libvirt holds a domain still that moves: the target while it starts and until it runs, the source at its end.
MIGRATING = (libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP)
# A host of libvirt's test driver shows a few; one of QEMU some hundreds.
MAX_DOMAINS_PER_HOST = 10_000
# libvirt itself waits for ever for a guest agent that has begun to answer.
AGENT_WITHIN_S = 5.0


def read_host(
    connections: HostConnections,
    uri: str,
    name: str = "",
    *,
    guest_agent: bool = False,
    interfaces: bool = False,
    call_within_s: float = CALL_WITHIN_S,
    agent_within_s: float = AGENT_WITHIN_S,
) -> HostReading:
    """Return what a host shows; `name` is its name in the fleet, by default the one that libvirt has.

    A host that cannot be read is a HostReading with a problem. `guest_agent` also asks the guests themselves for their addresses.
    """
    host = LibvirtHost(name or uri, uri, connections, call_within_s=call_within_s)
    read = partial(_domain, interfaces=interfaces, agent_within_s=agent_within_s if guest_agent else None)
    try:
        name = name or host.call(_host_name)
        domains = tuple(_domains(host, read))
    except (HostUnreachable, Invalid) as error:
        return HostReading(name=name, connection=uri, problem=f"host {name}: {error}" if name else str(error))
    except libvirt.libvirtError as error:
        return HostReading(name=name, connection=uri, problem=f"host {name or uri}: its libvirt answers: {error}")
    return HostReading(name=name, connection=uri, domains=domains)


def _host_name(connection: Connection) -> str:
    name = str(connection.getHostname())
    check_name("host", name)
    return name


def _domains(host: LibvirtHost, read: Callable[[Any], Domain]) -> Iterator[Domain]:
    found = host.call(lambda connection: connection.listAllDomains())
    if len(found) > MAX_DOMAINS_PER_HOST:
        raise Invalid(f"it has {len(found)} domains: at most {MAX_DOMAINS_PER_HOST} are read")
    for each in found:
        try:
            yield host.call(lambda _, each=each: read(each))  # type: ignore[misc]
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:  # it has ended meanwhile
                raise


def _domain(domain: Any, *, interfaces: bool, agent_within_s: float | None) -> Domain:
    state, reason = domain.state()
    active = bool(domain.isActive())
    by_address = active and not interfaces
    return Domain(
        uuid=domain.UUIDString(),
        name=domain.name(),
        active=active,
        migrating=state == libvirt.VIR_DOMAIN_PAUSED and reason in MIGRATING,
        metadata=_metadata(domain),
        leases=_addresses(domain, libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE) if by_address else (),
        arp=_addresses(domain, libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_ARP) if by_address else (),
        agent=_addresses_by_agent(domain, agent_within_s) if by_address and agent_within_s is not None else (),
        interface=_interface(domain) if interfaces and active else "",
    )


def _metadata(domain: Any) -> str:
    """Return forewarn's element: of the definition that outlives the domain's end, or of the domain as it runs."""
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG if domain.isPersistent() else libvirt.VIR_DOMAIN_AFFECT_CURRENT
    try:
        return str(domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, METADATA_URI, flags))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
            return ""
        raise


def _addresses(domain: Any, source: int) -> tuple[str, ...]:
    """Return the addresses that a source names; none if the domain has no such source."""
    try:
        interfaces = domain.interfaceAddresses(source, 0)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            raise
        return ()
    if source == libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT:
        # It also names interfaces inside the guest, such as a bridge for containers, whose address many guests have.
        own = _mac_addresses(domain)
        interfaces = {name: each for name, each in interfaces.items() if str(each["hwaddr"]).lower() in own}
    found = (address["addr"] for each in interfaces.values() for address in each["addrs"] or ())
    return tuple(islice(_usable(found), MAX_ADDRESSES_PER_MACHINE))


def _addresses_by_agent(domain: Any, within_s: float) -> tuple[str, ...]:
    """Return the addresses that the guest names; none if it does not answer in time."""
    source = libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT
    try:
        return within(within_s, lambda: _addresses(domain, source), f"the agent in {domain.name()}")
    except HostUnreachable:
        return ()


def _usable(addresses: Iterable[str]) -> Iterator[str]:
    """Yield the addresses with which a machine can call the endpoint."""
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue  # a guest agent may say anything
        if not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified):
            yield str(address)


def _mac_addresses(domain: Any) -> set[str]:
    return {each.get("address", "").lower() for each in _definition(domain).findall("devices/interface/mac")}


def _interface(domain: Any) -> str:
    """Return the name of the first interface on the host."""
    target = _definition(domain).find("devices/interface/target")
    return target.get("dev", "") if target is not None else ""


def _definition(domain: Any) -> ElementTree.Element:
    # libvirt writes this text itself, without a document type.
    return ElementTree.fromstring(domain.XMLDesc())  # noqa: S314
