"""The recorder: it writes failures and changes, survives a kill, and ends in order."""

import io
import json
import signal
import socket
from pathlib import Path

import pytest

from forewarn.testing.emulator import Emulator
from forewarn.testing.faults import Fault
from forewarn.testing.recording_file import read_recording
from tests.addresses import own_loopback_address
from tests.support.fake_endpoint import http_server, respond
from tests.support.waiting import PATIENCE_S
from tests.testing.http_guest import send
from tests.testing.recordings import document, recording, start_forewarn


def test_failures_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder writes a line when no endpoint listens and when no answer comes, and no line if the failure continues."""
    monkeypatch.setattr("forewarn.guest.client.FIRST_ANSWER_TIMEOUT_S", 0.2)

    class Stalling(Emulator):
        """Stalls two requests. After the second one the client waits for an answer as long as needed."""

        def _choose_fault(self, machine: str, method: str, path: str) -> Fault | None:
            if self.log.last_number >= 2:
                monkeypatch.setattr("forewarn.guest.client.FIRST_ANSWER_TIMEOUT_S", PATIENCE_S)
            return Fault(kind="stall") if self.log.last_number <= 2 else super()._choose_fault(machine, method, path)

    bound = socket.socket()  # bound but not listening, so connections are refused
    bound.bind((own_loopback_address(), 0))
    host, port = bound.getsockname()
    address = f"{host}:{port}"
    with recording(f"http://{address}", io.BytesIO()) as next_line:
        assert next_line().failure == "unreachable"
        bound.close()
        with Stalling(guest=address, faults=[{"fault": "bad-json"}]) as emulator:
            assert next_line().failure == "no-answer"
            bad_json = next_line()
            assert (bad_json.status, bad_json.raw[-1:]) == (200, b",")
            emulator.set_faults(())
            assert next_line().raw == b'{"DocumentIncarnation":1,"Events":[]}'


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {"Connection": "keep-alive"}])
def test_a_closed_connection_is_recorded(headers: dict[str, str]) -> None:
    """Other values of the header are not."""
    with (
        http_server(lambda handler, _: respond(handler, 200, document(1).encode(), **headers)) as endpoint,
        recording(endpoint, io.BytesIO()) as next_line,
    ):
        assert next_line().closes == (headers["Connection"] == "close")


def test_a_name_may_be_given(tmp_path: Path) -> None:
    """It is the machine of the recording, also if the endpoint gives no name; the replay gives it to guests."""
    path = tmp_path / "recording.jsonl"
    with Emulator(faults=[{"fault": "status", "status": 404, "path": "/metadata/instance"}]) as emulator:
        recorder = start_forewarn("record", "--endpoint", emulator.endpoint, "--output", str(path), "--name", "web-7")
        assert recorder.stderr is not None
        assert "200" in recorder.stderr.readline()
        recorder.terminate()
        recorder.communicate(timeout=PATIENCE_S)
        assert not [r for r in emulator.requests() if "instance" in r.target]
    assert read_recording(path).head.machine == "web-7"
    with Emulator(replay=path) as emulator:
        assert send(emulator.endpoint, path="/metadata/instance/compute/name?api-version=2020-07-01").json == "web-7"
    refused = start_forewarn("record", "--name", "web 7")
    assert "--name: 'web 7' is not a name of a machine" in refused.communicate(timeout=PATIENCE_S)[1]
    assert refused.returncode == 2


def test_a_kill_loses_no_line(tmp_path: Path) -> None:
    """Every printed line is in the file, which can be replayed. An incomplete last line is ignored."""
    path = tmp_path / "recording.jsonl"
    with Emulator(seed=1) as emulator:
        recorder = start_forewarn("record", "--endpoint", emulator.endpoint, "--output", str(path))
        try:
            assert recorder.stderr is not None
            assert "200" in recorder.stderr.readline()
            emulator.schedule("Reboot", "vm-0")
            assert "200" in recorder.stderr.readline()
        finally:
            recorder.kill()
            recorder.communicate(timeout=PATIENCE_S)
        assert not emulator.requests(method="POST")
    complete = read_recording(path)
    assert [len(line.event_ids) for line in complete.lines] == [0, 1]
    path.write_bytes(path.read_bytes()[:-20])
    assert read_recording(path).lines == complete.lines[:1]
    with Emulator(replay=path) as emulator:
        assert send(emulator.endpoint).raw == complete.lines[0].raw


def test_a_signal_or_a_time_limit_ends_the_recording(tmp_path: Path) -> None:
    """SIGTERM during a long poll and `--for` end it with exit code 0 and print the reason."""
    path = tmp_path / "recording.jsonl"
    with Emulator(seed=1) as emulator:
        recorder = start_forewarn("record", "--endpoint", emulator.endpoint, "--output", str(path))
        timed = start_forewarn("record", "--endpoint", emulator.endpoint, "--for", "1s", "--scrub")
        try:
            assert recorder.stderr is not None
            recorder.stderr.readline()
            recorder.send_signal(signal.SIGTERM)
            reason = recorder.communicate(timeout=PATIENCE_S)[1]
            recorded, timed_reason = timed.communicate(timeout=PATIENCE_S)
        finally:
            for each in (recorder, timed):
                each.kill()
                each.wait(PATIENCE_S)
        assert (recorder.returncode, timed.returncode) == (0, 0)
    assert reason == f"recorded 1 line(s) to {path}: it was stopped\n"
    assert timed_reason.endswith("to standard output: the time is up\n")
    assert all(json.loads(line).get("scrubbed", True) for line in recorded.splitlines())
    assert len(read_recording(path).lines) == 1
