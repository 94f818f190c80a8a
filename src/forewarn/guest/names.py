"""Who this machine is, and whether an event means it. Scale-set instances have a name in two notations:
`pool_35` in documents and metadata, `pool00000Z` (six digits of base 36) as a host's own name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

from forewarn.guest.document import Event, bare_name

_INSTANCE = re.compile(r"(?P<set>.+)_(?P<number>[0-9]{1,9})")
_COMPUTER = re.compile(r"(?P<set>.+?)(?P<number>[0-9a-z]{6})")


@dataclass(frozen=True)
class Me:
    """This machine's name, where it came from, and its scale set's name or ""."""

    name: str
    origin: str = "hostname"
    scale_set: str = ""

    def is_in(self, event: Event) -> bool:
        return any(self._is(each) for each in event.resources)

    def is_first_in(self, event: Event) -> bool:
        return bool(event.resources) and self._is(event.resources[0])

    def _is(self, resource: str) -> bool:
        """A name that was told is the one documents have; a host's own name may be in the other notation."""
        if self.origin == "hostname":
            return same_machine(self.name, resource)
        return bare_name(self.name).lower() == bare_name(resource).lower()


def same_machine(one: str, other: str) -> bool:
    """The same name in any letter case, or the two notations of one scale-set instance."""
    one, other = bare_name(one).lower(), bare_name(other).lower()
    return one == other or _two_notations(one, other) or _two_notations(other, one)


def _two_notations(instance: str, computer: str) -> bool:
    known = _instance(instance)
    found = _COMPUTER.fullmatch(computer)
    return known is not None and found is not None and known == (found["set"], int(found["number"], 36))


def _instance(name: str) -> Optional[Tuple[str, int]]:
    found = _INSTANCE.fullmatch(name)
    return (found["set"], int(found["number"])) if found else None
