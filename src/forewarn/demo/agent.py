"""One agent of the demo: our agent unchanged, in a process that ends with the demo.

Run as `python -m forewarn.demo.agent FIFO CONFIG`.
"""

import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

from forewarn.demo.lifeline import wait_for_end
from forewarn.guest.main import main as run_agent


def main(lifeline: Path, config: str) -> NoReturn:
    threading.Thread(target=_exit_with_demo, args=(lifeline,), name="lifeline", daemon=True).start()
    run_agent(["run", "--config", config])


def _exit_with_demo(lifeline: Path) -> None:
    wait_for_end(lifeline)
    os._exit(0)  # without cleaning up: the agent's state is about to be removed


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
