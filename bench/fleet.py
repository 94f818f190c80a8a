"""The fleets the benches run on: twenty machines per scope in five update domains, each with a host and an address.

Owns how such a fleet looks and how a store comes to hold it; it goes in through `Store.apply`, like any other change.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import IPv4Address

from forewarn.core.change import Change
from forewarn.core.model import Machine, Scope, ScopeKind
from forewarn.store import Store

MACHINES_PER_SCOPE = 20
UPDATE_DOMAINS = 5
SCOPES_PER_HOST = 5
SCOPES_PER_CHANGE = 500
FIRST_ADDRESS = int(IPv4Address("10.0.0.0"))
BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)


def scope_name(number: int) -> str:
    return f"scope-{number:06d}"


def scopes_of(machines: int) -> int:
    return machines // MACHINES_PER_SCOPE


def fill(store: Store, machines: int, scopes_per_host: int = SCOPES_PER_HOST) -> None:
    """Put a fleet into an empty store."""
    for first in range(0, scopes_of(machines), SCOPES_PER_CHANGE):
        numbers = range(first, min(first + SCOPES_PER_CHANGE, scopes_of(machines)))
        store.apply(
            Change(
                at=BEGINNING,
                scopes=tuple(new_scope(number) for number in numbers),
                machines=tuple(machine for number in numbers for machine in new_machines(number, scopes_per_host)),
            )
        )


def new_scope(number: int) -> Scope:
    """Enabled, so that its events are due their whole notice."""
    return Scope(name=scope_name(number), kind=ScopeKind.AVAILABILITY_SET, enabled=True, epoch=1, changed=BEGINNING)


def new_machines(number: int, scopes_per_host: int = SCOPES_PER_HOST) -> Iterator[Machine]:
    for index in range(MACHINES_PER_SCOPE):
        serial = number * MACHINES_PER_SCOPE + index
        yield Machine(
            scope=scope_name(number),
            name=f"vm-{index:02d}",
            update_domain=index % UPDATE_DOMAINS,
            host=f"host-{number // scopes_per_host * MACHINES_PER_SCOPE + index:06d}",
            addresses=(str(IPv4Address(FIRST_ADDRESS + serial)),),
        )
