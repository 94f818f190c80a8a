"""The reading of the clock that a node keeps for its next start, in one small file for each store.

The file names the boot of the machine: the boot clock of another boot cannot be compared. A node whose machine was restarted
notices no jump that happened meanwhile.
"""

import hashlib
import json
import logging
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from forewarn.core.errors import InvalidSettings
from forewarn.service.clock import Reading
from forewarn.service.private_files import read_private, write_private
from forewarn.store.opening import MEMORY, SQLITE, store_file, store_kind

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger("forewarn.service.clock_file")


def boot_id() -> str:
    """Return the id that the kernel gave this boot of the machine; "" if there is none."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def clock_path(store_url: str, state_dir: Path) -> Path | None:
    """Return where the reading for a store is kept: beside an SQLite file, or in the state folder; None for `memory:`.

    Services with different stores may share a state folder: each must notice a jump itself.
    """
    kind = store_kind(store_url)
    if kind == MEMORY:
        return None
    if kind == SQLITE:
        database = store_file(store_url)
        return database.with_name(f"{database.name}.clock")
    parts = urlsplit(store_url)
    # Without the user, the password and the options, which may change.
    where = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return state_dir / f"clock-{hashlib.sha256(where.encode()).hexdigest()[:12]}"


class ClockFile:
    def __init__(self, path: Path, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._complained = False

    def load(self) -> Reading | None:
        try:
            text = read_private(self._path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning(
                "%s cannot be read: a jump of the clock before this start goes unnoticed: %s", self._path, error
            )
            return None
        try:
            known = json.loads(text)
            if not self._boot or known["boot_id"] != self._boot:
                return None
            return Reading(datetime.fromisoformat(known["time"]), float(known["boot_s"]))
        except (ValueError, TypeError, KeyError) as error:
            log.warning("%s is damaged: a jump of the clock before this start goes unnoticed: %r", self._path, error)
            return None

    def save(self, reading: Reading) -> bool:
        known = {"boot_id": self._boot, "boot_s": reading.boot_s, "time": reading.at.isoformat()}
        try:
            write_private(self._path, json.dumps(known))
        except InvalidSettings as error:
            if not self._complained:
                log.error("a jump of the clock while no node runs may go unnoticed: %s", error)
            self._complained = True
            return False
        self._complained = False
        return True
