"""The machines of an emulator by default: vm-0, vm-1 … in one scope, each with a loopback address."""

from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, Scope, ScopeKind

SCOPE = "emulated"
UPDATE_DOMAINS = 5
FIRST_HOST = "127.0.0.1"
MAX_HOSTS = 250


def default_fleet(machines: int, first: str = "") -> Fleet:
    """Return a fleet of one placement group, in which every event type is possible, also Terminate.

    `first` is another name for vm-0.
    """
    members = [
        Machine(
            scope=SCOPE,
            name=(first if number == 0 else "") or f"vm-{number}",
            update_domain=number % UPDATE_DOMAINS,
            fault_domain=number % UPDATE_DOMAINS,
            host=f"host-{number}",
            addresses=(f"127.0.0.{number + 1}",),
        )
        for number in range(machines)
    ]
    scope = Scope(name=SCOPE, kind=ScopeKind.PLACEMENT_GROUP)
    return Fleet({SCOPE: scope}, {machine.key: machine for machine in members})


def machine_hosts(fleet: Fleet) -> dict[str, str]:
    """Return the loopback addresses at which the emulator listens for single machines, by `scope/name`.

    At 127.0.0.1 a machine is known by the address it comes from, so that address is left out.
    """
    hosts = {
        f"{machine.scope}/{machine.name}": address
        for machine in fleet.machines.values()
        for address in machine.addresses
        if address.startswith("127.") and address != FIRST_HOST and not machine.interface
    }
    return hosts if len(hosts) <= MAX_HOSTS else {}
