"""The agent's memory: an append-only file of JSON lines, each on the disk before the agent goes on.

The agent writes and fsyncs a record before a step and after it. An agent killed while writing leaves a torn last line, which the
next start cuts off: what the line would have announced had not happened yet. One agent at a time may hold the file.

The file has a bound: when it has grown by MAX_BYTES, one record with the whole state takes its place (`state.state_record`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from forewarn.guest.clock import Time, format_time
from forewarn.guest.errors import ConfigError, JournalError, JournalInUse
from forewarn.guest.safe_files import BINARY, replace_file
from forewarn.guest.system import system

NAME = "journal.jsonl"
# A journal that has grown by more than this is replaced by one record with the whole state; one old file is kept.
MAX_BYTES = 1024 * 1024

log = logging.getLogger("forewarn.guest.journal")


class Journal:
    """Keeps the file open and locked, but none of its content in memory."""

    def __init__(self, folder: Path, time: Optional[Time] = None, *, max_bytes: int = MAX_BYTES) -> None:
        self._time = time or Time()
        self._folder, self.max_bytes = folder, max_bytes
        self._compacted_bytes = 0
        self.path = folder / NAME
        make_state_dir(folder)
        self._lock = _lock_file(folder / "agent.lock")
        self._file = self._open()
        complete_bytes = len(_complete_lines(self.path))
        if os.fstat(self._file).st_size > complete_bytes:
            log.warning(
                "the journal's last line is incomplete and is cut off: the agent was killed while it wrote the line"
            )
            os.ftruncate(self._file, complete_bytes)
            os.fsync(self._file)

    @property
    def records(self) -> List[Dict[str, Any]]:
        """The records, read from the file each time."""
        return read(self.path)[0]

    def append(self, record: Mapping[str, Any]) -> Dict[str, Any]:
        """Write a record to the disk before returning; raise JournalError and leave nothing of it when that fails."""
        dated = self._dated(record)
        line = _line(dated)
        good_bytes = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            # Remove half a line, which would spoil the next one; if this fails too, the next start cuts it off.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, good_bytes)
            raise JournalError(f"{self.path} cannot be written: {error.strerror}") from None
        return dated

    def is_large(self) -> bool:
        """Return whether it is time to compact the journal."""
        return os.fstat(self._file).st_size > self._compacted_bytes + self.max_bytes

    def compact(self, state: Mapping[str, Any]) -> None:
        """Begin a new file with this record of the whole state, and keep the old file beside it.

        The file is replaced whole. If that fails, the journal goes on as it is and grows as much again before the next attempt.
        """
        line = _line(self._dated(state))
        os.close(self._file)  # Windows replaces no open file
        try:
            replace_file(self.path.with_suffix(".1.jsonl"), self.path.read_bytes(), 0o600)
            replace_file(self.path, line, 0o600, sync=True)
        except OSError as error:
            log.error("%s cannot be compacted: %s", self.path, error.strerror)
        self._file = self._open()
        self._compacted_bytes = os.fstat(self._file).st_size

    def _dated(self, record: Mapping[str, Any]) -> Dict[str, Any]:
        return {"at": format_time(self._time.wall()), **record}

    def close(self) -> None:
        os.close(self._file)
        os.close(self._lock)

    def _open(self) -> int:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)
        _sync_folder(self._folder)
        return file


class MemoryJournal:
    """A journal that is not stored, for dry runs."""

    def __init__(self) -> None:
        self.records: List[Dict[str, Any]] = []

    def append(self, record: Mapping[str, Any]) -> Dict[str, Any]:
        return {"at": format_time(Time().wall()), **record}

    def is_large(self) -> bool:
        return False

    def compact(self, state: Mapping[str, Any]) -> None:
        del state

    def close(self) -> None:
        pass


def make_state_dir(folder: Path) -> None:
    """Create the folder if it is missing; raise ConfigError if another user could change what is in it."""
    system.make_private_folder(folder)
    complaint = system.others_may_write(folder)
    if complaint:
        raise ConfigError(f"state_dir {folder} is refused: it records what the agent did, and {complaint}")


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def read(path: Path) -> Tuple[List[Dict[str, Any]], int]:
    """Return the records and how many bytes they fill; an incomplete last line is not among them."""
    complete = _complete_lines(path)
    records = []
    for number, line in enumerate(complete.splitlines(), 1):
        record = _parse(line)
        if record is None:
            log.error("line %d of %s cannot be read and is ignored: the disk has lost data", number, path)
        else:
            records.append(record)
    return records, len(complete)


def _complete_lines(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _parse(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _lock_file(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not system.lock(file):
        os.close(file)
        raise JournalInUse(f"another agent uses {path.parent}: stop it, or name another state_dir")
    return file


def in_use(folder: Path) -> bool:
    """Return whether an agent runs with this folder."""
    try:
        os.close(_lock_file(folder / "agent.lock"))
    except JournalInUse:
        return True
    except OSError:
        return False
    return False


def _sync_folder(folder: Path) -> None:
    try:
        file = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open a folder
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)
