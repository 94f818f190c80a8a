"""What an endpoint says is written down and served again: field by field, in order, on any clock, without names if wished."""

import base64
import http.client
import io
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from forewarn.cli.app import run
from forewarn.core.errors import Invalid, InvalidSettings, Refused
from forewarn.guest import Client
from forewarn.testing import recording_file
from forewarn.testing.emulator import Emulator
from forewarn.testing.faults import Fault
from forewarn.testing.recorder import Recorder
from forewarn.testing.recording_file import Line, read_recording
from forewarn.testing.scenarios import scenario
from forewarn.testing.scenarios.player import emulator_for, play_on
from forewarn.testing.scrubber import Scrubber
from tests.addresses import own_loopback_address
from tests.support.waiting import PATIENCE_S
from tests.testing.guests import DOCUMENT, METADATA, approve, ask

EVENT = "AAAAAAAA-0000-4000-8000-000000000001"
HEAD = {"forewarn_recording": 1, "api_version": "2020-07-01"}
GONE = {"at_s": 60, "status": 410, "headers": {"Retry-After": "7"}, "body": '{"error":"gone"}'}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After a failure the client in this process asks again at once; none outlives its test."""
    monkeypatch.setattr("forewarn.guest.client.BACKOFF_S", (0.05,))
    yield
    for thread in threading.enumerate():
        if thread.name == "recorder":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def document(incarnation: int, *events: dict[str, Any], **more: Any) -> str:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": list(events), **more})


def event(status: str = "Scheduled", **more: Any) -> dict[str, Any]:
    return {"EventId": EVENT, "EventStatus": status, "EventType": "Reboot", "Resources": ["db-7"], **more}


def said(at_s: float, body: str, etag: str = "", date: str = "Mon, 19 Sep 2016 18:00:00 GMT") -> dict[str, Any]:
    headers = {"Date": date, **({"ETag": etag} if etag else {})}
    return {"at_s": at_s, "status": 200, "headers": headers, "body": body}


def file_of(folder: Path, *lines: dict[str, Any], head: dict[str, Any] | None = None) -> Path:
    path = folder / "recording.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ({**HEAD, **(head or {})}, *lines)), "utf-8")
    return path


@contextmanager
def recording(endpoint: str, file: io.BytesIO | Any, **options: Any) -> Iterator[Callable[[], Line]]:
    """A recorder at work; what is yielded waits for its next line."""
    lines: SimpleQueue[Line] = SimpleQueue()
    recorder = Recorder(endpoint, file, said=lines.put, over=lambda why: pytest.fail(why), **options)
    recorder.start()
    try:
        yield lambda: lines.get(timeout=PATIENCE_S)
    finally:
        recorder.stop()


def met(endpoint: str, **options: Any) -> tuple[object, ...]:
    """What a guest meets: status, tag, Date and body; or how the answer failed."""
    try:
        reply = ask(endpoint, **options)
    except (http.client.IncompleteRead, http.client.BadStatusLine):
        return ("cut",)
    except ConnectionError:
        return ("unreachable",)
    except TimeoutError:
        return ("no-answer",)
    return reply.status, reply.headers.get("etag", ""), reply.headers["date"], reply.raw


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin it; what is returned waits for its result."""
    results: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=lambda: results.put(call()), daemon=True).start()
    return lambda: results.get(timeout=PATIENCE_S)


def test_what_was_recorded_is_served_again(tmp_path: Path) -> None:
    """A scenario with faults in it, recorded and replayed on manual clocks: the same bytes, tags, dates and failures in order."""
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
    with Emulator(replay=path, seed=2) as again:
        before_s = recorded.lines[0].at_s
        for line in recorded.lines:
            again.advance(line.at_s - before_s + 0.0001)
            before_s = line.at_s
            expected = (line.status, line.etag, line.headers["Date"], line.raw) if line.status else (line.failure,)
            assert met(again.endpoint) == expected
        again.advance(hours=1)
        assert met(again.endpoint)[3] == recorded.lines[-1].raw  # after the last line the last document stays
    assert [line.status or line.failure for line in recorded.lines][-3:] == [410, 200, 200]


