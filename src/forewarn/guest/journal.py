"""The agent's memory: an append-only file of JSON lines, each on the disk before what follows it happens.

A record is written and fsynced before a step and after it. Killed in the middle of a write, it has a torn last line, which is
cut off at the next start: what it would have said had not happened yet. One agent at a time may have the file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from forewarn.guest.clock import Time, shown
from forewarn.guest.config_values import others_may_write
from forewarn.guest.errors import ConfigError, JournalError, JournalInUse

try:
    import fcntl
except ImportError:  # Windows: nothing keeps a second agent away there
    fcntl = None  # type: ignore[assignment]

NAME = "journal.jsonl"
# Beyond this it begins anew, with one old file kept, as soon as nothing in it is open.
MAX_BYTES = 1024 * 1024

log = logging.getLogger("forewarn.guest.journal")


class Journal:
    """Holds the file for as long as it lives, and nothing of what is in it."""

    def __init__(self, folder: Path, time: Optional[Time] = None) -> None:
        self._time = time or Time()
        self._folder = folder
        self.path = folder / NAME
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        complaint = others_may_write(folder)
        if complaint:
            raise ConfigError(f"state_dir {folder} is refused: it says what was done, and {complaint}")
        self._lock = _locked(folder / "agent.lock")
        self._file = self._open()
        whole_bytes = len(_whole_lines(self.path))
        if os.fstat(self._file).st_size > whole_bytes:
            log.warning("the journal's last line is torn: the agent was killed while writing it; it is cut off")
            os.ftruncate(self._file, whole_bytes)
            os.fsync(self._file)

    @property
    def records(self) -> List[Dict[str, Any]]:
        """Read from the file each time."""
        return read(self.path)[0]

    def append(self, record: Mapping[str, Any]) -> Dict[str, Any]:
        """On the disk when this returns; raises JournalError, and then nothing of it is there."""
        dated = {"at": shown(self._time.wall()), **record}
        line = json.dumps(dated, separators=(",", ":")).encode() + b"\n"
        good_bytes = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            # Half a line must not spoil the next one; where even this fails the next start cuts it off.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, good_bytes)
            raise JournalError(f"{self.path} cannot be written: {error.strerror}") from None
        return dated

    def rotate(self) -> bool:
        """Begin anew if it has grown large; call it when nothing in it is open."""
        if os.fstat(self._file).st_size <= MAX_BYTES:
            return False
        os.close(self._file)
        self.path.replace(self.path.with_suffix(".1.jsonl"))
        self._file = self._open()
        return True

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    def _open(self) -> int:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _sync_folder(self._folder)
        return file


class Memory:
    """A journal that nobody keeps: for dry runs."""

    def __init__(self, time: Optional[Time] = None) -> None:
        self._time = time or Time()
        self.records: List[Dict[str, Any]] = []

    def append(self, record: Mapping[str, Any]) -> Dict[str, Any]:
        return {"at": shown(self._time.wall()), **record}

    def rotate(self) -> bool:
        return False

    def close(self) -> None:
        pass


def read(path: Path) -> Tuple[List[Dict[str, Any]], int]:
    """The records, and how many bytes of the file they fill: a torn last line is not among them."""
    whole = _whole_lines(path)
    records = []
    for number, line in enumerate(whole.splitlines(), 1):
        record = _parsed(line)
        if record is None:
            log.error("line %d of %s cannot be read and is passed over: the disk has lost something", number, path)
        else:
            records.append(record)
    return records, len(whole)


def _whole_lines(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _parsed(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _locked(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise JournalInUse(f"another agent has {path.parent}: stop it, or name another state_dir") from None
    return file


def in_use(folder: Path) -> bool:
    """Whether an agent has this folder."""
    try:
        os.close(_locked(folder / "agent.lock"))
    except JournalInUse:
        return True
    except OSError:
        return False
    return False


def _sync_folder(folder: Path) -> None:
    try:
        file = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows has no such thing
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)
