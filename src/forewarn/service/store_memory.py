"""What a node remembers of its database in the state folder, so that it notices when the database was replaced.

The file `store.json` says which database the node used last in each place, and how far its audit had come. Another database
with open work in the same place, or the same one in an earlier state, may show work as open that is already done. Each SQLite
file is a place of its own, because several may share a state folder. All PostgreSQL databases are one place: a database is
restored under another name.
"""

import json
import logging
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from forewarn.core.errors import InvalidSettings
from forewarn.service.private_files import make_folder, read_private, write_private
from forewarn.store import Store, StorePosition

FILE_NAME = "store.json"
REMEMBER_EVERY_S = 10.0
MAX_REMEMBERED = 100

log = logging.getLogger("forewarn.service.store_memory")


class _Remembered(NamedTuple):
    identity: str
    timeline: int
    audit_id: int


class StoreMemory:
    """The memory of one state folder. The ticker brings it up to date every few seconds."""

    def __init__(self, folder: Path, store: Store, *, place: str) -> None:
        self._path = folder / FILE_NAME
        self._place = place
        self._store = store
        self._remember_at_s = 0.0
        self._written: _Remembered | None = None
        self._trouble = ""

    def difference(self, *, others_use_it: bool = False) -> str:
        """Return how the database differs from the one remembered, or "" if it may go on.

        A new timeline is a failover, which is no difference. A database that other nodes use at this moment was not restored.
        """
        found, known = self._store.position(), self._read()
        if found is None:
            return ""
        copied = (each for each in known.values() if each.identity == found.identity)
        remembered = known.get(self._place) or next(copied, None)
        if remembered is None:
            return ""
        if found.identity != remembered.identity:
            may_go_on = found.resumed or found.held or others_use_it or not found.unfinished
            return "" if may_go_on else "this is not the database that this node used last"
        if found.timeline == remembered.timeline and 0 < found.audit_id < remembered.audit_id:
            return (
                f"the database is in an earlier state than this node remembers (its audit ends at entry {found.audit_id},"
                f" not at {remembered.audit_id})"
            )
        return ""

    def remember(self) -> None:
        """Save which database this is and how far it has come; keep a later position, which another node may have saved.

        A full disk is logged: the service works without it.
        """
        self._remember_at_s = time.monotonic() + REMEMBER_EVERY_S
        found = self._store.position()
        if found is None or (position := _of(found)) == self._written:
            return
        known = self._read()
        saved = known.pop(self._place, None)
        if saved is not None and position[:2] == saved[:2] and position.audit_id < saved.audit_id:
            return
        try:
            make_folder(self._path.parent)
            latest = list({**known, self._place: position}.items())[-MAX_REMEMBERED:]
            write_private(self._path, json.dumps({"stores": {place: each._asdict() for place, each in latest}}))
            self._written, self._trouble = position, ""
        except InvalidSettings as error:
            if str(error) != self._trouble:
                log.warning("a restored database would not be noticed: %s", error)
            self._trouble = str(error)

    def next_due(self) -> datetime | None:
        """Return None: no moment of the service clock wakes the ticker for this."""
        return None

    def do(self, _: datetime) -> int:
        if time.monotonic() >= self._remember_at_s:
            self.remember()
        return 0

    def _read(self) -> dict[str, _Remembered]:
        """Return the remembered positions by place. An earlier release remembered one, whatever its place."""
        try:
            found = json.loads(read_private(self._path))
            stores = found.get("stores", {self._place: found})
            return {
                place: _Remembered(str(each["identity"]), int(each["timeline"]), int(each["audit_id"]))
                for place, each in stores.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read, so a restored database would not be noticed: %s", self._path, error)
            return {}


def _of(position: StorePosition) -> _Remembered:
    return _Remembered(identity=position.identity, timeline=position.timeline, audit_id=position.audit_id)
