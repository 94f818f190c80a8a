"""Real nodes deliver every entry to a real receiver: after kill -9 of the receiver and of the node that delivers."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.nodes.hook_messages import SCOPES, Messages, create_hooks, secrets_of, wanted_of
from tests.integration.nodes.nodes import Node, some_nodes
from tests.support.ports import reserved_port
from tests.support.postgres_servers import SHARED
from tests.support.waiting import until

# What one maintenance of one machine and its cancellation write: submitted, published, cancelled twice, ended.
ENTRIES_EACH = 5
ROUNDS = 3
TICKS = "this node ticks from now on"


@contextmanager
def receiver(port: int, log: Path, secrets: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a receiver in a process of its own, which listens on `port` when the block begins."""
    known = [f"{hook}={secret}" for hook, secret in secrets.items()]
    command = [sys.executable, "-m", "tests.support.webhook_receiver", str(port), str(log), *known]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"{port}\n"
            yield process
        finally:
            process.kill()


def received(log: Path) -> list[tuple[str, dict[str, Any]]]:
    """The messages that the receiver has accepted, in order; it writes whole lines, the last may be cut."""
    lines = log.read_text().splitlines() if log.exists() else []
    messages = [json.loads(line) for line in lines if line.endswith("}")]
    return [(message["webhook-id"], message) for message in messages]


def work(node: Node) -> None:
    """Schedule maintenances in two scopes and cancel them again: several entries for each."""
    for _ in range(ROUNDS):
        for machine in ("shop/web-0", "blog/web-1"):
            plan = {"type": "Reboot", "targets": {"machines": [machine]}, "not_before": "2099-01-01T00:00:00Z"}
            status, made = node.answered("POST", "/v1/maintenances", plan)
            assert status == 201, made
            node.change(f"/v1/maintenances/{made['id']}/cancel")


def test_every_entry_arrives_whoever_is_killed(tmp_path: Path) -> None:
    """Three nodes that may send, and one for guests only; a hook of the fleet and two of scopes.

    All entries come, each first time in the order of the audit, and always under the same id.
    """
    log, address = tmp_path / "received", SHARED.fresh()
    options = {"FOREWARN_HOOK_TARGETS": "127.0.0.1"}
    with some_nodes(tmp_path) as nodes, reserved_port() as reserved:
        begun = [nodes.begin(address, "--role", "guest", **options), nodes.begin(address, **options)]
        guests, first = (Node(*each) for each in begun)
        until(lambda: TICKS in first.log.read_text())
        begun = [nodes.begin(address, **options) for _ in range(2)]
        second, third = (Node(*each) for each in begun)
        port = reserved.getsockname()[1]
        hooks = create_hooks(first, f"http://127.0.0.1:{port}/in")
        paths = [f"/v1/hooks/{hook['id']}" for hook in hooks.values()]

        work(first)
        until(lambda: all(second.api("GET", path)[1].get("state") == "failing" for path in paths))
        with receiver(port, log, secrets_of(hooks)) as process:
            for path in paths:
                # This saves the test the wait for the next attempt.
                second.change(f"{path}/enable")
            until(lambda: received(log))
            process.kill()
            work(third)
        with receiver(port, log, secrets_of(hooks)):
            first.kill()
            work(second)
            for path in paths:
                # Again, after the attempts that failed meanwhile.
                second.change(f"{path}/enable")
            wanted = {scope: wanted_of(third, scope) for scope in SCOPES}

            def missing() -> dict[str, set[int]]:
                messages = received(log)
                return {s: set(wanted[s]) - set(Messages(hooks[s], messages).entries) for s in SCOPES}

            until(lambda: not any(missing().values()), detail=missing)
        for scope in SCOPES:
            messages = Messages(hooks[scope], received(log))
            assert (messages.entries, messages.under_several_ids) == (wanted[scope], [])
        assert len(wanted[""]) == 3 * ROUNDS * 2 * ENTRIES_EACH
        assert [TICKS in node.log.read_text() for node in (second, third)].count(True) == 1
        assert "hook" not in guests.log.read_text()
        for node in (first, second, third):
            assert "whsec_" not in node.log.read_text()
