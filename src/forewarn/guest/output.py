"""The output of a program of a step: bounded, and logged as one line when the program has ended.

The program writes to a file, not to a pipe: it may outlive the agent, and a pipe without a reader would end it. Linux keeps the
file in memory and limits its size, also for a program that stays in the background after the agent has logged its output.
On Windows it is a temporary file, which only the agent shortens, while it waits for the program.
"""

from __future__ import annotations

import os

from forewarn.guest.system import system

# A program that has written so much since the last rewind cannot write more.
MAX_FILE_BYTES = 16 * 1024 * 1024
REWIND_BYTES = 1024 * 1024
# The end of the output that is logged.
MAX_LOGGED_BYTES = 4 * 1024


class ProgramOutput:
    """A file for the standard output and the standard error of one program. Close it after use."""

    def __init__(self) -> None:
        self._file = system.output_file(MAX_FILE_BYTES)
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
