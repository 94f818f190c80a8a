"""Access lists of Windows in their text form (SDDL): who owns a file, and what another user may do with it.

Pure: `windows` reads the text of a file, and this module decides. A right counts even if another entry denies it, and so does
a right that depends on a condition: the answer may be too strict, but never too generous.
"""

from __future__ import annotations

import re
from typing import FrozenSet, Iterable, NamedTuple, Tuple

# SIDs that SDDL abbreviates; the others stay as they are.
_ABBREVIATED = {"SY": "S-1-5-18", "BA": "S-1-5-32-544", "CO": "S-1-3-0", "OW": "S-1-3-4", "WD": "S-1-1-0"}
_TRUSTED_INSTALLER = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
# The system, the administrators and Windows' own installer. LA is the built-in administrator.
ADMINISTRATORS = frozenset({"S-1-5-18", "S-1-5-32-544", "LA", _TRUSTED_INSTALLER})
# Entries for the creator and the owner of a file concern its owner alone, and the owner is checked.
_OWNER_ENTRIES = frozenset({"S-1-3-0", "S-1-3-4"})

_RIGHTS = {
    "GA": 0x1000_0000, "GX": 0x2000_0000, "GW": 0x4000_0000, "GR": 0x8000_0000,
    "RC": 0x2_0000, "SD": 0x1_0000, "WD": 0x4_0000, "WO": 0x8_0000,
    "CC": 0x1, "DC": 0x2, "LC": 0x4, "SW": 0x8, "RP": 0x10, "WP": 0x20, "DT": 0x40, "LO": 0x80, "CR": 0x100,
    "FA": 0x1F_01FF, "FR": 0x12_0089, "FW": 0x12_0116, "FX": 0x12_00A0,
}  # fmt: skip
# Generic all, change the access list, take ownership, delete.
_CONTROL = 0x1000_0000 | 0x4_0000 | 0x8_0000 | 0x1_0000
# What lets a user exchange something inside a folder: also, delete any file of it. Adding files does not.
REPLACE = _CONTROL | 0x40
# What lets a user change a file, or the files of a folder: also, write, append, write extended attributes.
WRITE = REPLACE | 0x4000_0000 | 0x2 | 0x4 | 0x10
READ = WRITE | 0x8000_0000 | 0x1

_OWNER = re.compile(r"O:(S-[0-9-]+|[A-Z]{2})")
_LIST = re.compile(r"D:(?!NO_ACCESS_CONTROL)[A-Z_]*((?:\(.*?\))*)(?:S:|$)")
_ENTRY = re.compile(r"\((X?A|OA|ZA);([A-Z]*);([^;()]*);[^;()]*;[^;()]*;([^;()]+)")


class AccessList(NamedTuple):
    owner: str
    # Who may do what, without the entries that only new files in a folder inherit.
    allowed: Tuple[Tuple[str, int], ...]

    @classmethod
    def parse(cls, sddl: str) -> AccessList:
        owner, entries = _OWNER.match(sddl), _LIST.search(sddl)
        if entries is None:  # a file without an access list is open to everyone
            return cls(_sid(owner[1]) if owner else "", ((_sid("WD"), _RIGHTS["GA"]),))
        allowed = tuple(
            (_sid(sid), _mask(rights))
            for _, flags, rights, sid in _ENTRY.findall(entries[1])
            if "IO" not in re.findall("..", flags)
        )
        return cls(_sid(owner[1]) if owner else "", allowed)

    def others_with(self, rights: int, trusted: Iterable[str]) -> Tuple[str, ...]:
        """Return the SIDs, except the trusted ones and the owner's entries, that have one of the rights."""
        known: FrozenSet[str] = frozenset(trusted) | _OWNER_ENTRIES
        return tuple(sid for sid, mask in self.allowed if mask & rights and sid not in known)


def _sid(text: str) -> str:
    return _ABBREVIATED.get(text, text)


def _mask(rights: str) -> int:
    if rights[:2].lower() == "0x":
        return int(rights, 16)
    mask = 0
    for code in re.findall("..", rights):
        mask |= _RIGHTS.get(code, _RIGHTS["GA"])  # a right that this module does not know counts as all
    return mask
