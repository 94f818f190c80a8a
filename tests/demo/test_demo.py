"""`forewarn demo` as a newcomer meets it: a real process, real agents, the lines it prints pasted as they are."""

import html
import json
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.demo.run import refuse_taken
from tests.demo.theatre import FOREWARN, Demo, environment
from tests.support.waiting import until


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    running = Demo(tmp_path_factory.mktemp("demo"))
    yield running
    running.close()


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[Demo]:
    """In real time: an event that is announced stays so for a quarter of an hour."""
    running = Demo(tmp_path, "--speed", "1x")
    yield running
    running.close()


def approvers(event: dict[str, Any]) -> set[str]:
    return {each["who"] for each in event["approved_by"]}


def test_the_document_is_there_from_the_first_moment(unhurried: Demo) -> None:
    """The printed line, pasted, answers at once with the event that web-0's scope was told."""
    answer = unhurried.shell(unhurried.pasted("curl"))
    document = json.loads(answer.stdout)
    assert document["Events"][0]["Resources"] == ["web-0"]
    assert document["Events"][0]["EventStatus"] == "Scheduled"


def test_you_can_say_go(demo: Demo) -> None:
    """The second printed line approves for web-0, which nobody else does."""

    def approved() -> bool:
        answer = demo.shell(demo.pasted("curl", 1))
        assert answer.returncode == 0
        return any("shop/web-0" in approvers(event) for event in demo.events())

    until(approved)


def test_every_step_of_an_event_is_seen(demo: Demo) -> None:
    """Announced, waiting, approved by its own agent, started, gone; one called off, one without notice: all within a minute."""
    seen: set[str] = set()
    wanted = {"waiting", "approved", "Started", "Completed", "Cancelled", "without notice"}

    def look() -> bool:
        for event in demo.events():
            seen.add(event["status"])
            if event["status"] == "Scheduled" and any(each["code"] == "approval" for each in event["waiting_for"]):
                seen.add("waiting")
            if f"{event['scope']}/{event['resources'][0]}" in approvers(event):
                seen.add("approved")
            if event["scope"] == "legacy" and event["started"] and event["notice_s"] == 0:
                seen.add("without notice")
        return wanted <= seen

    until(look)


def test_who_answers_and_who_does_not(demo: Demo) -> None:
    """Agents approve for their own machines in three scopes; worker-3 is asked, sees it and stays silent; old-0 never asks."""
    until(lambda: {"shop", "db", "workers"} <= {each["scope"] for each in demo.events() if each["approved_by"]})
    until(lambda: any(e["resources"] == ["worker-3"] and e["status"] == "Started" for e in demo.events()))
    (event, *_) = [each for each in demo.events() if each["resources"] == ["worker-3"] and each["started"]]
    assert event["approved_by"] == []
    assert datetime.fromisoformat(event["started"]) >= datetime.fromisoformat(event["not_before"])
    timeline = demo.get(f"/v1/events/{event['id']}")["timeline"]
    assert "worker-3" in {each.get("who") for each in timeline if each["what"] == "seen"}
    seen = {each["name"]: each["last_seen"] for each in demo.get("/v1/machines?limit=50")["items"]}
    assert len(seen) == 12
    assert seen["old-0"] is None
    assert all(seen[name] for name in seen if name not in ("web-0", "old-0"))


def test_what_it_says_to_try_works_as_pasted(demo: Demo) -> None:
    """The command line finds the demo by the line before, without a token, and makes an event."""
    where, status, restart = demo.pasted("export"), demo.pasted(FOREWARN[0]), demo.pasted(FOREWARN[0], 1)
    assert status.partition("#")[0].split()[-1] == "status"
    told = demo.shell(where, status, f"{restart.partition('#')[0]} --json")
    assert told.returncode == 0, told.stderr
    assert "scaled clock" in told.stdout
    until(lambda: any(each["source"] == "User" and each["resources"] == ["web-0"] for each in demo.events()))


def test_the_portal_begins_with_a_guide(demo: Demo) -> None:
    """Without logging in: what is seen, the same question to ask as printed, and links that all lead somewhere."""
    with urllib.request.urlopen(f"{demo.operator}/", timeout=10) as answer:
        page = html.unescape(answer.read().decode())
    guide = page.partition('class="guide"')[2].partition("</section>")[0]
    assert demo.pasted("curl") in guide
    links = re.findall(r'href="([^"]+)"', guide)
    assert len(links) >= 5
    for link in links:
        with urllib.request.urlopen(f"{demo.operator}{link}", timeout=10) as answer:
            assert answer.status == 200


def test_its_settings_say_that_it_is_a_demo(demo: Demo) -> None:
    """No token is asked for on loopback, and a foreign page is refused."""
    request = urllib.request.Request(f"{demo.operator}/v1/clock", headers={"Origin": "http://elsewhere.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    refused.value.close()
    assert refused.value.code == 403
    assert demo.get("/v1/clock")["kind"] == "scaled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """No folder, no process, no port; after SIGTERM within 5 s, after SIGKILL as soon as its helpers see it."""
    demo = Demo(tmp_path)
    # In the middle of it: some agent is getting its machine ready.
    until(lambda: len(demo.processes()) > 11)
    (folder,) = demo.left()
    begun_s = time.monotonic()
    code = demo.end(number)
    if number is signal.SIGKILL:
        assert code == -signal.SIGKILL
        until(lambda: not demo.left())
    else:
        assert code == 0
        assert time.monotonic() - begun_s < 5
        assert not folder.exists()
    until(lambda: not demo.processes())
    assert [path.name for path in tmp_path.iterdir()] == ["stderr"]
    assert (tmp_path / "stderr").read_text() == ""
    for url in (demo.guest, demo.operator):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", urlsplit(url).port or 0)) != 0
    demo.close()


def test_a_taken_port_says_how_to_choose_another(tmp_path: Path) -> None:
    """Which port it is, and both ways to choose; nothing was begun."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [*FOREWARN, "demo", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(tmp_path),
            check=False,
        )
        # The next port is the operators'.
        with pytest.raises(InvalidSettings, match=f"127.0.0.1:{port} cannot be had"):
            refuse_taken(port - 1)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"forewarn: --port: 127.0.0.1:{port} cannot be had: Address already in use.")
    assert "--port 9000" in ended.stderr
    assert "make run PORT=9000" in ended.stderr
    assert list(tmp_path.iterdir()) == []