def test_every_byte_of_a_body_is_as_it_was(tmp_path: Path) -> None:
    """Fields nobody knows, spacing, the order of keys and what is no text or no document at all."""
    odd = '{ "Events" : [ {"EventStatus":"Dreaming", "Unheard":{"Of":[null,1.50]}} ],"DocumentIncarnation":"\u00fc" }'
    broken = b'{"DocumentIncarnation":\xff'
    shapeless = '{"DocumentIncarnation":3,"Events":[7,{"EventId":4}]}'
    lines = (
        said(0, odd),
        {"at_s": 1, "status": 200, "body_base64": base64.b64encode(broken).decode()},
        said(2, shapeless),
    )
    with Emulator(replay=file_of(tmp_path, *lines)) as emulator:
        assert ask(emulator.endpoint).raw == odd.encode()
        emulator.advance(1)
        assert ask(emulator.endpoint).raw == broken
        emulator.advance(1)
        assert ask(emulator.endpoint).raw == shapeless.encode()
        assert [r.incarnation for r in emulator.requests()] == [None, None, 3]


def test_tags_long_polls_and_checks_are_the_endpoints(tmp_path: Path) -> None:
    """A recorded tag is sent and answered with 304, a long poll hears of the next line; where there was no tag there is none."""
    path = file_of(
        tmp_path, said(0, document(1), 'W/"one"'), said(60, document(2, event()), '"two"'), said(90, document(3))
    )
    with Emulator(replay=path) as emulator:
        endpoint = emulator.endpoint
        emulator.advance(hours=1)  # nobody has asked: it has not begun
        first = ask(endpoint)
        assert first.headers["etag"] == 'W/"one"'
        tagged = {**METADATA, "If-None-Match": first.headers["etag"]}
        same = ask(endpoint, headers=tagged)
        assert (same.status, same.headers["etag"], same.raw) == (304, 'W/"one"', b"")
        asked = emulator.log.last_number
        changed = in_thread(lambda: ask(endpoint, headers={**tagged, "Prefer": "wait=60"}, timeout_s=PATIENCE_S))
        assert emulator.log.wait(lambda requests: True if len(requests) > asked else None, PATIENCE_S)
        emulator.advance(60)
        assert (changed().raw, changed_tag(emulator)) == (document(2, event()).encode(), '"two"')
        emulator.advance(45)
        last = ask(endpoint, headers={**METADATA, "If-None-Match": '"two"'})
        assert (last.status, "etag" in last.headers) == (200, False)
        assert last.headers["date"] == "Mon, 19 Sep 2016 18:00:15 GMT"  # recorded, and fifteen seconds on
        assert ask(endpoint, headers={}).status == 400
        assert ask(endpoint, "PUT").status == 405


def changed_tag(emulator: Emulator) -> str:
    return ask(emulator.endpoint).headers["etag"]


def test_another_version_is_refused(tmp_path: Path) -> None:
    """A recording has the one that was asked for; it is named, and no other is made up."""
    path = file_of(tmp_path, said(0, document(1)), head={"api_version": "2019-08-01"})
    with Emulator(replay=path) as emulator:
        reply = ask(emulator.endpoint)
        assert (reply.status, reply.json["newest-versions"]) == (400, ["2019-08-01"])
        assert "The recording is of api-version 2019-08-01" in reply.json["error"]
        assert approve(emulator.endpoint, EVENT).status == 400
        asked = DOCUMENT.replace("2020-07-01", "2019-08-01")
        assert ask(emulator.endpoint, path=asked).raw == document(1).encode()


