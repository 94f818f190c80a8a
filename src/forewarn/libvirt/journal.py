"""What this node knows of an order that it took: a file in the state folder, locked while a process works on the order.

A file without a lock is proof that the process which took the order here has ended. Then this node, and no other, may continue
its work: two processes that work on one machine at the same time could stop it twice.
"""

import fcntl
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from forewarn.executors.runner import save


class Journal:
    """`note` is called by the threads of the machines of the order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_file = -1
        self._writing = threading.Lock()

    def exists(self) -> bool:
        return self._path.exists()

    def lock(self, *, wait: bool = False) -> bool:
        """Lock the order for this process; return False if another process works on it."""
        self._lock_file = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            self.unlock()
            return False
        if not self._path.exists():
            save(self._path, "{}")
        return True

    def unlock(self) -> None:
        os.close(self._lock_file)

    def note(self, machine: str, **values: Any) -> None:
        """Save values of a machine before or after a step of its work."""
        with self._writing:
            content = self._read()
            content[machine] = {**content.get(machine, {}), **values}
            save(self._path, json.dumps(content))

    def of(self, machine: str) -> dict[str, Any]:
        with self._writing:
            found: dict[str, Any] = self._read().get(machine, {})
        return found

    def remove(self) -> None:
        for path in (self._path, self._path.with_suffix(".lock")):
            with suppress(OSError):
                path.unlink()

    def _read(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._path.read_text("utf-8"))
        return content
