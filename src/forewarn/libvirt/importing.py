"""Reads the fleet of some hosts once, for `forewarn fleet import libvirt`."""

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.fleet import Fleet
from forewarn.libvirt.inventory import Decision, HostReading, decide
from forewarn.libvirt.statements import Rule

HOSTS_AT_ONCE = 8
# Nothing in an import depends on the time: it has no memory of an earlier reading.
SOME_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def import_fleet(uris: Iterable[str], rules: tuple[Rule, ...], *, by_interface: bool = False) -> Decision:
    """Return the fleet that the hosts show; raise if one of them cannot be read: half a fleet would pass for a whole one."""
    readings = _readings(list(dict.fromkeys(uris)), by_interface=by_interface)
    problems = [reading.problem for reading in readings if reading.problem]
    if problems:
        raise Invalid("; ".join(problems))
    name, times = Counter(reading.name for reading in readings).most_common(1)[0]
    if times > 1:
        raise Invalid(f"{times} hosts have the name {name}: give each host a name of its own, or name each host once")
    return decide(readings, Fleet({}, {}), rules, now=SOME_TIME, by_interface=by_interface)


def _readings(uris: list[str], *, by_interface: bool) -> list[HostReading]:
    try:
        from forewarn.libvirt.connections import HostConnections
        from forewarn.libvirt.reading import read_host
    except ImportError:
        raise InvalidSettings(
            "libvirt-python is not installed: install the system packages libvirt-dev, pkg-config and gcc, then run"
            " `pip install forewarn[libvirt]`"
        ) from None
    connections = HostConnections()
    try:
        with ThreadPoolExecutor(HOSTS_AT_ONCE) as pool:
            return list(
                pool.map(lambda uri: read_host(connections, uri, guest_agent=True, interfaces=by_interface), uris)
            )
    finally:
        connections.close()
