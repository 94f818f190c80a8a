"""What ties the demo's helpers to it: a FIFO that the demo alone holds open for writing. However it ends, they see it.

`python -m forewarn.demo.lifeline FIFO SECONDS` is the work a guest pretends; `… FIFO remove FOLDER` clears up afterwards.
"""

import os
import select
import shutil
import sys
import time
from pathlib import Path

REMOVE_TRIES = 50
BETWEEN_TRIES_S = 0.1


def hold(path: Path) -> int:
    """Make the lifeline; closing the descriptor, or dying, lets go."""
    os.mkfifo(path, 0o600)
    # For reading too, or opening would wait for somebody who reads.
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def wait_for_end(path: Path, at_most_s: float | None = None) -> None:
    """Until the demo has ended; never longer than `at_most_s`."""
    try:
        line = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.read(line, 1) == b"":  # nobody holds it any more
            return
    except BlockingIOError:
        select.select([line], [], [], at_most_s)
    finally:
        os.close(line)


def remove(folder: Path) -> None:
    """Whoever still writes in it is about to end: try for a few seconds."""
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(BETWEEN_TRIES_S)


def main(arguments: list[str]) -> None:
    if arguments[1:2] == ["remove"]:
        wait_for_end(Path(arguments[0]))
        remove(Path(arguments[2]))
    else:
        wait_for_end(Path(arguments[0]), float(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
