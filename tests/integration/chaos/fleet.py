"""The fleet of every run: scopes that approve in different ways, and each machine's own address to ask from."""

from collections.abc import Iterator
from typing import NamedTuple


class Machine(NamedTuple):
    scope: str
    name: str
    update_domain: int
    address: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"


# Name, kind, approval, machines, update domains.
SCOPES = (
    ("shop", "availability-set", "any", 9, 3),
    ("bank", "availability-set", "all", 8, 4),
    ("farm", "placement-group", "any", 9, 5),
    *((f"lone-{number}", "standalone", "any", 1, 1) for number in range(4)),
)


def _machines() -> Iterator[Machine]:
    for number, (scope, _, _, count, domains) in enumerate(SCOPES):
        for index in range(count):
            yield Machine(scope, f"m{index}", index % domains, f"127.10.{number}.{index + 1}")


MACHINES = tuple(_machines())


def fleet_file() -> str:
    scopes = [
        f'[[scopes]]\nname = "{name}"\nkind = "{kind}"\napproval = "{approval}"\n'
        for name, kind, approval, *_ in SCOPES
    ]
    machines = [
        f'[[machines]]\nscope = "{m.scope}"\nname = "{m.name}"\nupdate_domain = {m.update_domain}\n'
        f'addresses = ["{m.address}"]\n'
        for m in MACHINES
    ]
    return "".join([*scopes, *machines])
