"""Replayed recordings: the recorded bytes at the recorded times, on any clock."""

import base64
import http.client
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from forewarn.core.errors import Invalid, Refused
from forewarn.guest import Client
from forewarn.testing.emulator import Emulator
from forewarn.testing.recording_file import read_recording
from forewarn.testing.scenarios import scenario
from forewarn.testing.scenarios.player import emulator_for, play_on
from tests.support.commands import run_here
from tests.support.waiting import PATIENCE_S
from tests.testing.http_guest import DOCUMENT, METADATA, approve, send
from tests.testing.recordings import EVENT, answer, document, event, recording, start_forewarn, write_recording

GONE = {"at_s": 60, "status": 410, "headers": {"Retry-After": "7"}, "body": '{"error":"gone"}'}


def poll(endpoint: str, **options: Any) -> tuple[object, ...]:
    """Return the status, tag, Date and body of the answer, or the kind of failure."""
    try:
        reply = send(endpoint, **options)
    except (http.client.IncompleteRead, http.client.BadStatusLine):
        return ("cut",)
    except ConnectionError:
        return ("unreachable",)
    except TimeoutError:
        return ("no-answer",)
    return reply.status, reply.headers.get("etag", ""), reply.headers["date"], reply.raw


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Call the function in a thread; return a function that waits for its result."""
    results: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=lambda: results.put(call()), daemon=True).start()
    return lambda: results.get(timeout=PATIENCE_S)


def test_a_replay_repeats_what_was_recorded(tmp_path: Path) -> None:
    """A scenario with faults has the same bytes, tags, dates and failures when it is replayed."""
    path, played = tmp_path / "recording.jsonl", scenario("user-redeploy")
    faults = [
        {"fault": "cut", "requests": 1},
        {"fault": "status", "status": 410, "after": "10m", "for": "1s"},
    ]
    with emulator_for(played, seed=1, clock="manual", faults=faults) as emulator, path.open("xb") as file:
        play_on(emulator.service, played, say=lambda _: None)
        with recording(emulator.endpoint, file) as next_line:
            assert next_line().failure == "cut"
            while b"Scheduled" not in next_line().raw:
                pass
            emulator.advance(minutes=10)
            while next_line().status != 410:
                pass
            emulator.advance(1)
            assert b"Started" in next_line().raw
            emulator.advance(299)
            assert json.loads(next_line().raw)["Events"] == []
    recorded = read_recording(path)
    assert recorded.head.machine == "vm-0"
    with Emulator(replay=path, seed=2) as replaying:
        before_s = recorded.lines[0].at_s
        for line in recorded.lines:
            replaying.advance(line.at_s - before_s + 0.0001)
            before_s = line.at_s
            expected = (line.status, line.etag, line.headers["Date"], line.raw) if line.status else (line.failure,)
            assert poll(replaying.endpoint) == expected
        replaying.advance(hours=1)
        assert poll(replaying.endpoint)[3] == recorded.lines[-1].raw
    assert [line.status or line.failure for line in recorded.lines][-3:] == [410, 200, 200]


def test_bodies_are_replayed_byte_for_byte(tmp_path: Path) -> None:
    """Unknown fields, spaces, the order of keys, and bodies that are not text or not documents stay."""
    odd = '{ "Events" : [ {"EventStatus":"Dreaming", "Unheard":{"Of":[null,1.50]}} ],"DocumentIncarnation":"\u00fc" }'
    broken = b'{"DocumentIncarnation":\xff'
    shapeless = '{"DocumentIncarnation":3,"Events":[7,{"EventId":4}]}'
    lines = (
        answer(0, odd),
        {"at_s": 1, "status": 200, "body_base64": base64.b64encode(broken).decode()},
        answer(2, shapeless),
    )
    with Emulator(replay=str(write_recording(tmp_path, *lines))) as emulator:
        assert send(emulator.endpoint).raw == odd.encode()
        emulator.advance(1)
        assert send(emulator.endpoint).raw == broken
        emulator.advance(1)
        assert send(emulator.endpoint).raw == shapeless.encode()
        assert [r.incarnation for r in emulator.requests()] == [None, None, 3]


def test_a_replay_has_tags_long_polls_and_checks(tmp_path: Path) -> None:
    """A recorded tag gives 304, and a long poll gets the next line. Without a recorded tag the answer has none."""
    path = write_recording(
        tmp_path, answer(0, document(1), 'W/"one"'), answer(60, document(2, event()), '"two"'), answer(90, document(3))
    )
    with Emulator(replay=path) as emulator:
        endpoint = emulator.endpoint
        emulator.advance(hours=1)  # without a request the replay has not begun
        first = send(endpoint)
        assert first.headers["etag"] == 'W/"one"'
        tagged = {**METADATA, "If-None-Match": first.headers["etag"]}
        same = send(endpoint, headers=tagged)
        assert (same.status, same.headers["etag"], same.raw) == (304, 'W/"one"', b"")
        last_number = emulator.log.last_number
        changed = in_thread(lambda: send(endpoint, headers={**tagged, "Prefer": "wait=60"}, timeout_s=PATIENCE_S))
        assert emulator.log.wait(lambda requests: True if len(requests) > last_number else None, PATIENCE_S)
        emulator.advance(60)
        assert (changed().raw, send(endpoint).headers["etag"]) == (document(2, event()).encode(), '"two"')
        emulator.advance(45)
        last = send(endpoint, headers={**METADATA, "If-None-Match": '"two"'})
        assert (last.status, "etag" in last.headers) == (200, False)
        assert last.headers["date"] == "Mon, 19 Sep 2016 18:00:15 GMT"  # the recorded Date plus fifteen seconds
        assert send(endpoint, headers={}).status == 400
        assert send(endpoint, "PUT").status == 405


def test_a_replay_closes_connections_and_names_no_machine_if_the_endpoint_did(tmp_path: Path) -> None:
    """Without a recorded machine `/metadata/instance` is 404, after the usual checks."""
    closing = answer(0, document(1))
    closing["headers"]["Connection"] = "close"
    with Emulator(replay=write_recording(tmp_path, closing, answer(60, document(2)))) as emulator:
        assert send(emulator.endpoint).headers["connection"] == "close"
        instance = "/metadata/instance/compute?api-version=2017-08-01"
        assert send(emulator.endpoint, path=instance).status == 404
        assert send(emulator.endpoint, path=instance, headers={}).status == 400
        emulator.advance(60)
        assert "connection" not in send(emulator.endpoint).headers


def test_another_version_is_refused(tmp_path: Path) -> None:
    """A recording has only the recorded api-version, and the error names it."""
    path = write_recording(tmp_path, answer(0, document(1)), head={"api_version": "2019-08-01"})
    with Emulator(replay=path) as emulator:
        reply = send(emulator.endpoint)
        assert (reply.status, reply.json["newest-versions"]) == (400, ["2019-08-01"])
        assert "The recording is of api-version 2019-08-01" in reply.json["error"]
        assert approve(emulator.endpoint, EVENT).status == 400
        recorded = DOCUMENT.replace("2020-07-01", "2019-08-01")
        assert send(emulator.endpoint, path=recorded).raw == document(1).encode()


def test_approvals_succeed_and_change_nothing(tmp_path: Path) -> None:
    """An event can be approved once it was shown, also after it is gone. Expectations count this. Unknown ids are refused."""
    path = write_recording(
        tmp_path,
        answer(0, document(1)),
        answer(60, document(2, event())),
        answer(120, document(3)),
        head={"machine": "db-7"},
    )
    with Emulator(replay=path) as emulator:
        endpoint, operator = emulator.endpoint, emulator.operator_url
        assert emulator.machine_names() == ["emulated/db-7"]
        client = Client(endpoint)
        assert client.me().name == "db-7"
        client.close()
        send(endpoint)
        assert approve(endpoint, EVENT).status == 400
        emulator.advance(60)
        before = send(endpoint).raw
        assert approve(endpoint, EVENT.lower()).status == 200
        assert approve(endpoint, EVENT, "BBBBBBBB-0000-4000-8000-000000000001").status == 400
        assert send(endpoint).raw == before
        emulator.wait_seen(EVENT, by="db-7", status="Scheduled")
        emulator.expect_approval(EVENT, times=1)
        expected = {"what": "approval", "event": EVENT, "times": 1, "within_s": 0}
        assert send(
            operator, "POST", "/v1/emulator/expect", expected, headers={"Content-Type": "application/json"}
        ).json["passed"]
        never = {**expected, "event": "BBBBBBBB-0000-4000-8000-000000000001"}
        assert (
            send(operator, "POST", "/v1/emulator/expect", never, headers={"Content-Type": "application/json"}).status
            == 404
        )
        emulator.advance(60)
        assert approve(endpoint, EVENT).status == 200


def test_an_operator_cannot_change_a_replay(tmp_path: Path) -> None:
    """`schedule` is refused, and guests do not see what the API schedules."""
    with Emulator(replay=write_recording(tmp_path, answer(0, document(7)))) as emulator:
        assert send(emulator.endpoint).raw == document(7).encode()
        with pytest.raises(Refused, match="shows only the recording"):
            emulator.schedule("Reboot", "vm-0")
        maintenance = {"type": "Reboot", "targets": {"machines": ["vm-0"]}}
        headers = {"Content-Type": "application/json"}
        assert send(emulator.operator_url, "POST", "/v1/maintenances", maintenance, headers=headers).status == 201
        assert send(emulator.endpoint).raw == document(7).encode()


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (GONE, (410, "", b'{"error":"gone"}')),
        ({"at_s": 60, "status": 502, "body": "<html>"}, (502, "", b"<html>")),
        ({"at_s": 60, "failure": "cut"}, ("cut",)),
        ({"at_s": 60, "failure": "unreachable"}, ("unreachable",)),
        ({"at_s": 60, "failure": "no-answer"}, ("no-answer",)),
    ],
)
def test_failures_last_until_the_next_line(
    failure: dict[str, Any], expected: tuple[object, ...], tmp_path: Path
) -> None:
    """A waiting long poll and new requests fail, and then the document is back."""
    path = write_recording(tmp_path, answer(0, document(1), '"1"'), failure, answer(61, document(1), '"1"'))
    with Emulator(replay=path) as emulator:
        endpoint = emulator.endpoint
        send(endpoint)
        last_number, long_poll = emulator.log.last_number, {**METADATA, "If-None-Match": '"1"', "Prefer": "wait=60"}
        waiting = in_thread(
            lambda: poll(endpoint, headers=long_poll, timeout_s=PATIENCE_S if expected != ("no-answer",) else 0.5)
        )
        assert emulator.log.wait(lambda requests: True if len(requests) > last_number else None, PATIENCE_S)
        emulator.advance(60)
        for outcome in (waiting(), poll(endpoint, timeout_s=PATIENCE_S if expected != ("no-answer",) else 0.2)):
            assert (outcome if len(outcome) == 1 else (*outcome[:2], outcome[3])) == expected
        if failure is GONE:
            assert send(endpoint).headers["retry-after"] == "7"
            assert approve(endpoint, EVENT).status == 410
        emulator.advance(1)
        assert send(endpoint).raw == document(1).encode()


def test_a_replay_follows_a_scaled_clock(tmp_path: Path) -> None:
    """It begins with the first request, however late that comes."""
    path = write_recording(tmp_path, answer(5, document(1), '"1"'), answer(3605, document(2, event()), '"2"'))
    with Emulator(replay=path, clock="20000x") as emulator:
        emulator.advance(hours=5)
        client = Client(emulator.endpoint)
        documents = client.watch()
        assert [next(documents).incarnation, next(documents).incarnation] == ["1", "2"]
        client.close()


def test_the_command_replays(tmp_path: Path) -> None:
    """It prints the poll command with the recorded version, and then each line when it becomes current."""
    path = write_recording(
        tmp_path, answer(0, document(1)), answer(60, document(2, event())), head={"api_version": "2019-08-01"}
    )
    emulating = start_forewarn("emulate", "--port", "0", "--clock", "manual", "--replay", str(path))
    try:
        assert emulating.stdout is not None
        ready, _, _, curl, replays = (emulating.stdout.readline() for _ in range(5))
        endpoint, operator = (part.partition("=")[2] for part in ready.split()[1:])
        assert replays == f"# replays {path} for emulated/vm-0, beginning with the first poll\n"
        assert send(endpoint, path=curl.split("'")[1].removeprefix(endpoint)).raw == document(1).encode()
        assert emulating.stdout.readline().startswith("+0s")
        moved = send(
            operator, "POST", "/v1/clock/advance", {"seconds": 60}, headers={"Content-Type": "application/json"}
        )
        assert moved.status == 200
        assert emulating.stdout.readline().startswith("+1m")
        assert "ends here" in emulating.stdout.readline()
    finally:
        emulating.kill()
        emulating.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("emulate", "--replay", "x", "--machines", "1"), "leave out --machines"),
        (("emulate", "--replay", "x", "--fleet", "x"), "leave out --fleet"),
        (("emulate", "--replay", "x", "--scenario", "x"), "leave out --scenario"),
        (("emulate", "--replay", "no-such.jsonl"), "no-such.jsonl: cannot be read"),
        (("record", "--endpoint", "https://x/y"), "is not an endpoint"),
        (("record", "--api-version", "latest"), "--api-version: 'latest'"),
        (("record", "--for", "ever"), "'ever' is not a duration"),
        (("record", "--output", "no/such/folder"), "no/such/folder: cannot be written"),
        (("record", "--output", __file__), f"{__file__}: the file exists"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], message: str) -> None:
    """The message is one sentence."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        done = run_here(*arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_replay_has_only_one_machine(tmp_path: Path) -> None:
    """Several machines and a replay cannot be combined."""
    with pytest.raises(Invalid, match="leave out other machines"):
        Emulator(2, replay=write_recording(tmp_path, answer(0, document(1))))
