"""Several real nodes on one real PostgreSQL: what guests and operators see, and what happens when something dies."""

import re
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest

from tests.integration.nodes.nodes import WEB_1, Node, Nodes, Wire, some_nodes, wire_to
from tests.support.postgres_servers import SHARED
from tests.support.waiting import PATIENCE_S, first_accepted, until


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with some_nodes(tmp_path) as made:
        yield made


@pytest.fixture
def wire() -> Iterator[Wire]:
    with wire_to(SHARED.server.port) as made:
        yield made


def through(wire: Wire, address: str) -> str:
    return address.replace(f":{SHARED.server.port}/", f":{wire.port}/")


def silent_s(node: Node) -> float:
    """How long ago the node heard from its database, as it says itself."""
    with urlopen(f"{node.operator}/metrics", timeout=PATIENCE_S) as answer:
        (seconds,) = re.findall(r"^forewarn_store_silent_seconds (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(seconds)


def test_no_guest_sees_time_run_backwards(nodes: Nodes) -> None:
    """What one node showed, or later changes, the others show to a guest that sends its ETag; also right after the change."""
    address = SHARED.fresh()
    first, second = nodes.start(address), nodes.start(address)
    assert first.document().etag == second.document().etag == '"1"'
    tags = ['"1"']
    for _ in range(20):
        first.reboot()
        seen = first.document()
        answer = second.document(etag=seen.etag)
        assert answer.status == 304
        assert answer.etag == seen.etag != tags[-1]
        tags.append(seen.etag)
    newest = second.document(etag='"999"')  # a tag nobody ever had is no reason to hide the document
    assert (newest.status, newest.etag) == (200, tags[-1])


def test_what_another_node_did_is_shown_where_it_is_answered_again(nodes: Nodes, wire: Wire) -> None:
    """A request repeated at a node that has not heard of it yet is answered there once its guests see it, and not before."""
    address = SHARED.fresh()
    first, second = nodes.start(address), nodes.start(address, FOREWARN_STORE_DIRECT=through(wire, address))
    assert first.document().etag == second.document().etag == '"1"'
    wire.stall()
    request = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}}
    made = first.answered("POST", "/v1/maintenances", request, key="once")
    assert made[0] == 201
    again = second.api("POST", "/v1/maintenances", request, key="once")
    assert (again[0], len(second.document().events)) == (503, 0)
    wire.mend()
    until(lambda: second.api("POST", "/v1/maintenances", request, key="once") == made)
    assert len(second.document().events) == 1


def test_a_change_reaches_guests_of_every_node(nodes: Nodes) -> None:
    """A long poll on one node ends with what an operator did on another; an approval there starts the event here."""
    address = SHARED.fresh()
    first, second = nodes.start(address), nodes.start(address)
    assert (first.document().status, second.document().etag) == (200, '"1"')
    first.reboot()
    response = second.document(etag='"1"', wait_s=60)
    assert response.status == 200
    (event,) = response.events
    assert second.approved(event["EventId"]).status == 200
    until(lambda: first.poll().statuses == ["Started"])
    until(lambda: second.poll().statuses == ["Started"])


def test_a_lost_bell_costs_a_second(nodes: Nodes) -> None:
    """What was saved without ringing is found by looking."""
    address = SHARED.fresh()
    node = nodes.start(address)
    assert node.document().etag == '"1"'
    SHARED.server.execute(
        "BEGIN; SET search_path = forewarn; UPDATE scopes SET incarnation = 5, version = 9 WHERE name = 'shop';"
        "INSERT INTO changes (everything, scopes, machines) VALUES (false, '{\"shop\": 9}', '[]'); COMMIT",
        address.rpartition("/")[2],
    )
    until(lambda: node.poll().etag == '"5"')


