"""This machine's name, and whether an event names it.

An instance of a scale set has a name in two notations: `pool_35` in documents and metadata, `pool00000Z` (six digits of base 36)
as its host name.
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
        """Compare names; only a host name may be in the other notation, a configured or fetched name is as in documents."""
        if self.origin == "hostname":
            return same_machine(self.name, resource)
        return bare_name(self.name).lower() == bare_name(resource).lower()


def same_machine(one: str, other: str) -> bool:
    """Return whether both are the same name in any letter case, or the two notations of one scale-set instance."""
    one, other = bare_name(one).lower(), bare_name(other).lower()
    return one == other or _is_computer_name_of(one, other) or _is_computer_name_of(other, one)


def _is_computer_name_of(instance: str, computer: str) -> bool:
    parsed = _parse_instance(instance)
    match = _COMPUTER.fullmatch(computer)
    return parsed is not None and match is not None and parsed == (match["set"], int(match["number"], 36))


def _parse_instance(name: str) -> Optional[Tuple[str, int]]:
    match = _INSTANCE.fullmatch(name)
    return (match["set"], int(match["number"])) if match else None
