"""Where machines may go that leave their host: the hosts to try, the best first. forewarn never chooses a cordoned host.

An executor that checks more, such as memory or CPU, takes the first host that fits.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import Host, Machine

# Of one machine: the best are enough, and a fleet may have many hosts.
MAX_TARGETS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts that have rows, how many machines each host carries, and the hosts that are in maintenance.

    `emptied_next` wait for their turn in the same maintenance: a machine that goes there has to move once more.
    """

    rows: Mapping[str, Host]
    machines: Mapping[str, int] = field(default_factory=dict)
    in_maintenance: Collection[str] = frozenset()
    emptied_next: Collection[str] = frozenset()

    def why_not(self, name: str) -> str:
        """Return why no machine may be sent to a host, or ""."""
        host = self.rows.get(name)
        if host is not None and host.cordoned is not None:
            return f"host {name} is cordoned"
        return f"host {name} is in maintenance" if name in self.in_maintenance else ""

    def no_target(self, leaving: str, to_host: str) -> str:
        """Return why the machines of a host can go nowhere, or "". If the fleet lists no hosts, the executor chooses."""
        if to_host:
            return self.why_not(to_host)
        listed = [host.name for host in self.rows.values() if host.listed]
        if not listed or any(not self.why_not(name) for name in listed if name != leaving):
            return ""
        return "every other host is cordoned or in maintenance" if listed != [leaving] else "there is no other host"


def targets(
    leaving: Iterable[Machine], of_scope: Iterable[Machine], hosts: Hosts, *, to_host: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return for each leaving machine of a scope, by name, the hosts it may go to.

    `of_scope` are all machines of the scope. The hosts of the fault domain with the fewest machines of the scope come first,
    then those with the fewest machines; hosts that are emptied next come last. Each machine is expected on its first host when
    the next one is placed. With `to_host` there is no other choice. Without a list of hosts the result is empty: the executor
    chooses.
    """
    leaving = list(leaving)
    if to_host:
        chosen = () if hosts.why_not(to_host) else (to_host,)
        return {machine.name: chosen for machine in leaving}
    candidates = [host for host in hosts.rows.values() if host.listed and not hosts.why_not(host.name)]
    if not any(host.listed for host in hosts.rows.values()):
        return {}
    names = {machine.name for machine in leaving}
    in_domain = Counter(_fault_domain(machine, hosts) for machine in of_scope if machine.name not in names)
    carried = Counter(hosts.machines)
    placed: dict[str, tuple[str, ...]] = {}
    for machine in leaving:
        order = sorted(
            (host for host in candidates if host.name != machine.host),
            key=lambda host: (
                host.name in hosts.emptied_next,
                in_domain[host.fault_domain],
                carried[host.name],
                host.name,
            ),
        )
        placed[machine.name] = tuple(host.name for host in order[:MAX_TARGETS])
        if order:
            in_domain[order[0].fault_domain] += 1
            carried[order[0].name] += 1
    return placed


def _fault_domain(machine: Machine, hosts: Hosts) -> int:
    """Return the fault domain of the machine's host; for a host that the fleet does not list, that of the machine."""
    host = hosts.rows.get(machine.host)
    return host.fault_domain if host is not None and host.listed else machine.fault_domain
