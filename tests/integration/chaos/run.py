"""One run: guests and operators use the nodes while faults are injected; then everything ends, and the history is returned.

`run` knows no database and no process: it is given the nodes and a function that injects faults. `run_three_nodes` starts
three nodes on a PostgreSQL database of their own.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.integration.chaos.client import NodeLife, NodesNow, RecordingClient
from tests.integration.chaos.faults import disturb, schedule
from tests.integration.chaos.finishing import LastOperator
from tests.integration.chaos.fleet import MACHINES, Machine
from tests.integration.chaos.history import History, Recorder, Run
from tests.integration.chaos.load import OPERATORS, Guest, KnownIds, Operator
from tests.integration.chaos.three_nodes import MAX_STALE_S, running_three_nodes, work_done
from tests.integration.nodes.nodes import TOKEN, wire_to
from tests.support.postgres_servers import Server
from tests.support.waiting import until

NODES = 3
DISTURBED_S = 22.0
# These only end a run that has failed.
END_WITHIN_S = 300.0
THREAD_ENDS_WITHIN_S = 180.0
CLOCK_READINGS = 1_000


def run(
    nodes_now: NodesNow,
    disturb: Callable[[Recorder], None],
    seed: int,
    *,
    folder: Path,
    work_log: Path,
    token: str = TOKEN,
    max_stale_s: float = MAX_STALE_S,
    seconds: float = DISTURBED_S,
) -> History:
    """Run the load for at least `seconds` while `disturb` injects faults and removes them all.

    The nodes must know the fleet of `fleet.fleet_file()`; the command of `three_nodes.ThreeNodes` writes `work_log`.
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
        _enable(nodes_now, recorder)
        guests_stop, operators_stop = threading.Event(), threading.Event()
        known_ids = KnownIds()
        guests = [Guest(machine, nodes_now, seed, recorder, guests_stop) for machine in MACHINES]
        operators = [
            Operator(n + 1, nodes_now, seed, recorder, known_ids, operators_stop, token) for n in range(OPERATORS)
        ]
        closer = RecordingClient("operator 0", "127.11.0.100", recorder, token)
        try:
            for thread in (*guests, *operators):
                thread.start()
            disturb(recorder)
            time.sleep(max(0.0, begun_s + seconds - time.monotonic()))
            _end(operators, operators_stop)
            ending = LastOperator(nodes_now, closer, work_log)
            ending.end_everything(END_WITHIN_S)
        finally:
            operators_stop.set()
            _end(guests, guests_stop)
        ending.read(recorder)
        closer.close()
        for worked in work_done(work_log):
            recorder.record(worked)
        return recorder.history


def _wall_minus_monotonic_s() -> float:
    """Read both clocks at one moment: of many readings, use the one that took least time."""
    readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(CLOCK_READINGS)]
    before_s, wall_s, after_s = min(readings, key=lambda each: each[2] - each[0])
    return wall_s - (before_s + after_s) / 2


def _enable(nodes_now: NodesNow, recorder: Recorder) -> None:
    """Poll once for every machine: a scope that never polled would get no notice."""
    for number, machine in enumerate(MACHINES):
        client = RecordingClient(f"guest {machine}", machine.address, recorder)
        node = nodes_now()[number % len(nodes_now())]
        until(partial(_answered, client, node, machine))
        client.close()


def _answered(client: RecordingClient, node: NodeLife, machine: Machine) -> bool:
    return client.poll(node, machine).done


def _end(threads: "list[Guest] | list[Operator]", stop: threading.Event) -> None:
    stop.set()
    for thread in threads:
        thread.join(THREAD_ENDS_WITHIN_S)
        assert not thread.is_alive(), f"{thread.name} does not end"


def run_three_nodes(server: Server, folder: Path, seed: int, seconds: float = DISTURBED_S) -> History:
    """Run three nodes on a fresh database of this server, with the faults that the seed decides."""
    database = server.address(server.database())
    with ExitStack() as stack:
        wires = [stack.enter_context(wire_to(server.port)) for _ in range(NODES)]
        addresses = [database.replace(f":{server.port}/", f":{wire.port}/") for wire in wires]
        nodes = stack.enter_context(running_three_nodes(folder, addresses, database))
        worst = partial(disturb, schedule(seed, seconds, NODES), nodes, wires)
        return run(nodes.nodes_now, worst, seed, folder=folder, work_log=nodes.work_log, seconds=seconds)
