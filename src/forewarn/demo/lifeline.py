"""The lifeline: a FIFO that only the demo holds open for writing. Its helpers see when the demo ends, even by SIGKILL.

`python -m forewarn.demo.lifeline FIFO SECONDS` is the simulated work of an agent. `… FIFO remove FOLDER` removes the folder after
the demo has ended.
"""

import os
import select
import shutil
import sys
import time
from pathlib import Path

MAX_REMOVALS = 50
BETWEEN_REMOVALS_S = 0.1


def create_lifeline(path: Path) -> int:
    """Create the FIFO and return its descriptor. The lifeline ends when the descriptor is closed."""
    os.mkfifo(path, 0o600)
    # Also for reading, because opening only for writing would wait for a reader.
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def wait_for_end(path: Path, at_most_s: float | None = None) -> None:
    """Wait until the demo has ended, but not longer than `at_most_s`."""
    try:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.read(reader, 1) == b"":  # the demo has closed it
            return
    except BlockingIOError:
        select.select([reader], [], [], at_most_s)
    finally:
        os.close(reader)


def remove_folder(folder: Path) -> None:
    """Remove the folder. Try for a few seconds, because helpers that are ending may still write to it."""
    for _ in range(MAX_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(BETWEEN_REMOVALS_S)


def main(arguments: list[str]) -> None:
    if arguments[1:2] == ["remove"]:
        wait_for_end(Path(arguments[0]))
        remove_folder(Path(arguments[2]))
    else:
        wait_for_end(Path(arguments[0]), float(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
