"""`forewarn demo` as a user starts it: a real process, real agents, and the commands that it prints."""

import html
import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.demo.demo_process import FOREWARN, DemoProcess, environment
from tests.support.own_network import own_network
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoProcess]:
    running = DemoProcess(tmp_path_factory.mktemp("demo"))
    yield running
    running.close()


@pytest.fixture
def real_time_demo(tmp_path: Path) -> Iterator[DemoProcess]:
    """A demo in real time, where an event stays Scheduled for a quarter of an hour."""
    running = DemoProcess(tmp_path, speed="1x")
    yield running
    running.close()


def approvers(event: dict[str, Any]) -> set[str]:
    return {each["who"] for each in event["approved_by"]}


def test_the_first_poll_shows_an_event(real_time_demo: DemoProcess) -> None:
    """The printed poll command returns a scheduled event of web-0 at once."""
    polled = real_time_demo.shell(real_time_demo.printed_command("curl"))
    document = json.loads(polled.stdout)
    assert document["Events"][0]["Resources"] == ["web-0"]
    assert document["Events"][0]["EventStatus"] == "Scheduled"


def test_the_printed_command_approves(demo: DemoProcess) -> None:
    """The second printed command approves for web-0, which has no agent."""

    def approved() -> bool:
        result = demo.shell(demo.printed_command("curl", 1))
        assert result.returncode == 0
        return any("shop/web-0" in approvers(event) for event in demo.events())

    until(approved)


def test_every_kind_of_event_occurs(demo: DemoProcess) -> None:
    """Events wait, are approved by their own agent, start, complete; one is cancelled, and one starts without notice."""
    occurred: set[str] = set()
    expected = {"waiting", "approved", "Started", "Completed", "Cancelled", "without notice"}

    def all_occurred() -> bool:
        for event in demo.events():
            occurred.add(event["status"])
            if event["status"] == "Scheduled" and any(each["code"] == "approval" for each in event["waiting_for"]):
                occurred.add("waiting")
            if f"{event['scope']}/{event['resources'][0]}" in approvers(event):
                occurred.add("approved")
            if event["scope"] == "legacy" and event["started"] and event["notice_s"] == 0:
                occurred.add("without notice")
        return expected <= occurred

    until(all_occurred)


def test_agents_approve_except_for_one(demo: DemoProcess) -> None:
    """Agents approve in three scopes. worker-3 sees its event and does not approve. old-0 never polls."""
    until(lambda: {"shop", "db", "workers"} <= {each["scope"] for each in demo.events() if each["approved_by"]})

    def is_seen(event: dict[str, Any]) -> bool:
        timeline = demo.get(f"/v1/events/{event['id']}")["timeline"]
        return "worker-3" in {each.get("who") for each in timeline if each["what"] == "seen"}

    def started_and_seen() -> list[dict[str, Any]]:
        started = [each for each in demo.events() if each["resources"] == ["worker-3"] and each["started"]]
        return [each for each in started if is_seen(each)]

    until(started_and_seen)
    event = started_and_seen()[0]
    assert event["approved_by"] == []
    assert datetime.fromisoformat(event["started"]) >= datetime.fromisoformat(event["not_before"])

    def last_seen() -> dict[str, str | None]:
        return {each["name"]: each["last_seen"] for each in demo.get("/v1/machines?limit=50")["items"]}

    until(lambda: all(at for name, at in last_seen().items() if name not in ("web-0", "old-0")))
    assert len(last_seen()) == 12
    assert last_seen()["old-0"] is None


def test_the_printed_commands_work(demo: DemoProcess) -> None:
    """With the printed `export`, the command line finds the demo without a token and schedules an event."""
    export = demo.printed_command("export")
    status, restart = demo.printed_command(FOREWARN[0]), demo.printed_command(FOREWARN[0], 1)
    assert status.partition("#")[0].split()[-1] == "status"
    result = demo.shell(export, status, f"{restart.partition('#')[0]} --yes --json")
    assert result.returncode == 0, result.stderr
    assert "scaled clock" in result.stdout
    until(lambda: any(each["source"] == "User" and each["resources"] == ["web-0"] for each in demo.events()))


def test_the_portal_begins_with_a_guide(demo: DemoProcess) -> None:
    """Without a login the first page has the guide, with the printed poll command and links that all work."""
    with urllib.request.urlopen(f"{demo.operator}/", timeout=PATIENCE_S) as response:
        page = html.unescape(response.read().decode())
    guide = page.partition('class="guide"')[2].partition("</section>")[0]
    assert demo.printed_command("curl") in guide
    links = re.findall(r'href="([^"]+)"', guide)
    assert len(links) >= 5
    for link in links:
        with urllib.request.urlopen(f"{demo.operator}{link}", timeout=PATIENCE_S) as response:
            assert response.status == 200


def test_the_demo_needs_no_token_and_refuses_foreign_pages(demo: DemoProcess) -> None:
    """A request with a foreign Origin gets 403, and one without a token is answered."""
    request = urllib.request.Request(f"{demo.operator}/v1/clock", headers={"Origin": "http://elsewhere.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE_S)
    refused.value.close()
    assert refused.value.code == 403
    assert demo.get("/v1/clock")["kind"] == "scaled"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_the_demo_leaves_nothing_behind(tmp_path: Path, signal_number: signal.Signals) -> None:
    """No folder, process or port remains: when it ends after SIGTERM, and soon after SIGKILL."""
    with own_network():  # where nobody else takes a port that becomes free
        demo = DemoProcess(tmp_path)
        # Ten agents and the helper that removes the folder run; one more process means that an agent is preparing.
        until(lambda: len(demo.processes()) > 11)
        (folder,) = demo.folders()
        code = demo.end(signal_number)
        if signal_number is signal.SIGKILL:
            assert code == -signal.SIGKILL
            until(lambda: not demo.folders())
        else:
            assert code == 0
            assert not folder.exists()
        until(lambda: not demo.processes())
        assert [path.name for path in tmp_path.iterdir()] == ["stderr"]
        assert (tmp_path / "stderr").read_text() == ""
        for url in (demo.guest, demo.operator):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", urlsplit(url).port or 0)) != 0
        demo.close()


def test_an_occupied_port_is_refused(tmp_path: Path) -> None:
    """The message names the port and two ways to choose another. No file remains."""
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        ended = subprocess.run(
            [*FOREWARN, "demo", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(tmp_path),
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"forewarn: --port: 127.0.0.1:{port} is not available: Address already in use.")
    assert "--port 9000" in ended.stderr
    assert "make run PORT=9000" in ended.stderr
    assert list(tmp_path.iterdir()) == []