@pytest.mark.parametrize("how", ["cut", "stall"])
def test_while_the_database_is_away(nodes: Nodes, wire: Wire, how: str) -> None:
    """Polls go on from memory for max_stale, writes are refused, `/readyz` fails; on return all is as before."""
    address, short_s = through(wire, SHARED.fresh()), 5
    node = nodes.start(address, FOREWARN_MAX_STALE="1h")
    forgetful = nodes.start(address, FOREWARN_MAX_STALE=f"{short_s}s")
    assert node.document().etag == forgetful.document().etag == '"1"'
    node.reboot()
    (event,) = node.document().events
    until(lambda: node.ready()[0] == 200)

    getattr(wire, how)()
    first_accepted(node.ready, lambda answer: answer[0] == 503 and answer[1]["checks"]["store"] != "ok")  # type: ignore[index]
    assert node.approve(event["EventId"]).status == 503
    assert node.poll(source=WEB_1).status == 503  # would enable its scope
    status, body = node.api("POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}})
    assert (status, body["error"]["code"]) == (503, "store_unavailable")  # type: ignore[index]
    until(lambda: forgetful.poll().status == 503)
    assert silent_s(forgetful) > short_s
    assert node.poll().statuses == ["Scheduled"]
    assert node.process.poll() is None
    assert forgetful.process.poll() is None

    wire.mend()
    until(lambda: forgetful.poll().status == 200)
    until(lambda: node.ready()[0] == forgetful.ready()[0] == 200)
    for each in (node, forgetful):
        assert each.document().statuses == ["Scheduled"]  # nothing was half done
    assert node.document(source=WEB_1).status == 200
    assert node.approved(event["EventId"]).status == 200
    until(lambda: forgetful.poll().statuses == ["Started"])


def test_a_long_poll_ends_when_nothing_can_be_known(nodes: Nodes, wire: Wire) -> None:
    """A long poll ends with an error when no change can arrive, instead of waiting for ever."""
    node = nodes.start(through(wire, SHARED.fresh()), FOREWARN_MAX_STALE="5s")
    tag = node.document().etag
    wire.cut()
    assert node.poll(etag=tag, wait_s=60).status == 503


def test_another_node_ticks_when_the_first_dies(nodes: Nodes) -> None:
    """The ticker's lease ends with its holder, killed or frozen, and what is due happens; a thawed one does no harm."""
    address = SHARED.fresh()
    first = nodes.start(address)
    until(lambda: "this node ticks" in first.log.read_text())
    second = nodes.start(address)
    second.document()
    second.reboot()
    first.kill(signal.SIGSTOP)
    (event,) = second.document().events
    # The frozen node may have stopped in the middle of a change: others are refused until the database ends that.
    assert second.approved(event["EventId"]).status == 200
    until(lambda: second.poll().statuses == ["Started"])
    first.kill(signal.SIGCONT)
    until(lambda: first.ready()[0] == 200)
    until(lambda: "another node ticks" in first.log.read_text())
    timeline = second.event(event["EventId"])["timeline"]
    assert str(timeline).count("'what': 'started'") == 1


@pytest.mark.parametrize("restarted", [True, False])
def test_the_order_of_a_dead_node_is_taken_over(nodes: Nodes, tmp_path: Path, restarted: bool) -> None:
    """Killed in the middle of its command, its order goes on under the same id and attempt and ends once.

    Whoever is alone at its place goes on at once; where another node is, that one does when the dead one's lease ends.
    """
    address, began, go = SHARED.fresh(), tmp_path / "began", tmp_path / "go"
    script = tmp_path / "work"
    waits = f"for n in $(seq 6000); do [ -e {go} ] && exit; sleep 0.1; done"
    script.write_text(f'#!/bin/sh\necho "$FOREWARN_ORDER_ID $FOREWARN_ATTEMPT" >>{began}\n{waits}\n')
    script.chmod(0o755)
    settings = {"FOREWARN_EXECUTOR": "command", "FOREWARN_COMMAND": str(script)}
    place = ("--state-dir", str(tmp_path / "place"))
    first = nodes.start(address, *place, **settings)
    until(lambda: "this node ticks" in first.log.read_text())
    second = first if restarted else nodes.start(address, *place, **settings)
    second.document()
    second.reboot()
    (event,) = second.document().events
    assert second.approved(event["EventId"]).status == 200
    until(began.exists)
    first.kill()
    lease_ends = end_of_lease(address, first)
    if restarted:
        second = nodes.start(address, *place, **settings)
    until(lambda: "took over 1 order" in second.log.read_text())
    assert restarted or SHARED.server.execute("SELECT clock_timestamp()") >= [(lease_ends,)]
    go.touch()
    until(lambda: second.poll().statuses == [])
    assert began.read_text() == f"{event['EventId']} 1\n"
    timeline = str(second.event(event["EventId"])["timeline"])
    assert timeline.count("'order taken over'") == 1
    assert timeline.count("'order finished'") == 1


def end_of_lease(address: str, dead: Node) -> datetime:
    with psycopg.connect(address) as connection:
        names = connection.execute("SELECT node, until FROM forewarn.leases WHERE name = 'node ' || node").fetchall()
    (found,) = [until for name, until in names if name.rpartition(":")[2].partition("-")[0] == str(dead.process.pid)]
    assert isinstance(found, datetime)
    return found


def test_each_role_does_its_part(nodes: Nodes) -> None:
    """A node for guests has no API and no work, one for operators no guest listener; together they are a service."""
    address = SHARED.fresh()
    operator = nodes.start(address, "--role", "operator")
    guest = nodes.start(address, "--role", "guest")
    assert operator.guest == "none"
    assert guest.answered("GET", "/v1/scopes")[0] == 404
    until(lambda: guest.ready()[0] == operator.ready()[0] == 200)
    assert guest.document().status == 200
    operator.reboot()
    response = guest.document(etag='"1"', wait_s=60)
    assert guest.approved(response.events[0]["EventId"]).status == 200
    until(lambda: guest.poll().statuses == ["Started"])
    assert "this node ticks" not in guest.log.read_text()
