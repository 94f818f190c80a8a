"""Runs `serve` again and again in a fork of itself: `python -m tests.integration.crash.warm_server FLAGS`.

FLAGS are settings as JSON. For each line on its input it forks; the child runs the service until it is killed. Everything is
imported before, so that a start takes a fraction of the time of a new process. The service itself is an ordinary process.
"""

import ctypes
import json
import os
import signal
import sys

import forewarn.app.operator_server
import forewarn.store.postgres.store
import forewarn.store.sqlite.store  # noqa: F401 - imported for the children
from forewarn.app.server import serve
from forewarn.service.settings import load

PR_SET_PDEATHSIG = 1


def main() -> None:
    flags = json.loads(sys.argv[1])
    die_with_parent()
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            die_with_parent()
            print(f"pid {os.getpid()}", flush=True)
            serve(load(flags, {}), lambda line: print(line, flush=True))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
