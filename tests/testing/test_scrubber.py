"""Scrubbed recordings contain no names."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from forewarn.testing.emulator import Emulator
from forewarn.testing.recording_file import Line, body_fields, read_recording
from forewarn.testing.scrubber import Scrubber
from tests.testing.recordings import EVENT, answer, document, event, recording, write_recording


def test_a_scrubbed_recording_has_no_names(tmp_path: Path) -> None:
    """Machines, ids, descriptions and text in unknown fields are replaced. The same name gets the same replacement."""
    other = {**event(), "EventId": EVENT.replace("1", "2"), "Resources": ["db-7", "web-3"]}
    lines: tuple[dict[str, Any], ...] = (
        answer(
            0, document(1, event(Description="ask Smith", Rack={"owner-smith": "web-3"}), Cluster="north"), '"smith"'
        ),
        answer(60, document(2, event("Started", NotBefore=""), other), '"2"'),
        {"at_s": 90, "status": 503, "body": '{"error":"db-7 is unwell"}'},
        {"at_s": 95, "status": 500, "body": "<p>db-7</p>"},
    )
    file, at_s, path = io.BytesIO(), 0, write_recording(tmp_path, *lines, head={"machine": "db-7"})
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
    # web-3 is in an unknown field first, and gets the same replacement as a machine.
    assert second["Events"][1]["Resources"] == ["machine-0", *first["Events"][0]["Rack"].values()]
    assert scrubbed.lines[3].raw == b"(scrubbed)"


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"\xff\xfe", b'"vm-7"', b'{"Events":"vm-7","vm":{"vm-7":["vm-7"]}}', b"vm-7"]
)
def test_every_body_is_scrubbed(body: bytes) -> None:
    """Bodies that are not documents, or not JSON, have no names either."""
    line = Scrubber().line(Line(at_s=0, status=200, **body_fields(body)))  # type: ignore[arg-type]
    assert b"vm-7" not in line.raw
    assert len(line.raw) < 100
