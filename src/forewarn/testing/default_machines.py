"""The machines an emulator has unless it is told otherwise: vm-0, vm-1 … of one scope, each with a loopback address."""

from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, Scope, ScopeKind

SCOPE = "emulated"
UPDATE_DOMAINS = 5


def fleet_of(machines: int, first: str = "") -> Fleet:
    """One scope, in which every type of event is possible: a placement group knows Terminate too.

    `first` is what vm-0 is called instead.
    """
    placed = [
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
    return Fleet({SCOPE: scope}, {machine.key: machine for machine in placed})
