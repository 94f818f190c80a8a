"""The command: which benches, at which size; prints their tables, a verdict for each target, and the headline rows.

Exit code 0 when everything was measured, even where a target is missed; 1 when the service did what it never may.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import (
    agent,
    agent_clients,
    emulator,
    failover,
    floods,
    kvm,
    lists,
    nodes,
    planning,
    poll,
    portal,
    scale,
    simulation,
    transitions,
)
from bench.fleet import MACHINES_PER_SCOPE
from bench.headlines import print_headlines
from bench.report import Verdict
from bench.size import FULL, TOY, Size

# Not /tmp, which may be memory: a commit there waits for no disk. Not the checkout, which may lie in somebody's private folder:
# the database server runs as another user.
OUT = Path("/var/tmp")
BENCHES: dict[str, Callable[[Path, Size], list[Verdict]]] = {
    "transitions": transitions.run,
    "scale": scale.run,
    "planning": planning.run,
    "simulation": simulation.run,
    "lists": lists.run,
    "portal": portal.run,
    "poll": poll.run,
    "floods": floods.run,
    "agent": agent.run,
    "agent-clients": agent_clients.run,
    "emulator": emulator.run,
    "failover": failover.run,
    "nodes": nodes.run,
    "kvm": kvm.run,
}


def main() -> int:
    names, size = _arguments()
    logging.disable(logging.WARNING)
    print(f"Python {sys.version}")  # the same version differs by a fifth with how it was compiled
    verdicts: list[Verdict] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="forewarn-bench-", dir=OUT) as folder:
            verdicts += BENCHES[name](Path(folder), size)
    for verdict in verdicts:
        if size.judged or verdict.broken:
            print(verdict)
    if size.judged:
        print_headlines(verdicts)
    else:
        print("toy size: no target is judged")
    return 1 if any(verdict.broken for verdict in verdicts) else 0


def _arguments() -> tuple[list[str], Size]:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="bench", help=f"which: {', '.join(BENCHES)}; all by default")
    parser.add_argument("--toy", action="store_true", help="each once, as small as can be; no target is judged")
    parser.add_argument("--machines", type=int, nargs="+", help="the sizes of fleet for scale")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHES]
    if unknown:
        parser.error(f"unknown bench {', '.join(unknown)}: there are {', '.join(BENCHES)}")
    size = TOY if given.toy else FULL
    if given.machines:
        fewest = size.due_events * MACHINES_PER_SCOPE
        if min(given.machines) < fewest:
            parser.error(f"--machines: at least {fewest}, {MACHINES_PER_SCOPE} for each of {size.due_events} scopes")
        size = replace(size, machines=tuple(sorted(set(given.machines))))
    return given.names or list(BENCHES), size


if __name__ == "__main__":
    sys.exit(main())
