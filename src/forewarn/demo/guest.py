"""One guest of the demo: our agent as it is, in a process that ends with the demo.

Called as `python -m forewarn.demo.guest FIFO CONFIG`.
"""

import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

from forewarn.demo.lifeline import wait_for_end
from forewarn.guest.main import main as agent


def main(lifeline: Path, config: str) -> NoReturn:
    threading.Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
    agent(["run", "--config", config])


def _end_with(lifeline: Path) -> None:
    wait_for_end(lifeline)
    os._exit(0)  # its state is about to be removed: there is nothing to save


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
