"""A node's state directory: a folder that outlives processes, has a name, and tells whether another process uses it too.

An executor keeps its running orders in that folder. So the folder, not the host name, tells which node can find the orders of
a dead node. A node that is alone in its folder need not wait until the lease of a dead node has ended.
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

# A process holds the lock exclusively only while it names the folder; that takes a moment.
NAMED_WITHIN_S = 3.0
RETRY_EVERY_S = 0.01

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")


class StateDir:
    """The file `place` holds the folder's name; each node holds a lock on `place.lock` while it runs.

    `new_name` is called once in the life of the folder.
    """

    def __init__(self, folder: Path, new_name: Callable[[], str], *, named_within_s: float = NAMED_WITHIN_S) -> None:
        make_folder(folder)
        self._folder = folder
        try:
            self._lock = os.open(folder / "place.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidSettings(
                f"state_dir: {folder / 'place.lock'} cannot be opened: {error.strerror}; name another with --state-dir"
            ) from None
        try:
            self.name = self._read_or_make_name(folder / "place", new_name, named_within_s)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield whether no other process uses this folder; until the block ends, none can start to use it.

        Afterwards this process uses the folder for as long as it lives.
        """
        alone = self._try_lock(fcntl.LOCK_EX)
        if not alone and not self._try_lock(fcntl.LOCK_SH):
            raise Conflict(f"another node with the state directory {self._folder} is just starting")
        try:
            yield alone
        finally:
            if alone:
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._lock)

    def _try_lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read_or_make_name(self, path: Path, new_name: Callable[[], str], within_s: float) -> str:
        # A process that uses a folder has read its name, so only processes that are about to name it wait here.
        deadline_s = time.monotonic() + within_s
        while not path.exists():
            if self._try_lock(fcntl.LOCK_EX):
                try:
                    if not path.exists():
                        write_private(path, new_name())
                finally:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            elif time.monotonic() > deadline_s:
                raise InvalidSettings(
                    f"state_dir: a node uses {path.parent}, but the file `place` in it is gone: stop that node, or name another"
                    " folder with --state-dir"
                )
            else:
                time.sleep(RETRY_EVERY_S)
        try:
            name = read_private(path)
        except (OSError, ValueError) as error:
            raise InvalidSettings(f"state_dir: {path} cannot be read: {error}; name another with --state-dir") from None
        if not _NAME.fullmatch(name):
            raise InvalidSettings(f"state_dir: {path} does not hold a valid name: remove the file while no node runs")
        return name
