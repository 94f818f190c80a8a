"""The output of a program of a step: kept in memory, bounded, and logged as one line when the program has ended.

The program writes to a file, not to a pipe: it may outlive the agent, and a pipe without a reader would end it. The agent trims
the file while the program runs. After that the kernel limits the size of the file, because something that the program left
running may go on writing.

Programs may also open the file by its name: `echo text > /dev/stderr` empties it. So the file has no fixed size while the program
runs, and all writes go to its end.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: writes go on where the last one ended, and the size has no limit after the program
    fcntl = None  # type: ignore[assignment]

# The file is trimmed when it is larger than this.
TRIM_BYTES = 1024 * 1024
# What the program left running can write so much, and no more.
MAX_LATER_BYTES = 16 * 1024 * 1024
# The end of the output that is logged.
MAX_LOGGED_BYTES = 4 * 1024


class ProgramOutput:
    """A file for the standard output and the standard error of one program. Close it after use."""

    def __init__(self) -> None:
        self._file = _memory_file()
        self._trimmed = b""
        if fcntl is not None:
            fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)

    def fileno(self) -> int:
        return self._file.fileno()

    def trim(self) -> None:
        """Empty the file if it is large, and remember its end."""
        if os.fstat(self.fileno()).st_size > TRIM_BYTES:
            self._trimmed = self._end()
            os.lseek(self.fileno(), 0, os.SEEK_SET)
            os.ftruncate(self.fileno(), 0)

    def text(self) -> str:
        """Return the end of the output."""
        return self._end().decode("utf-8", "replace").strip()

    def _end(self) -> bytes:
        size = os.fstat(self.fileno()).st_size
        os.lseek(self.fileno(), max(0, size - MAX_LOGGED_BYTES), os.SEEK_SET)
        return (self._trimmed + os.read(self.fileno(), MAX_LOGGED_BYTES))[-MAX_LOGGED_BYTES:]

    def close(self) -> None:
        """Close the file, and limit what can still be written to it."""
        with contextlib.suppress(OSError, AttributeError):  # a temporary file has no limit
            fcntl.fcntl(self._file, fcntl.F_SETFL, 0)
            os.lseek(self.fileno(), 0, os.SEEK_SET)
            os.ftruncate(self.fileno(), MAX_LATER_BYTES)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        self._file.close()


def _memory_file() -> IO[bytes]:
    """Return a file in memory, or a temporary file where the system has none."""
    try:
        return os.fdopen(os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b", buffering=0)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile(buffering=0)
