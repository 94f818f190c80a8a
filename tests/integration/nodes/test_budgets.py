"""Two real nodes and the budget of the fleet: both decide to publish at one moment, and one of them must find no room."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.nodes.nodes import WEB_1, Node, Nodes, some_nodes
from tests.support.postgres_servers import SHARED
from tests.support.waiting import until

# Transactions that wait for the row of the fleet's rules, which a change of the budget locks first.
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%UPDATE fleet_rules%'
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with some_nodes(tmp_path) as made:
        yield made


def submit(node: Node, machine: str, made: dict[str, Any]) -> None:
    request = {"type": "Reboot", "targets": {"machines": [machine]}}
    # Repeated if a time limit ends before both wait for the row: the node then decides again.
    made[machine] = node.answered("POST", "/v1/maintenances", request)


def test_two_nodes_cannot_exceed_the_budget_of_the_fleet_together(nodes: Nodes) -> None:
    """Both have decided and wait to save. The second to save decides again, and its event waits for the budget."""
    address = SHARED.fresh()
    first, second = nodes.start(address), nodes.start(address)
    # Their scopes are enabled: events get their notice.
    assert first.document().status == first.document(WEB_1).status == 200
    first.change("/v1/budget", {"max_machines_down": 1})
    made: dict[str, Any] = {}
    submissions = [
        threading.Thread(target=submit, args=(node, machine, made))
        for node, machine in ((first, "shop/web-0"), (second, "blog/web-1"))
    ]
    with psycopg.connect(address) as holder, psycopg.connect(address, autocommit=True) as observer:
        holder.execute("SELECT 1 FROM forewarn.fleet_rules FOR NO KEY UPDATE")
        for submission in submissions:
            submission.start()
        until(lambda: observer.execute(WAITING).fetchone() == (2,))
        holder.rollback()
        for submission in submissions:
            submission.join()
    assert {status for status, _ in made.values()} == {201}
    events = [body["waves"][0]["events"][0] for _, body in made.values()]
    assert sorted(event["status"] for event in events) == ["Planned", "Scheduled"]
    (waiting,) = (event for event in events if event["status"] == "Planned")
    (visible,) = (event for event in events if event["status"] == "Scheduled")
    assert [(reason["code"], reason["events"]) for reason in waiting["waiting_for"]] == [("budget", [visible["id"]])]
    assert first.answered("GET", "/v1/budget")[1]["machines_down"] == 1
    second.change(f"/v1/events/{visible['id']}/cancel")
    until(lambda: first.event(waiting["id"]).get("status") == "Scheduled")
