"""The output of a program of a step: kept in memory, bounded, and logged as one line when the program has ended.

The program writes to a file, not to a pipe: it may outlive the agent, and a pipe without a reader would end it. The kernel limits
the size of the file, also for a program that stays in the background after the agent has logged its output.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: the size has no limit between two rewinds
    fcntl = None  # type: ignore[assignment]

# A program that has written so much since the last rewind cannot write more.
MAX_FILE_BYTES = 16 * 1024 * 1024
REWIND_BYTES = 1024 * 1024
# The end of the output that is logged.
MAX_LOGGED_BYTES = 4 * 1024


class ProgramOutput:
    """A file for the standard output and the standard error of one program. Close it after use."""

    def __init__(self) -> None:
        self._file = _sealed_file()
        self._rewound = b""

    def fileno(self) -> int:
        return self._file.fileno()

    def rewind_if_large(self) -> None:
        """Make a program that has written much overwrite it: agent and program share the position in the file."""
        if os.lseek(self.fileno(), 0, os.SEEK_CUR) > REWIND_BYTES:
            self._rewound = self._end()
            os.lseek(self.fileno(), 0, os.SEEK_SET)

    def text(self) -> str:
        """Return the end of the output."""
        return self._end().decode("utf-8", "replace").strip()

    def _end(self) -> bytes:
        position = os.lseek(self.fileno(), 0, os.SEEK_CUR)
        start = os.lseek(self.fileno(), max(0, position - MAX_LOGGED_BYTES), os.SEEK_SET)
        return (self._rewound + os.read(self.fileno(), position - start))[-MAX_LOGGED_BYTES:]

    def close(self) -> None:
        self._file.close()


def _sealed_file() -> IO[bytes]:
    """Return a file in memory that cannot grow beyond MAX_FILE_BYTES, or a temporary file where the system has none."""
    try:
        file = os.fdopen(os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b", buffering=0)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile(buffering=0)
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), MAX_FILE_BYTES)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return file
