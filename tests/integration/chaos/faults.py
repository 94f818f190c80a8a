"""The faults of a run and their times, all decided beforehand by the seed.

A node is killed, or stopped by SIGTERM, and restarted; the holder of the ticker's lease is stopped until its lease has ended,
then continued; the connection to the database is cut or stalls, for one node or for all.
"""

import signal
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from tests.integration.chaos import history
from tests.integration.chaos.history import Recorder
from tests.integration.chaos.three_nodes import ThreeNodes
from tests.integration.nodes.nodes import Wire

EVERYBODY = -1
HOLDER = -2
# A lease lasts 10 s: its holder is stopped for longer.
STOPPED_S = (11.0, 13.0)
DOWN = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}
# A node that gets SIGTERM stays away until another node, which renews its leases every 3 s, has missed it.
LASTS_S = {"terminate": (4.0, 8.0)}
CALM_BEFORE_S = 1.0
# So long after the last fault may have begun, everything is mended.
CALM_AFTER_S = 1.0
# Whatever a dead node leaves waits for its lease to end: nobody is killed so late that all wait for that alone.
NO_KILL_S = 6.0


class Fault(NamedTuple):
    at_s: float
    what: str
    node: int
    for_s: float


def schedule(seed: int, seconds: float, nodes: int = 3) -> list[Fault]:
    """All that happens in a run: the lease holder is stopped once in its first half, the rest as it comes."""
    chance = Random(f"{seed} faults")
    at_s = chance.uniform(CALM_BEFORE_S, max(CALM_BEFORE_S, seconds - STOPPED_S[1]))
    found = [Fault(at_s, "stop", HOLDER, chance.uniform(*STOPPED_S))]
    at_s = CALM_BEFORE_S
    while (at_s := at_s + chance.uniform(0.7, 3.0)) < seconds:
        what = chance.choice(("kill", "terminate", "cut", "stall") if at_s < seconds - NO_KILL_S else ("cut", "stall"))
        node = chance.randrange(nodes)
        if what not in DOWN and chance.random() < 0.3:
            node = EVERYBODY
        found.append(
            Fault(at_s, what, node, min(chance.uniform(*LASTS_S.get(what, (0.3, 5.0))), seconds + CALM_AFTER_S - at_s))
        )
    return sorted(found)


def disturb(faults: Sequence[Fault], nodes: ThreeNodes, wires: Sequence[Wire], recorder: Recorder) -> None:
    """Let it all happen; in the end everything is mended and every node is up."""
    begun_s = time.monotonic()
    acts: list[tuple[float, int, Callable[[], None]]] = []
    injector = FaultInjector(nodes, wires, recorder)
    for number, fault in enumerate(faults):
        acts.append((fault.at_s, number, lambda f=fault, n=number: injector.begin(n, f)))  # type: ignore[misc]
        acts.append((fault.at_s + fault.for_s, number, lambda f=fault, n=number: injector.end(n, f)))  # type: ignore[misc]
    for at_s, _, act in sorted(acts, key=lambda each: each[:2]):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        act()
    nodes.wait()


class FaultInjector:
    def __init__(self, nodes: ThreeNodes, wires: Sequence[Wire], recorder: Recorder) -> None:
        self._nodes, self._wires, self._recorder = nodes, wires, recorder
        self._stopped: dict[int, int] = {}
        self._down: dict[int, int] = {}  # which fault has it down

    def begin(self, number: int, fault: Fault) -> None:
        if fault.what in ("cut", "stall"):
            for wire in self._wires_of(fault):
                getattr(wire, fault.what)()
            self._note(fault.what, fault.node)
            return
        if fault.what in DOWN and self._down.setdefault(fault.node, number) != number:
            return  # it is down already
        node = self._stopped.setdefault(number, self._nodes.holder()) if fault.node == HOLDER else fault.node
        self._nodes.signal(node, DOWN.get(fault.what, signal.SIGSTOP))
        self._note(fault.what, node)

    def end(self, number: int, fault: Fault) -> None:
        if fault.what in ("cut", "stall"):
            for wire in self._wires_of(fault):
                wire.mend()
            self._note("mend", fault.node)
        elif fault.what in DOWN and self._down.get(fault.node) == number:
            del self._down[fault.node]
            self._nodes.restart(fault.node)
            self._note("restart", fault.node)
        elif fault.what == "stop":
            self._nodes.signal(self._stopped[number], signal.SIGCONT)
            self._note("continue", self._stopped[number])

    def _wires_of(self, fault: Fault) -> Sequence[Wire]:
        return self._wires if fault.node == EVERYBODY else (self._wires[fault.node],)

    def _note(self, what: str, node: int) -> None:
        name = "every node" if node == EVERYBODY else f"node-{node + 1}"
        self._recorder.record(history.Fault(at_s=time.monotonic(), what=what, node=name))
