"""The file format of recordings: errors are found with their line, and limits apply."""

import io
import json
from pathlib import Path
from queue import SimpleQueue

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.testing.emulator import Emulator
from forewarn.testing.recorder import Recorder
from forewarn.testing.recording_file import MAX_BODY_BYTES, read_recording
from tests.support.waiting import PATIENCE_S
from tests.testing.recordings import HEAD, answer, document, write_recording

LINE = '{"at_s":1,"status":200,"body":"{}"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 whole line(s)"),
        (json.dumps(HEAD) + "\n", "1 whole line(s)"),
        (LINE * 2, "line 1: "),
        (json.dumps({**HEAD, "forewarn_recording": 2}) + "\n" + LINE, "line 1: format 2 is unknown"),
        (json.dumps({**HEAD, "api_version": "latest"}) + "\n" + LINE, "line 1: api_version 'latest' is not one of"),
        (json.dumps({**HEAD, "machine": "../x\n"}) + "\n" + LINE, "line 1: "),
        ("[" * 100_000 + "\n" + LINE, "line 1: "),
    ],
)
def test_a_wrong_first_line_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """The message has the file, the line and the reason."""
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidSettings) as error:
        Emulator(replay=path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
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
        (json.dumps({"at_s": 2, "status": 200, "body": "x" * (MAX_BODY_BYTES + 1)}), f"at most {MAX_BODY_BYTES} bytes"),
    ],
)
def test_a_wrong_line_is_refused(line: str, message: str, tmp_path: Path) -> None:
    """The message has the number of the line and the reason."""
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps(HEAD) + "\n" + LINE + line + "\n")
    with pytest.raises(InvalidSettings) as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path}: line 3: ")
    assert message in str(error.value)


def test_a_recording_has_limits(tmp_path: Path) -> None:
    """The reader refuses too many bytes or lines, and the recorder ends when it has reached the limit."""
    path = write_recording(tmp_path, answer(0, document(1)), answer(1, document(2)))
    with pytest.raises(InvalidSettings, match="1 to 1 others: this has 3"):
        read_recording(path, max_lines=1)
    with pytest.raises(InvalidSettings, match="larger than 20 bytes"):
        read_recording(path, max_bytes=20)
    ends: SimpleQueue[str] = SimpleQueue()
    file = io.BytesIO()
    with Emulator(seed=1, faults=[{"fault": "status", "status": 503, "requests": "2-"}]) as emulator:
        Recorder(emulator.endpoint, file, on_end=ends.put, max_lines=1).start()
        assert ends.get(timeout=PATIENCE_S) == ""
    assert len(file.getvalue().splitlines()) == 2
