"""The lifeline: a FIFO that only the demo holds open for writing. Its helpers see when the demo ends, even by SIGKILL.

`python -m forewarn.demo.lifeline FIFO SECONDS` is the simulated work of an agent. `… remove PIPE FOLDER` removes the folder after
the demo and its agents have ended.
"""

import os
import select
import shutil
import sys
from pathlib import Path


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


def remove_folder_after(pipe: int, folder: Path) -> None:
    """Remove the folder when no process holds the other end of the pipe any more.

    The demo and its agents hold it. An agent that is still starting would create its folder again after the removal.
    """
    while os.read(pipe, 1):
        pass
    shutil.rmtree(folder)


def main(arguments: list[str]) -> None:
    if arguments[0] == "remove":
        remove_folder_after(int(arguments[1]), Path(arguments[2]))
    else:
        wait_for_end(Path(arguments[0]), float(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
