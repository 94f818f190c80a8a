"""Three real nodes on one machine, each with its own wire to the database, and the command that does their work.

Each node has its own state folder, as nodes on several machines do: only a node with that folder knows what became of an order
that was taken there. The command is the witness: it writes down each beginning and end itself.
"""

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg

from tests.integration.chaos.client import NodeLife
from tests.integration.chaos.fleet import fleet_file
from tests.integration.chaos.history import Worked
from tests.integration.nodes.nodes import Node, Nodes

MAX_STALE_S = 6
START_WITHIN_S = 180.0
WORK_SCRIPT = """#!/bin/sh
read -r order
seconds=${{order##*work=}}
echo "began $FOREWARN_ORDER_ID $FOREWARN_ATTEMPT $(date +%s.%N)" >>{file}
sleep "${{seconds%%;*}}"
echo "ended $FOREWARN_ORDER_ID $FOREWARN_ATTEMPT $(date +%s.%N)" >>{file}
case "$order" in *fails-once*) [ "$FOREWARN_ATTEMPT" != 1 ] ;; esac
"""


class ThreeNodes:
    """The nodes. A restarted node has other ports and another pid; its lives are counted."""

    def __init__(self, nodes: Nodes, folder: Path, addresses: Sequence[str], database: str) -> None:
        """`addresses`: the database as each node reaches it; `database`: a connection that no fault cuts."""
        self._nodes, self._folder, self._addresses, self._database = nodes, folder, addresses, database
        self.work_log = folder / "work.log"
        self.work_log.touch()
        (folder / "fleet.toml").write_text(fleet_file())
        self._command = folder / "work"
        self._command.write_text(WORK_SCRIPT.format(file=self.work_log))
        self._command.chmod(0o755)
        self._processes: list[subprocess.Popen[str] | None] = [None] * len(addresses)
        self._nodes_now = [NodeLife(f"node-{i + 1}", 0, "", "") for i in range(len(addresses))]
        self._killed = [0] * len(addresses)
        self._starting: list[threading.Thread] = []
        self._dead_ports: list[socket.socket] = []
        self._closed = False

    def start(self) -> None:
        for number in range(len(self._nodes_now)):
            self.restart(number)
        self.wait()

    def nodes_now(self) -> Sequence[NodeLife]:
        return self._nodes_now

    def restart(self, number: int) -> None:
        """Start a node as a supervisor would: again and again, until it is up or was killed once more."""
        thread = threading.Thread(target=self._keep_starting, args=(number, self._killed[number]), daemon=True)
        self._starting.append(thread)
        thread.start()

    def wait(self) -> None:
        """Wait until every node that is being started is up."""
        for thread in self._starting:
            thread.join(START_WITHIN_S)
            assert not thread.is_alive(), f"a node does not start: see its log in {self._folder}"
        self._starting.clear()

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal. Unless the node only continues, other nodes soon take it for dead: its leases have ended."""
        self._killed[number] += which in (signal.SIGKILL, signal.SIGTERM)
        process = self._processes[number]
        if process is not None:
            process.send_signal(which)
        if process is not None and which is signal.SIGKILL:
            process.wait()
            self._keep_ports(self._nodes_now[number])
        if process is not None and which is not signal.SIGCONT:
            self._end_leases(process.pid)

    def _end_leases(self, pid: int) -> None:
        """Let the node's leases have ended long ago, so that no run need last for as long as nodes wait for each other."""
        # A stopped node may hold its rows locked.
        options = "-c lock_timeout=2s"
        with (
            suppress(psycopg.errors.LockNotAvailable),
            psycopg.connect(self._database, connect_timeout=int(START_WITHIN_S), options=options) as connection,
        ):
            connection.execute(
                "UPDATE forewarn.leases SET until = clock_timestamp() - interval '1 hour' WHERE node LIKE %s",
                [f"%:{pid}-%"],
            )

    def _keep_ports(self, dead: NodeLife) -> None:
        """Keep the ports of a dead node, so that a node of another run cannot answer in its place."""
        for address in (dead.guest, dead.operator):
            host, _, port = address.rpartition(":")
            if port:
                kept = socket.socket()
                self._dead_ports.append(kept)
                kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with suppress(OSError):  # kept already: the node was killed before it was up again
                    kept.bind((host, int(port)))

    def holder(self) -> int:
        """Return the number of the node with the ticker's lease; 0 if there is none."""
        with psycopg.connect(self._database, connect_timeout=int(START_WITHIN_S)) as connection:
            row = connection.execute("SELECT node FROM forewarn.leases WHERE name = 'ticker'").fetchone()
        pid = int(str(row[0]).rpartition(":")[2].partition("-")[0]) if row else 0
        pids = [process.pid if process is not None else -1 for process in self._processes]
        return pids.index(pid) if pid in pids else 0

    def close(self) -> None:
        self._closed = True
        for kept in self._dead_ports:
            kept.close()

    def _keep_starting(self, number: int, killed: int) -> None:
        deadline_s = time.monotonic() + START_WITHIN_S
        before = self._processes[number]
        if before is not None:
            before.wait(START_WITHIN_S)  # one that gets SIGTERM takes a moment
            self._keep_ports(self._nodes_now[number])
        while not self._closed and self._killed[number] == killed and time.monotonic() < deadline_s:
            process, log = self._nodes.begin(
                self._addresses[number],
                "--state-dir",
                str(self._folder / f"state-{number + 1}"),
                FOREWARN_EXECUTOR="command",
                FOREWARN_COMMAND=str(self._command),
                FOREWARN_MAX_STALE=f"{MAX_STALE_S}s",
            )
            self._processes[number] = process
            if self._killed[number] != killed:  # killed meanwhile, but the signal went to the previous process
                process.kill()
                return
            try:
                node = Node(process, log)
            except AssertionError:
                time.sleep(0.2)
                continue
            name, life, *_ = self._nodes_now[number]
            addresses = (url.removeprefix("http://") for url in (node.guest, node.operator))
            self._nodes_now[number] = NodeLife(name, life + 1, *addresses)
            return


@contextmanager
def running_three_nodes(folder: Path, addresses: Sequence[str], database: str) -> Iterator[ThreeNodes]:
    with ExitStack() as stack:
        nodes = ThreeNodes(Nodes(folder, stack), folder, addresses, database)
        stack.callback(nodes.close)
        nodes.start()
        yield nodes


def work_done(work_log: Path) -> list[Worked]:
    """Return what the commands have recorded; the last line may still be written."""
    whole_lines = work_log.read_text("ascii").rpartition("\n")[0]
    lines = [line.split() for line in whole_lines.splitlines()]
    return [Worked(what=what, order=order, attempt=int(n), at=float(at)) for what, order, n, at in lines]
