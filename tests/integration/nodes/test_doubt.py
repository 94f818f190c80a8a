"""A command that may have begun never begins again by itself: not on another node, not after a reboot of its machine.

Each node has its own state folder. The command is the witness: it records itself when it begins and ends. To let the leases of
a dead node end, a test moves them into the past in the database.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.nodes.nodes import Node, Nodes, some_nodes
from tests.support.postgres_servers import SHARED
from tests.support.waiting import PATIENCE_S, until

# The command ends by itself where a failed test leaves it behind.
WORK = """#!/bin/sh
echo "began $FOREWARN_ATTEMPT $$" >>{log}
for n in $(seq 6000); do [ -e {go} ] && break; sleep 0.1; done
echo "ended $FOREWARN_ATTEMPT $$" >>{log}
"""


class Site:
    """Nodes on one store that run a command, which ends when the test lets it."""

    def __init__(self, nodes: Nodes, folder: Path, address: str) -> None:
        self._nodes, self._folder, self.address = nodes, folder, address
        self._log, self._go, self._command = folder / "work.log", folder / "go", folder / "work"
        self._command.write_text(WORK.format(log=self._log, go=self._go))
        self._command.chmod(0o755)

    def start(self, name: str, **settings: str) -> Node:
        """Start a node with the state folder `name`."""
        return self._nodes.start(
            self.address,
            "--state-dir",
            str(self.state(name)),
            FOREWARN_EXECUTOR="command",
            FOREWARN_COMMAND=str(self._command),
            **settings,
        )

    def state(self, name: str) -> Path:
        return self._folder / name

    def finish_work(self) -> None:
        self._go.touch()

    def recorded(self) -> list[str]:
        """Return what the commands recorded: `began 1`, `ended 1`, …"""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.rpartition(" ")[0] for line in lines]

    def pid_of_command(self) -> int:
        return int(self._log.read_text().split()[2])

    def begin_work(self, node: Node) -> str:
        """Start an event of web-0; return its id once its command has begun."""
        node.document()
        node.reboot()
        (event,) = node.document().events
        assert node.approved(event["EventId"]).status == 200
        until(lambda: self.recorded() == ["began 1"])
        return str(event["EventId"])

    def end_leases(self, node: Node) -> None:
        """Let the leases of a dead node have ended long ago."""
        SHARED.server.execute(
            "UPDATE forewarn.leases SET until = clock_timestamp() - interval '1 hour'"
            f" WHERE node LIKE '%:{node.process.pid}-%'",
            self.address.rpartition("/")[2],
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with some_nodes(tmp_path) as nodes:
        made = Site(nodes, tmp_path, SHARED.fresh())
        yield made
        made.finish_work()


def order(node: Node, order_id: str) -> dict[str, object]:
    return node.answered("GET", f"/v1/orders/{order_id}")[1]


def until_in_doubt(node: Node, order_id: str) -> None:
    until(lambda: order(node, order_id).get("state") == "in-doubt", detail=lambda: order(node, order_id))
    status, page = node.answered("GET", "/v1/orders?state=in-doubt")
    assert (status, [each["id"] for each in page["items"]]) == (200, [order_id])  # type: ignore[attr-defined]
    waiting_for = node.answered("GET", f"/v1/events/{order_id}")[1]["waiting_for"]
    assert [reason["code"] for reason in waiting_for] == ["in-doubt"]  # type: ignore[attr-defined]
    assert node.answered("GET", "/v1/counts")[1]["in_doubt"] == 1


def test_a_node_that_is_stopped_leaves_its_command_at_work_and_nobody_begins_it_again(site: Site) -> None:
    """SIGTERM to the ticking node: another node ticks, and the order is in doubt until the first node is back."""
    first = site.start("a")
    until(lambda: "this node ticks" in first.log.read_text())
    second = site.start("b")
    event_id = site.begin_work(second)
    first.kill(signal.SIGTERM)
    site.end_leases(first)
    until(lambda: "this node ticks" in second.log.read_text())
    until_in_doubt(second, event_id)
    os.kill(site.pid_of_command(), 0)
    assert site.recorded() == ["began 1"]
    again = site.start("a")
    until(lambda: order(again, event_id).get("state") == "running")
    site.finish_work()
    until(lambda: second.poll().statuses == [])
    assert site.recorded() == ["began 1", "ended 1"]
    assert order(second, event_id)["state"] == "done"
    timeline = [entry["what"] for entry in second.event(event_id)["timeline"]]  # type: ignore[attr-defined]
    assert [what for what in timeline if "order" in what] == [
        "order taken",
        "order in doubt",
        "order taken over",
        "order finished",
    ]


def test_a_command_that_ended_while_its_node_was_dead_is_not_run_again(site: Site) -> None:
    """kill -9 of the node alone: nobody else knows that the command has ended; its state folder reports the result."""
    first = site.start("a")
    until(lambda: "this node ticks" in first.log.read_text())
    second = site.start("b")
    event_id = site.begin_work(second)
    first.kill(signal.SIGKILL)
    site.finish_work()
    until(lambda: site.recorded() == ["began 1", "ended 1"])
    site.end_leases(first)
    until_in_doubt(second, event_id)
    site.start("a")
    until(lambda: order(second, event_id).get("state") == "done")
    until(lambda: second.poll().statuses == [])
    assert site.recorded() == ["began 1", "ended 1"]


def test_a_command_is_not_run_again_after_a_reboot(site: Site, tmp_path: Path) -> None:
    """The whole machine went down: no runner, no result, another boot id. An operator lets it begin again."""
    site.address = f"sqlite:{tmp_path / 'forewarn.db'}"
    first = site.start("a")
    event_id = site.begin_work(first)
    first.kill(signal.SIGKILL)
    kill_runner(site)
    (site.state("a") / "orders" / f"{event_id}-1" / "begun").write_text("another boot")
    again = site.start("a")
    until_in_doubt(again, event_id)
    assert "the machine restarted while the command ran" in str(order(again, event_id)["reason"])
    assert site.recorded() == ["began 1"]
    again.change(f"/v1/events/{event_id}/retry")
    site.finish_work()
    until(lambda: again.poll().statuses == [])
    assert site.recorded() == ["began 1", "began 2", "ended 2"]


def kill_runner(site: Site) -> None:
    command = site.pid_of_command()
    runner = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])
    assert b"runner.py" in Path(f"/proc/{runner}/cmdline").read_bytes()
    os.kill(runner, signal.SIGKILL)
    os.killpg(command, signal.SIGKILL)


def test_a_node_waits_for_its_commands_if_it_should(site: Site, tmp_path: Path) -> None:
    """`stop_grace`: after SIGTERM the node starts nothing new, saves the result of its command, and ends."""
    site.address = f"sqlite:{tmp_path / 'forewarn.db'}"
    node = site.start("a", FOREWARN_STOP_GRACE="10m")
    event_id = site.begin_work(node)
    node.process.send_signal(signal.SIGTERM)
    until(lambda: "waiting up to 600 s for 1 order(s)" in node.log.read_text())
    assert node.process.poll() is None
    site.finish_work()
    assert node.process.wait(PATIENCE_S) == 0
    assert "stay at work" not in node.log.read_text()
    assert order(site.start("a"), event_id)["state"] == "done"
