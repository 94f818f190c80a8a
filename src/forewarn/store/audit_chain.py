"""The hash chain of the audit: each entry's hash covers its content and the hash of the entry before it.

A person who changes, removes or reorders entries must change every later hash too, and with them the head. A head that was noted
elsewhere shows that. Owns how an entry is hashed; PostgreSQL computes the same in a trigger.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from forewarn.core.fast_init import replace
from forewarn.core.model import AuditEntry
from forewarn.store.texts import is_plain, time_text, without_nul

# Where a check of all entries begins: a forged entry may have an id below 1.
BEFORE_ALL_IDS = -(2**62)


@dataclass(frozen=True, slots=True)
class ChainMark:
    """A place in the chain: the id of an entry and its hash; "" before the first entry of the chain."""

    id: int
    hash: str


@dataclass(frozen=True, slots=True)
class AuditChain:
    """Where the chain begins and ends.

    Entries up to `start` were pruned, or are older than the chain. `head` is the newest entry, or `start` if there is none.
    """

    start: ChainMark
    head: ChainMark


def entry_hash(previous: str, entry: AuditEntry) -> str:
    """Return the hash of an entry that follows the entry with the hash `previous`. The id is not part of it."""
    fields = (
        time_text(entry.at),
        entry.who,
        entry.action,
        entry.origin,
        entry.scope,
        entry.maintenance_id,
        entry.event_id,
        entry.detail,
    )
    # Most entries are plain text, and one test of the whole costs less. Row of the bench: one event per commit.
    if is_plain("".join(fields)):
        content = "".join([f"{len(field)}:{field}" for field in fields])
    else:
        content = "".join([_with_length(without_nul(field)) for field in fields])
    return hashlib.sha256(f"{previous}\n{content}".encode()).hexdigest()


def _with_length(field: str) -> str:
    """Return the field after its length in bytes. Without it, the same text split elsewhere would have the same hash."""
    return f"{len(field.encode())}:{field}"


def chained(previous: str, entries: Iterable[AuditEntry]) -> Iterator[AuditEntry]:
    """Yield the entries with their hashes, as they follow the hash `previous`."""
    for entry in entries:
        previous = entry_hash(previous, entry)
        yield replace(entry, hash=previous)


@dataclass(slots=True)
class ChainCheck:
    """Checks a chain entry by entry, oldest first. `fault` says what is wrong with the first entry that does not fit."""

    chain: AuditChain
    noted_head: str = ""
    checked: int = 0
    unchained: int = 0
    fault: str = ""
    _previous: str = ""
    _last_id: int = 0
    _found_noted: bool = False

    def __post_init__(self) -> None:
        self._previous = self.chain.start.hash
        self._last_id = self.chain.start.id
        self._found_noted = self.noted_head in ("", self.chain.start.hash)

    def add(self, entry: AuditEntry) -> None:
        """Check the next entry. Entries from before the chain are counted, and entries after its head are left out.

        Entries from before the chain have no hash and an id of at least 1, and after pruning there are none.
        """
        if entry.id <= self.chain.start.id:
            self.unchained += 1
            if entry.hash or entry.id < 1 or self.chain.start.hash:
                self.fault = self.fault or f"entry {entry.id} was added before the start of the chain"
            return
        if self.fault or entry.id > self.chain.head.id:
            return
        if entry.id <= self._last_id:
            self.fault = f"entry {entry.id} comes after entry {self._last_id}"
        elif entry.hash != entry_hash(self._previous, entry):
            self.fault = f"entry {entry.id} was changed, or an entry before it was changed, removed or moved"
        self._previous, self._last_id = entry.hash, entry.id
        self._found_noted = self._found_noted or entry.hash == self.noted_head
        self.checked += 1

    def finish(self) -> str:
        """Return what is wrong with the chain as a whole, or ""."""
        if not self.fault and self._previous != self.chain.head.hash:
            self.fault = (
                f"the newest entries are missing: the chain ends at entry {self._last_id}, not at {self.chain.head.id}"
            )
        if not self.fault and not self._found_noted:
            self.fault = (
                "the head that you noted is not in the chain: entries were removed or replaced, a backup was restored, or the"
                " entry was pruned"
            )
        return self.fault
