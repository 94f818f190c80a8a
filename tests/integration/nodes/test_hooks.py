"""Real nodes deliver every entry to a real receiver: after kill -9 of the receiver, of the node that delivers, and a failover."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.nodes.nodes import Node, some_nodes
from tests.support.postgres_servers import SHARED
from tests.support.waiting import until

ALL = ["submitted", "published", "cancelled", "ended"]
ENTRIES_EACH = 4
ROUNDS = 5


@contextmanager
def receiver(port: int, log: Path, secret: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A receiver in a process of its own."""
    command = [sys.executable, "-m", "tests.support.webhook_receiver", str(port), str(log), secret]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process
        finally:
            process.kill()


def entries(node: Node) -> list[dict[str, Any]]:
    """Everything that the hook asked for, oldest first."""
    status, found = node.api("GET", "/v1/audit?limit=500")
    assert status == 200
    items: list[dict[str, Any]] = found["items"]  # type: ignore[assignment]
    nouns = ("event", "order", "maintenance")
    return [e for e in reversed(items) if e["action"].startswith(nouns)]


def received(log: Path) -> list[int]:
    """The ids of the entries that the receiver has accepted, in order; it writes whole lines, the last may be cut."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line)["data"]["entry"] for line in lines if line.endswith("}")]


def first_times(ids: list[int]) -> list[int]:
    return list(dict.fromkeys(ids))


def work(node: Node) -> None:
    """Schedule maintenances in two scopes and cancel them again: several entries for each."""
    for _ in range(ROUNDS):
        for machine in ("shop/web-0", "blog/web-1"):
            plan = {"type": "Reboot", "targets": {"machines": [machine]}, "not_before": "2099-01-01T00:00:00Z"}
            status, made = node.api("POST", "/v1/maintenances", plan)
            assert status == 201, made
            assert node.api("POST", f"/v1/maintenances/{made['id']}/cancel")[0] == 200


def test_every_entry_arrives_whoever_is_killed(tmp_path: Path) -> None:
    """Three nodes, one of them for guests only. All entries come, each first time in the order of the audit."""
    log, address = tmp_path / "received", SHARED.fresh()
    options = {"FOREWARN_HOOK_TARGETS": "127.0.0.1"}
    with some_nodes(tmp_path) as nodes:
        guests = nodes.start(address, "--role", "guest", **options)
        first = nodes.start(address, **options)
        until(lambda: "this node ticks from now on" in first.log.read_text())
        second = nodes.start(address, **options)
        with receiver(0, log, "whsec_c2VjcmV0") as (port, unused):
            unused.kill()
        status, hook = first.api("POST", "/v1/hooks", {"url": f"http://127.0.0.1:{port}/in", "on": ALL})
        assert status == 201, hook
        path, secret = f"/v1/hooks/{hook['id']}", str(hook["secret"])

        work(first)
        until(lambda: second.api("GET", path)[1]["state"] == "failing")
        with receiver(port, log, secret) as (_, process):
            second.api("POST", f"{path}/enable")  # saves the test the wait for the next attempt
            until(lambda: received(log))
            process.kill()
            work(first)
        with receiver(port, log, secret):
            first.kill()
            work(second)
            second.api("POST", f"{path}/enable")  # again, after the attempts that failed meanwhile
            wanted = [e["id"] for e in entries(second)]
            until(lambda: set(received(log)) == set(wanted), detail=lambda: (first_times(received(log)), wanted))
        assert first_times(received(log)) == wanted
        assert len(wanted) >= 3 * ROUNDS * 2 * ENTRIES_EACH
        assert "this node ticks from now on" in second.log.read_text()
        assert "hook" not in guests.log.read_text()
        for node in (first, second):
            assert "whsec_" not in node.log.read_text()
