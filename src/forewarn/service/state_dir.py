"""Where a node runs: a folder that outlives its processes, named once for all, and whether another process serves it too.

What an executor of a node began lies in that folder. So the folder, and not the machine's name, says where the orders of a
dead node can be found; and who is alone there need not wait for a dead one's lease to end.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.core.errors import Conflict, InvalidSettings
from forewarn.service.private_files import make_folder, read_private, write_private

# Giving a folder its name takes a moment, serving it a life.
NAMED_WITHIN_S = 3.0
LOOK_EVERY_S = 0.01

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


class Place:
    """`new_name` is asked once in the life of the folder."""

    def __init__(self, folder: Path, new_name: Callable[[], str]) -> None:
        make_folder(folder)
        self._folder = folder
        try:
            self._lock = os.open(folder / "place.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidSettings(
                f"state_dir: {folder / 'place.lock'} cannot be opened: {error.strerror}; name another with --state-dir"
            ) from None
        try:
            self.name = self._named(folder / "place", new_name)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other process serves this place, and none does before this ends. Afterwards we do, as long as we live."""
        alone = self._take(fcntl.LOCK_EX)
        if not alone and not self._take(fcntl.LOCK_SH):
            raise Conflict(f"another node that keeps its state in {self._folder} is just starting")
        try:
            yield alone
        finally:
            if alone:
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._lock)

    def _take(self, how: int) -> bool:
        try:
            fcntl.flock(self._lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _named(self, path: Path, new_name: Callable[[], str]) -> str:
        # Whoever serves the place has found it named: only those wait for each other who would name it.
        deadline_s = time.monotonic() + NAMED_WITHIN_S
        while not path.exists():
            if self._take(fcntl.LOCK_EX):
                try:
                    if not path.exists():
                        write_private(path, new_name())
                finally:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            elif time.monotonic() > deadline_s:
                raise InvalidSettings(
                    f"state_dir: a node serves {path.parent}, and its `place` is gone: stop that node, or name another folder "
                    "with --state-dir"
                )
            else:
                time.sleep(LOOK_EVERY_S)
        try:
            name = read_private(path)
        except (OSError, ValueError) as error:
            raise InvalidSettings(f"state_dir: {path} cannot be read: {error}; name another with --state-dir") from None
        if not _NAME.fullmatch(name):
            raise InvalidSettings(f"state_dir: {path} does not hold the name of a place: remove it while no node runs")
        return name
