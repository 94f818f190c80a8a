"""The journal: complete lines only, one agent at a time, and a state that follows from the records alone."""

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forewarn.guest.errors import JournalError, JournalInUse
from forewarn.guest.journal import Journal, in_use, read
from forewarn.guest.state import KINDS, State, fold_records
from tests.guest.in_process_agent import AgentHarness, step
from tests.support.fake_endpoint import E1


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    """Records come back in order, dated."""
    journal = Journal(tmp_path / "state")
    for number in range(3):
        journal.append({"kind": "note", "number": number, "text": "ä\ud800"})
    journal.close()
    again = Journal(tmp_path / "state")
    assert [record["number"] for record in again.records] == [0, 1, 2]
    assert again.records[0]["text"] == "ä\ud800"
    assert all(record["at"].endswith("Z") for record in again.records)
    again.close()


@pytest.mark.posix
def test_only_its_owner_may_read_the_journal(tmp_path: Path) -> None:
    """The file and its folder have no rights for others."""
    journal = Journal(tmp_path / "state")
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.path.parent.stat().st_mode) == 0o700
    journal.close()


def test_a_record_is_on_the_disk_before_anything_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each append is synced after its bytes are written."""
    sizes: list[int] = []
    really = os.fsync

    def fsync(file: int) -> None:
        sizes.append(os.fstat(file).st_size)
        really(file)

    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    for number in range(3):
        journal.append({"kind": "note", "number": number})
        assert sizes[-1] == journal.path.stat().st_size
    assert len(sizes) == 3
    journal.close()


def test_an_append_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the earlier records stay, and the next line is complete."""
    journal = Journal(tmp_path)
    journal.append({"kind": "first"})
    really, room = os.write, [10]

    def write(file: int, data: bytes) -> int:
        if not room:
            raise OSError(28, "No space left on device")
        return really(file, data[: room.pop()])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(JournalError, match="cannot be written: No space left"):
        journal.append({"kind": "lost"})
    monkeypatch.undo()
    journal.append({"kind": "next"})
    assert [record["kind"] for record in read(journal.path)[0]] == ["first", "next"]
    journal.close()


def test_a_journal_that_fails_within_a_step_ends_the_agent(tmp_path: Path) -> None:
    """The step has not failed; the next agent does it when there is room again."""

    class FullJournal(Journal):
        def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
            if record["kind"] == "child":
                raise JournalError("the disk is full")
            return super().append(record)

    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"), journal_type=FullJournal)
    harness.endpoint.announce()
    with pytest.raises(JournalError):
        harness.run()
    assert "end" not in harness.kinds
    assert not harness.actions
    harness.journal_type = Journal
    harness.restart()
    harness.run()
    assert harness.actions == ["prepare one"]
    assert harness.endpoint.approved == [E1]


@pytest.mark.parametrize("torn", [b"{", b'{"at":"","kind":"appro', b'{"kind":"approved","ids":[]}'])
def test_an_incomplete_last_line_is_cut_off(tmp_path: Path, torn: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that follows such a line can have happened, because it was not synced."""
    journal = Journal(tmp_path)
    journal.append({"kind": "seen"})
    with journal.path.open("ab") as file:
        file.write(torn)
    journal.close()
    again = Journal(tmp_path)
    assert [record["kind"] for record in again.records] == ["seen"]
    again.append({"kind": "next"})
    assert [record["kind"] for record in read(again.path)[0]] == ["seen", "next"]
    again.close()
    assert "incomplete" in caplog.text


def test_an_unreadable_line_is_ignored_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A machine must return to service even with a damaged disk."""
    (tmp_path / "journal.jsonl").write_bytes(b'{"kind":"a"}\n\x00\x00\n[1]\n{"kind":"b"}\n')
    with caplog.at_level(logging.ERROR):
        assert [record["kind"] for record in read(tmp_path / "journal.jsonl")[0]] == ["a", "b"]
    assert "line 2" in caplog.text
    assert "line 3" in caplog.text


def test_records_are_not_kept_in_memory(tmp_path: Path) -> None:
    """The agent does not keep the records in memory: a large journal takes many megabytes as records."""
    journal = Journal(tmp_path)
    journal.append({"kind": "note", "text": "x" * 1_000})
    journal.close()
    again = Journal(tmp_path)
    assert [record["kind"] for record in again.records] == ["note"]
    assert not any(isinstance(value, (list, dict, bytes)) for value in vars(again).values())
    again.close()


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    """A second agent would do everything twice."""
    assert not in_use(tmp_path)
    first = Journal(tmp_path)
    assert in_use(tmp_path)
    with pytest.raises(JournalInUse, match="another agent uses"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


def test_a_large_journal_is_compacted(tmp_path: Path) -> None:
    """It begins anew with the state, and the previous journal is kept."""
    journal = Journal(tmp_path, max_bytes=100)
    assert not journal.is_large()
    journal.append({"kind": "old", "text": "x" * 100})
    assert journal.is_large()
    journal.compact({"kind": "state"})
    assert not journal.is_large()
    journal.append({"kind": "new"})
    journal.close()
    assert [record["kind"] for record in read(journal.path)[0]] == ["state", "new"]
    assert [record["kind"] for record in read(tmp_path / "journal.1.jsonl")[0]] == ["old"]


def test_a_record_of_a_later_version_is_ignored() -> None:
    """It changes nothing but the version of the state."""
    state = fold_records([{"kind": "something new", "x": 1}, {"no": "kind"}])
    assert state.quiet
    assert state.version == 2
    assert fold_records([{"kind": "still", "id": "never seen"}, {"kind": "begin"}]).damaged == 2
    assert "start" in KINDS
    assert State().quiet
