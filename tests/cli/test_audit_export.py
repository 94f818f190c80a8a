"""`forewarn audit verify FILE`, run inside this process: it needs no server, and says which line of the file is wrong."""

import json
from pathlib import Path

import pytest

from tests.support.commands import run_here

CHAIN = '{"chain": {"start": {"id": 0, "hash": ""}, "head": {"id": 1, "hash": "0"}}}'
TEXTS = ("who", "action", "origin", "scope", "maintenance_id", "event_id", "detail", "hash")
ENTRY = json.dumps({"id": 1, "at": "2030-01-01T00:00:00Z", **dict.fromkeys(TEXTS, "x")})
NO_FIRST_LINE = "line 1: this is not the first line of an export, which has the start and the head"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], NO_FIRST_LINE),
        ([ENTRY], NO_FIRST_LINE),
        ([CHAIN.replace("head", "tail"), ENTRY], NO_FIRST_LINE),
        (["[]"], NO_FIRST_LINE),
        ([CHAIN, ENTRY, "{broken"], "line 3: this is not JSON: Expecting property name"),
        ([CHAIN, "", ENTRY], "line 2: this is not JSON: Expecting value"),
        ([CHAIN, "[]"], "line 2: this is not an entry: it has no keys"),
        ([CHAIN, ENTRY.replace('"who"', '"whom"')], "line 2: the entry has no 'who'"),
        ([CHAIN, ENTRY.replace('"who"', '"whom": 1, "who"')], "line 2: 'whom' is not a key of an entry"),
        ([CHAIN, ENTRY.replace('"id": 1', '"id": 1.5')], "line 2: id: 1.5 is not a whole number"),
        ([CHAIN, ENTRY.replace('"x"', "null", 1)], "line 2: who: None is not text"),
        ([CHAIN, ENTRY.replace("2030", "soon")], "line 2: Invalid isoformat string"),
        ([CHAIN, ENTRY], "the audit is not what was written: entry 1 was changed"),
    ],
)
def test_what_is_wrong_with_an_export_is_named(
    lines: list[str], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file and the line, and without a word about a server."""
    file = tmp_path / "audit.jsonl"
    file.write_text("\n".join(lines))
    error = failure_of(file)
    assert (f"{file}: {fault}" if fault.startswith("line") else fault) in error
    assert "server" not in error


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that does not exist, and one that is not text."""
    file = tmp_path / "audit.jsonl"
    assert f"{file} cannot be read: " in failure_of(file)
    file.write_bytes(b"\xff")
    assert f"{file} cannot be read: " in failure_of(file)


def failure_of(file: Path) -> str:
    """Verify the file, which must fail; return standard error."""
    done = run_here("audit", "verify", str(file))
    assert done.returncode == 1
    return done.stderr
