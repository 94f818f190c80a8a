"""One run: guests and operators on some nodes, somebody who disturbs them, an orderly end, and the history of it all.

`run` knows no database and no process: it is given where the nodes are and what disturbs them. `run_house` is the whole
thing on a PostgreSQL of its own.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.integration.chaos.asking import Asker, Peer, Peers
from tests.integration.chaos.ending import Closer
from tests.integration.chaos.faults import disturb, schedule
from tests.integration.chaos.fleet import MACHINES, Machine
from tests.integration.chaos.history import History, Recorder, Run
from tests.integration.chaos.house import MAX_STALE_S, a_house, work_done
from tests.integration.chaos.load import OPERATORS, Desk, Guest, Operator
from tests.integration.nodes.nodes import TOKEN, wire_to
from tests.support.postgres_servers import Server
from tests.support.waiting import until

NODES = 3
DISTURBED_S = 22.0
END_WITHIN_S = 120.0
CLOCK_READINGS = 1_000


def run(
    peers: Peers,
    disturb: Callable[[Recorder], None],
    seed: int,
    *,
    folder: Path,
    witness: Path,
    token: str = TOKEN,
    max_stale_s: float = MAX_STALE_S,
    seconds: float = DISTURBED_S,
) -> History:
    """`disturb` does its worst, mends it all and returns; load is on meanwhile and for at least `seconds`.

    The nodes must know the fleet of `fleet.fleet_file()` and run the command of `house.House`, which writes `witness`.
    What happened is also written to `history.jsonl` in the folder.
    """
    begun_s = time.monotonic()
    about = Run(
        seed=seed,
        wall_minus_monotonic_s=_wall_minus_monotonic_s(),
        max_stale_s=max_stale_s,
        disturbed_s=seconds,
    )
    with (folder / "history.jsonl").open("w", encoding="utf-8") as file:
        recorder = Recorder(about, file)
        _enable(peers, recorder)
        guests_stop, operators_stop = threading.Event(), threading.Event()
        desk = Desk()
        guests = [Guest(machine, peers, seed, recorder, guests_stop) for machine in MACHINES]
        operators = [Operator(n + 1, peers, seed, recorder, desk, operators_stop, token) for n in range(OPERATORS)]
        closer = Asker("operator 0", "127.11.0.100", recorder, token)
        try:
            for thread in (*guests, *operators):
                thread.start()
            disturb(recorder)
            time.sleep(max(0.0, begun_s + seconds - time.monotonic()))
            _end(operators, operators_stop)
            ending = Closer(peers, closer, witness)
            ending.end_everything(END_WITHIN_S)
        finally:
            operators_stop.set()
            _end(guests, guests_stop)
        ending.read(recorder)
        closer.close()
        for worked in work_done(witness):
            recorder.record(worked)
        return recorder.history


def _wall_minus_monotonic_s() -> float:
    """Read both clocks at one moment: of many readings, the one between which this process waited least for the machine."""
    readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(CLOCK_READINGS)]
    before_s, wall_s, after_s = min(readings, key=lambda each: each[2] - each[0])
    return wall_s - (before_s + after_s) / 2


def _enable(peers: Peers, recorder: Recorder) -> None:
    """A scope that nobody asked for gets no notice: every machine asks once before anything is scheduled."""
    for number, machine in enumerate(MACHINES):
        asker = Asker(f"guest {machine}", machine.address, recorder)
        peer = peers()[number % len(peers())]
        until(partial(_answered, asker, peer, machine))
        asker.close()


def _answered(asker: Asker, peer: Peer, machine: Machine) -> bool:
    return asker.poll(peer, machine).done


def _end(threads: "list[Guest] | list[Operator]", stop: threading.Event) -> None:
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), f"{thread.name} does not end"


def run_house(server: Server, folder: Path, seed: int, seconds: float = DISTURBED_S) -> History:
    """Three nodes on a fresh database of this server, disturbed as the seed says."""
    database = server.address(server.database())
    with ExitStack() as stack:
        wires = [stack.enter_context(wire_to(server.port)) for _ in range(NODES)]
        addresses = [database.replace(f":{server.port}/", f":{wire.port}/") for wire in wires]
        house = stack.enter_context(a_house(folder, addresses, database))
        worst = partial(disturb, schedule(seed, seconds, NODES), house, wires)
        return run(house.peers, worst, seed, folder=folder, witness=house.witness, seconds=seconds)