def test_approvals_are_taken_and_change_nothing(tmp_path: Path) -> None:
    """Of events that were shown, also when they are gone again; expectations and the log know them, an unknown id is refused."""
    path = file_of(
        tmp_path, said(0, document(1)), said(60, document(2, event())), said(120, document(3)), head={"machine": "db-7"}
    )
    with Emulator(replay=path) as emulator:
        endpoint, operator = emulator.endpoint, emulator.operator_url
        assert emulator.machine_names() == ["emulated/db-7"]
        client = Client(endpoint)
        assert client.me().name == "db-7"
        client.close()
        ask(endpoint)
        assert approve(endpoint, EVENT).status == 400
        emulator.advance(60)
        before = ask(endpoint).raw
        assert approve(endpoint, EVENT.lower()).status == 200
        assert approve(endpoint, EVENT, "BBBBBBBB-0000-4000-8000-000000000001").status == 400
        assert ask(endpoint).raw == before
        emulator.wait_seen(EVENT, by="db-7", status="Scheduled")
        emulator.expect_approval(EVENT, times=1)
        expected = {"what": "approval", "event": EVENT, "times": 1, "within_s": 0}
        assert ask(
            operator, "POST", "/v1/emulator/expect", expected, headers={"Content-Type": "application/json"}
        ).json["passed"]
        never = {**expected, "event": "BBBBBBBB-0000-4000-8000-000000000001"}
        assert (
            ask(operator, "POST", "/v1/emulator/expect", never, headers={"Content-Type": "application/json"}).status
            == 404
        )
        emulator.advance(60)
        assert approve(endpoint, EVENT).status == 200


def test_an_operator_changes_nothing_of_what_is_shown(tmp_path: Path) -> None:
    """The recording alone is served: scheduling is refused, and what the API schedules all the same is not shown."""
    with Emulator(replay=file_of(tmp_path, said(0, document(7)))) as emulator:
        assert ask(emulator.endpoint).raw == document(7).encode()
        with pytest.raises(Refused, match="shows the recording alone"):
            emulator.schedule("Reboot", "vm-0")
        asked = {"type": "Reboot", "targets": {"machines": ["vm-0"]}}
        headers = {"Content-Type": "application/json"}
        assert ask(emulator.operator_url, "POST", "/v1/maintenances", asked, headers=headers).status == 201
        assert ask(emulator.endpoint).raw == document(7).encode()


@pytest.mark.parametrize(
    ("failing", "meets"),
    [
        (GONE, (410, "", b'{"error":"gone"}')),
        ({"at_s": 60, "status": 502, "body": "<html>"}, (502, "", b"<html>")),
        ({"at_s": 60, "failure": "cut"}, ("cut",)),
        ({"at_s": 60, "failure": "unreachable"}, ("unreachable",)),
        ({"at_s": 60, "failure": "no-answer"}, ("no-answer",)),
    ],
)
def test_failures_last_until_the_next_line(failing: dict[str, Any], meets: tuple[object, ...], tmp_path: Path) -> None:
    """Who waits for news meets the failure, who asks meanwhile meets it too, and then the document is back."""
    path = file_of(tmp_path, said(0, document(1), '"1"'), failing, said(61, document(1), '"1"'))
    with Emulator(replay=path) as emulator:
        endpoint = emulator.endpoint
        ask(endpoint)
        asked, waits = emulator.log.last_number, {**METADATA, "If-None-Match": '"1"', "Prefer": "wait=60"}
        waiting = in_thread(
            lambda: met(endpoint, headers=waits, timeout_s=PATIENCE_S if meets != ("no-answer",) else 0.5)
        )
        assert emulator.log.wait(lambda requests: True if len(requests) > asked else None, PATIENCE_S)
        emulator.advance(60)
        for outcome in (waiting(), met(endpoint, timeout_s=PATIENCE_S if meets != ("no-answer",) else 0.2)):
            assert (outcome if len(outcome) == 1 else (*outcome[:2], outcome[3])) == meets
        if failing is GONE:
            assert ask(endpoint).headers["retry-after"] == "7"
            assert approve(endpoint, EVENT).status == 410
        emulator.advance(1)
        assert ask(endpoint).raw == document(1).encode()


def test_on_a_fast_clock_it_goes_on_by_itself(tmp_path: Path) -> None:
    """An hour in a moment; it begins when a machine first asks, however late that is."""
    path = file_of(tmp_path, said(5, document(1), '"1"'), said(3605, document(2, event()), '"2"'))
    with Emulator(replay=path, clock="20000x") as emulator:
        emulator.advance(hours=5)
        client = Client(emulator.endpoint)
        seen = client.watch()
        assert [next(seen).incarnation, next(seen).incarnation] == ["1", "2"]
        client.close()


