"""Builders of recordings, and a running recorder."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from forewarn.guest.clock import Time
from forewarn.testing.recorder import Recorder
from forewarn.testing.recording_file import Line
from tests.support.waiting import PATIENCE_S

EVENT = "AAAAAAAA-0000-4000-8000-000000000001"
HEAD = {"forewarn_recording": 1, "api_version": "2020-07-01"}
MAX_PAUSE_S = 0.05


class ShortPauses(Time):
    """Real time, with short pauses between polls and after failures."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, MAX_PAUSE_S))


def document(incarnation: int, *events: dict[str, Any], **more: Any) -> str:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": list(events), **more})


def event(status: str = "Scheduled", **more: Any) -> dict[str, Any]:
    return {"EventId": EVENT, "EventStatus": status, "EventType": "Reboot", "Resources": ["db-7"], **more}


def answer(at_s: float, body: str, etag: str = "", date: str = "Mon, 19 Sep 2016 18:00:00 GMT") -> dict[str, Any]:
    headers = {"Date": date, **({"ETag": etag} if etag else {})}
    return {"at_s": at_s, "status": 200, "headers": headers, "body": body}


def write_recording(folder: Path, *lines: dict[str, Any], head: dict[str, Any] | None = None) -> Path:
    path = folder / "recording.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ({**HEAD, **(head or {})}, *lines)), "utf-8")
    return path


@contextmanager
def recording(endpoint: str, file: io.BytesIO | Any, *, scrub: bool = False) -> Iterator[Callable[[], Line]]:
    """Run a recorder; yield a function that waits for its next line."""
    lines: SimpleQueue[Line] = SimpleQueue()
    recorder = Recorder(
        endpoint, file, scrub=scrub, on_line=lines.put, on_end=lambda why: pytest.fail(why), time=ShortPauses()
    )
    recorder.start()
    try:
        yield lambda: lines.get(timeout=PATIENCE_S)
    finally:
        recorder.stop()


def start_forewarn(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "forewarn", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
