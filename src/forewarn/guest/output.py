"""The output of a program of a step: bounded, and logged as one line when the program has ended.

The program writes to a file, not to a pipe: it may outlive the agent, and a pipe without a reader would end it. The agent trims
the file while the program runs. After that Linux limits the size of the file, because something that the program left running
may go on writing; Windows does not. Nothing limits the output of a program whose agent was killed, until that program ends.

Programs may also open the file by its name: `echo text > /dev/stderr` empties it. So the file has no fixed size while the program
runs, and all writes go to its end.
"""

from __future__ import annotations

import os

from forewarn.guest.system import system

# The file is trimmed when it is larger than this.
TRIM_BYTES = 1024 * 1024
# What the program left running can write so much, and no more.
MAX_LATER_BYTES = 16 * 1024 * 1024
# The end of the output that is logged.
MAX_LOGGED_BYTES = 4 * 1024


class ProgramOutput:
    """A file for the standard output and the standard error of one program. Close it after use."""

    def __init__(self) -> None:
        self._file = system.output_file()
        self._trimmed = b""

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
        start = max(0, os.fstat(self.fileno()).st_size - MAX_LOGGED_BYTES)
        return (self._trimmed + system.read_at(self.fileno(), MAX_LOGGED_BYTES, start))[-MAX_LOGGED_BYTES:]

    def close(self) -> None:
        """Close the file, and limit what can still be written to it."""
        system.limit_output(self._file, MAX_LATER_BYTES)
        self._file.close()