def test_failures_are_written_down_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody there and no answer in time; the same failure again is no news."""
    monkeypatch.setattr("forewarn.guest.client.FIRST_ANSWER_TIMEOUT_S", 0.2)

    class Stalling(Emulator):
        """Stalls two requests. From the second on a client waits for its answer as long as that takes."""

        def _choose_fault(self, machine: str, method: str) -> Fault | None:
            if self.log.last_number >= 2:
                monkeypatch.setattr("forewarn.guest.client.FIRST_ANSWER_TIMEOUT_S", PATIENCE_S)
            return Fault(kind="stall") if self.log.last_number <= 2 else super()._choose_fault(machine, method)

    bound = socket.socket()  # not listening: the port is ours, and nobody is there
    bound.bind((own_loopback_address(), 0))
    host, port = bound.getsockname()
    address = f"{host}:{port}"
    with recording(f"http://{address}", io.BytesIO()) as next_line:
        assert next_line().failure == "unreachable"
        bound.close()
        with Stalling(guest=address, faults=[{"fault": "bad-json"}]) as emulator:
            assert next_line().failure == "no-answer"
            unreadable = next_line()
            assert (unreadable.status, unreadable.raw[-1:]) == (200, b",")
            emulator.set_faults(())
            assert next_line().raw == b'{"DocumentIncarnation":1,"Events":[]}'


def test_a_scrubbed_recording_has_no_name_in_it(tmp_path: Path) -> None:
    """Machines, ids, descriptions and whatever stands in unknown fields; the same name is the same stand-in throughout."""
    other = {**event(), "EventId": EVENT.replace("1", "2"), "Resources": ["db-7", "web-3"]}
    lines: tuple[dict[str, Any], ...] = (
        said(0, document(1, event(Description="ask Smith", Rack={"owner-smith": "web-3"}), Cluster="north"), '"smith"'),
        said(60, document(2, event("Started", NotBefore=""), other), '"2"'),
        {"at_s": 90, "status": 503, "body": '{"error":"db-7 is unwell"}'},
        {"at_s": 95, "status": 500, "body": "<p>db-7</p>"},
    )
    file, at_s, path = io.BytesIO(), 0, file_of(tmp_path, *lines, head={"machine": "db-7"})
    with Emulator(replay=path) as emulator, recording(emulator.endpoint, file, scrub=True) as next_line:
        next_line()
        for line in lines[1:]:
            emulator.advance(line["at_s"] - at_s)
            at_s = line["at_s"]
            next_line()
    text = file.getvalue().decode()
    assert not [name for name in ("smith", "db-7", "web-3", "north", EVENT, "127.0.0.1") if name in text.casefold()]
    (tmp_path / "scrubbed.jsonl").write_text(text)
    scrubbed = read_recording(tmp_path / "scrubbed.jsonl")
    assert (scrubbed.head.machine, scrubbed.head.endpoint, scrubbed.head.scrubbed) == ("machine-0", "", True)
    first, second = (json.loads(line.raw) for line in scrubbed.lines[:2])
    assert first["Events"][0]["Resources"] == ["machine-0"]
    assert first["Events"][0]["Description"] == "description-0"
    assert [each["EventId"] for each in second["Events"]] == [
        first["Events"][0]["EventId"],
        "00000000-0000-4000-8000-000000000001",
    ]
    assert second["Events"][0]["EventStatus"] == "Started"
    # web-3 was first met in a field nobody knows, and is the same name where it is a machine's.
    assert second["Events"][1]["Resources"] == ["machine-0", *first["Events"][0]["Rack"].values()]
    assert scrubbed.lines[3].raw == b"(scrubbed)"


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"\xff\xfe", b'"vm-7"', b'{"Events":"vm-7","vm":{"vm-7":["vm-7"]}}', b"vm-7"]
)
def test_whatever_came_is_scrubbed(body: bytes) -> None:
    """What is no document, or no JSON, has no name left either."""
    line = Scrubber().line(Line(at_s=0, status=200, **recording_file.body_fields(body)))  # type: ignore[arg-type]
    assert b"vm-7" not in line.raw
    assert len(line.raw) < 100


def process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "forewarn", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    """What was told of is in the file, which can be replayed; a half-written last line is left out."""
    path = tmp_path / "recording.jsonl"
    with Emulator(seed=1) as emulator:
        recorder = process("record", "--endpoint", emulator.endpoint, "--output", str(path))
        try:
            assert recorder.stderr is not None
            assert "200" in recorder.stderr.readline()
            emulator.schedule("Reboot", "vm-0")
            assert "200" in recorder.stderr.readline()
        finally:
            recorder.kill()
            recorder.communicate(timeout=PATIENCE_S)
        assert not emulator.requests(method="POST")
    whole = read_recording(path)
    assert [len(line.event_ids) for line in whole.lines] == [0, 1]
    path.write_bytes(path.read_bytes()[:-20])
    assert read_recording(path).lines == whole.lines[:1]
    with Emulator(replay=path) as again:
        assert ask(again.endpoint).raw == whole.lines[0].raw


def test_it_ends_when_told_to(tmp_path: Path) -> None:
    """SIGTERM in the middle of a long poll ends it with 0 and a sentence, `--for` with its own."""
    path = tmp_path / "recording.jsonl"
    with Emulator(seed=1) as emulator:
        recorder = process("record", "--endpoint", emulator.endpoint, "--output", str(path))
        timed = process("record", "--endpoint", emulator.endpoint, "--for", "1s", "--scrub")
        try:
            assert recorder.stderr is not None
            recorder.stderr.readline()
            recorder.send_signal(signal.SIGTERM)
            told = recorder.communicate(timeout=PATIENCE_S)[1]
            written, timed_told = timed.communicate(timeout=PATIENCE_S)
        finally:
            for each in (recorder, timed):
                each.kill()
                each.wait(PATIENCE_S)
        assert (recorder.returncode, timed.returncode) == (0, 0)
    assert told == f"recorded 1 line(s) to {path}: it was stopped\n"
    assert timed_told.endswith("to standard output: the time is up\n")
    assert all(json.loads(line).get("scrubbed", True) for line in written.splitlines())
    assert len(read_recording(path).lines) == 1


def test_the_command_replays(tmp_path: Path) -> None:
    """It prints where to ask and with which version, then each line as it comes to it."""
    path = file_of(tmp_path, said(0, document(1)), said(60, document(2, event())), head={"api_version": "2019-08-01"})
    emulating = process("emulate", "--port", "0", "--clock", "manual", "--replay", str(path))
    try:
        assert emulating.stdout is not None
        ready, _, _, curl, replays = (emulating.stdout.readline() for _ in range(5))
        endpoint, operator = (part.partition("=")[2] for part in ready.split()[1:])
        assert replays == f"# replays {path} for emulated/vm-0, beginning with the first poll\n"
        assert ask(endpoint, path=curl.split("'")[1].removeprefix(endpoint)).raw == document(1).encode()
        assert emulating.stdout.readline().startswith("+0s")
        moved = ask(
            operator, "POST", "/v1/clock/advance", {"seconds": 60}, headers={"Content-Type": "application/json"}
        )
        assert moved.status == 200
        assert emulating.stdout.readline().startswith("+1m")
        assert "ends here" in emulating.stdout.readline()
    finally:
        emulating.kill()
        emulating.communicate(timeout=PATIENCE_S)


LINE = '{"at_s":1,"status":200,"body":"{}"}\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "0 whole line(s)"),
        (json.dumps(HEAD) + "\n", "1 whole line(s)"),
        (LINE * 2, "line 1: "),
        (json.dumps({**HEAD, "forewarn_recording": 2}) + "\n" + LINE, "line 1: format 2 is not known"),
        (json.dumps({**HEAD, "api_version": "latest"}) + "\n" + LINE, "line 1: api_version 'latest' is not one of"),
        (json.dumps({**HEAD, "machine": "../x\n"}) + "\n" + LINE, "line 1: "),
        ("[" * 100_000 + "\n" + LINE, "line 1: "),
    ],
)
def test_a_broken_beginning_is_told(text: str, complaint: str, tmp_path: Path) -> None:
    """With the file, the line and what is wrong."""
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidSettings) as error:
        Emulator(replay=path)
    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "malformed"),
        ('{"at_s":0.5,"status":200}', "at_s 0.5 is earlier"),
        ('{"at_s":-1,"status":200}', "at_s"),
        ('{"at_s":1e999,"status":200}', "out of range"),
        ('{"at_s":NaN,"status":200}', "malformed"),
        ('{"at_s":2}', "either a status or a failure"),
        ('{"at_s":2,"status":200,"failure":"cut"}', "either a status or a failure"),
        ('{"at_s":2,"failure":"sulk"}', "Invalid enum value"),
        ('{"at_s":2,"failure":"cut","body":"x"}', "no headers and no body"),
        ('{"at_s":2,"status":304}', "status 304"),
        ('{"at_s":2,"status":100}', "status"),
        ('{"at_s":2,"status":200,"headers":{"ETag":"a\\r\\nX: y"}}', "header ETag"),
        ('{"at_s":2,"status":200,"headers":{"Set-Cookie":"a"}}', "header 'Set-Cookie'"),
        ('{"at_s":2,"status":200,"headers":{"Date":"soon"}}', "Date 'soon'"),
        ('{"at_s":2,"status":200,"body":"x","body_base64":"eA=="}', "one body"),
        ('{"at_s":2,"status":200,"body_base64":"?"}', "base64"),
        ('{"at_s":2,"status":200,"surprise":1}', "surprise"),
        (json.dumps({"at_s": 2, "status": 200, "body": "x" * (1024 * 1024 + 1)}), "at most 1048576 bytes"),
    ],
)
def test_a_broken_line_is_told(line: str, complaint: str, tmp_path: Path) -> None:
    """With its number, whatever it holds; nothing of it reaches a guest."""
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(HEAD) + "\n" + LINE + line + "\n")
    with pytest.raises(InvalidSettings) as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path}: line 3: ")
    assert complaint in str(error.value)


def test_a_recording_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bytes and of lines, for whoever reads it and whoever writes it."""
    path = file_of(tmp_path, said(0, document(1)), said(1, document(2)))
    monkeypatch.setattr(recording_file, "MAX_LINES", 1)
    with pytest.raises(InvalidSettings, match="1 to 1 others: this has 3"):
        read_recording(path)
    monkeypatch.setattr(recording_file, "MAX_FILE_BYTES", 20)
    with pytest.raises(InvalidSettings, match="larger than 20 bytes"):
        read_recording(path)
    monkeypatch.setattr("forewarn.testing.recorder.MAX_LINES", 1)
    over: SimpleQueue[str] = SimpleQueue()
    file = io.BytesIO()
    with Emulator(seed=1, faults=[{"fault": "status", "status": 503, "requests": "2-"}]) as emulator:
        Recorder(emulator.endpoint, file, over=over.put).start()
        assert over.get(timeout=PATIENCE_S) == ""
    assert len(file.getvalue().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("emulate", "--replay", "x", "--machines", "1"), "leave out --machines"),
        (("emulate", "--replay", "x", "--fleet", "x"), "leave out --fleet"),
        (("emulate", "--replay", "x", "--scenario", "x"), "leave out --scenario"),
        (("emulate", "--replay", "no-such.jsonl"), "no-such.jsonl: cannot be read"),
        (("record", "--endpoint", "https://x/y"), "is no endpoint"),
        (("record", "--api-version", "latest"), "--api-version: 'latest'"),
        (("record", "--for", "ever"), "'ever' is not a duration"),
        (("record", "--output", "no/such/folder"), "no/such/folder: cannot be written"),
        (("record", "--output", __file__), f"{__file__}: the file exists"),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that says what was wrong."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(sys, "argv", ["forewarn", *arguments])
    try:
        with pytest.raises(SystemExit) as ended:
            run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_other_machines_have_no_part_in_a_replay(tmp_path: Path) -> None:
    """A recording is what one machine saw."""
    with pytest.raises(Invalid, match="leave out other machines"):
        Emulator(2, replay=file_of(tmp_path, said(0, document(1))))
