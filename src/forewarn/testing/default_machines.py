"""The machines of an emulator by default: vm-0, vm-1 … in one scope, each with a loopback address."""

from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, Scope, ScopeKind

SCOPE = "emulated"
UPDATE_DOMAINS = 5


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
