"""How long a document takes from the agent to the last of six clients that wait for it.

The clock runs from the moment at which the agent's transport hands over the endpoint's response, so that reading, comparing and
rendering the document count. The peer is a bare loop on uvloop that writes as many bytes to six connections.

Run as a program it is the agent that is measured: it prints `ready` and the ports of its clients, and then answers each line of
its input with one of JSON: `waiting` (how many long polls wait) or `change` (the agent gets another document).
"""

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from pathlib import Path

from tests.support.fake_endpoint import document, event
from tests.support.waiting import PATIENCE_S

from bench.crowds import Inside, inside
from bench.guests import DOCUMENT_BYTES, POLL, long_poll
from bench.load import ask, etag_of
from bench.measure import median_ratio, quantile
from bench.report import Verdict, at_most, milliseconds, print_table
from bench.size import Size
from bench.subjects import pinned
from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.journal import MemoryJournal
from forewarn.guest.plan import Plan
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.serving.wiring import serving
from forewarn.guest.transport import Response, Transport

CLIENTS = 6
WAIT_S = 60
HEAD_BYTES = 200
RATIO_LIMIT = 10.0


def run(folder: Path, size: Size) -> list[Verdict]:
    del folder
    rounds = size.agent_changes
    with ExitStack() as running:
        agent, bare = (
            running.enter_context(_agent()),
            running.enter_context(inside("bare", DOCUMENT_BYTES + HEAD_BYTES)),
        )
        ours = running.enter_context(_connected(agent.ports))
        theirs = running.enter_context(_connected(bare.ports * CLIENTS))
        delays = [(_delay_s(agent, ours, "seen_s"), _delay_s(bare, theirs, "asked_s")) for _ in range(rounds)]
    agents, bares = [pair[0] for pair in delays], [pair[1] for pair in delays]
    ratio = median_ratio(agents, bares)
    rows = [
        [name, milliseconds(quantile(values, 0.5)), milliseconds(quantile(values, 0.99)), milliseconds(max(values))]
        for name, values in (("agent", agents), ("bare uvloop loop", bares))
    ]
    title = f"From the agent's sight of an event to the last of {CLIENTS} waiting clients, {rounds} interleaved changes"
    print_table(title, ["who", "p50", "p99", "most"], rows)
    return [at_most(f"an event to {CLIENTS} clients of the agent / a bare loop's", ratio, RATIO_LIMIT)]


@contextmanager
def _agent() -> Iterator[Inside]:
    command = pinned([sys.executable, "-m", "bench.agent_clients"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Inside(process)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@contextmanager
def _connected(ports: list[int]) -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for port in ports]


def _delay_s(server: Inside, connections: list[socket.socket], since: str) -> float:
    """Let every connection wait for a change, make one, and return how long the last response took."""
    for connection in connections:
        connection.sendall(long_poll(etag_of(ask(connection, POLL)), WAIT_S))
    deadline_s = time.monotonic() + PATIENCE_S
    while server.order("waiting")["waiting"] < len(connections):
        if time.monotonic() > deadline_s:
            raise RuntimeError("the clients do not wait")
    arrived_s: list[float] = []
    receiver = threading.Thread(target=_receive, args=(connections, arrived_s))
    receiver.start()
    since_s = float(server.order("change")[since])
    receiver.join()
    return arrived_s[-1] - since_s


def _receive(connections: list[socket.socket], arrived_s: list[float]) -> None:
    """Read the whole response of each connection, and note when it was there."""
    waiting = dict.fromkeys(connections, b"")
    while waiting:
        for connection in select.select(list(waiting), [], [], PATIENCE_S)[0]:
            waiting[connection] += connection.recv(65_536)
            head, _, body = waiting[connection].partition(b"\r\n\r\n")
            if body and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
                arrived_s.append(time.monotonic())
                del waiting[connection]


class ChangingEndpoint(Transport):
    """Stands in for the endpoint: each request gets another document of the usual size."""

    def __init__(self) -> None:
        super().__init__()
        self._incarnation = 0
        self.seen_s = 0.0

    def request(
        self,
        method: str,
        endpoint: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
    ) -> Response:
        del method, endpoint, headers, body, timeout_s
        if path.startswith("/metadata/instance"):
            return Response(200, {}, b'{"name":"web-0"}')
        self._incarnation += 1
        data = document(event(Description="x" * (DOCUMENT_BYTES // 2)), incarnation=self._incarnation)
        response = Response(200, {"etag": f'"{self._incarnation}"', "date": formatdate(usegmt=True)}, data)
        self.seen_s = time.monotonic()
        return response


def main() -> None:
    clients = Clients([ServedClient(f"client-{number}", port=0) for number in range(CLIENTS)])
    endpoint = ChangingEndpoint()
    agent = Agent(Plan(approve="never"), Client("10.0.0.1", transport=endpoint), MemoryJournal(), clients=clients)
    agent.poll(WAIT_S)
    with serving(agent, clients, source_address="", api_version="2020-07-01") as listener:
        print("ready", *listener.ports().values(), flush=True)
        for line in sys.stdin:
            if line.strip() == "change":
                agent.poll(WAIT_S)
                print(json.dumps({"seen_s": endpoint.seen_s}), flush=True)
            else:
                print(
                    json.dumps({"waiting": sum(contact.waiting for contact in clients._contacts.values())}), flush=True
                )


if __name__ == "__main__":
    main()
