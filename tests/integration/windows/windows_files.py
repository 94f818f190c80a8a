"""Files on Windows: who may change them, how they are replaced, what the agent leaves behind."""

import ctypes
import sys
from pathlib import Path

import pytest

assert sys.platform == "win32"

from forewarn.guest.config import load
from forewarn.guest.config_values import read_secret
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.journal import Journal
from forewarn.guest.safe_files import replace_file
from forewarn.guest.system import system, windows_api, windows_files

OPEN_TO_ALL = "D:P(A;OICI;FA;;;WD)"
READABLE_BY_ALL = "D:P(A;;FA;;;{user})(A;;FR;;;WD)"
PRIVATE = "D:P(A;;FA;;;{user})"


def with_access(path: Path, access: str) -> Path:
    """Give the file or folder this access list."""
    descriptor = ctypes.c_void_p()
    sddl = access.format(user=windows_files.user_of_this_process())
    windows_api.require(windows_api.string_to_security_descriptor(sddl, 1, ctypes.byref(descriptor), None))
    windows_api.require(ctypes.WinDLL("advapi32").SetFileSecurityW(str(path), 4, descriptor))
    windows_api.local_free(descriptor)
    return path


def new_file(path: Path, access: str, text: str = "") -> Path:
    path.write_text(text)
    return with_access(path, access)


def test_a_new_state_dir_is_private(tmp_path: Path) -> None:
    """Only the agent's user, the system and administrators have rights."""
    Journal(tmp_path / "state").close()
    access = windows_files._access_list_of(tmp_path / "state")
    assert access.owner in system.trusted_users()
    assert {sid for sid, _ in access.allowed} <= set(system.trusted_users())


def test_a_state_dir_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """A forged journal could keep a machine out of service."""
    Journal(tmp_path / "state").close()
    with_access(tmp_path / "state", OPEN_TO_ALL)
    with pytest.raises(ConfigError, match=r"state_dir .* is refused: .* other users \(S-1-1-0\) may write"):
        Journal(tmp_path / "state")


def test_a_configuration_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """It names programs to run; others may read it."""
    load(new_file(tmp_path / "good.toml", READABLE_BY_ALL), {})
    with pytest.raises(ConfigError, match=r"is refused: .* may write .*bad\.toml: take that right away with icacls"):
        load(new_file(tmp_path / "bad.toml", OPEN_TO_ALL), {})


def test_a_folder_on_the_way_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Another user could exchange the file."""
    (tmp_path / "open").mkdir()
    path = new_file(tmp_path / "open" / "file", PRIVATE)
    assert system.others_may_write(path) == ""
    with_access(tmp_path / "open", OPEN_TO_ALL)
    assert "may write" in system.others_may_write(path)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """A private one is read."""
    assert read_secret(str(new_file(tmp_path / "good", PRIVATE, "hush\n"))) == "hush"
    with pytest.raises(StepFailed, match="may read"):
        read_secret(str(new_file(tmp_path / "bad", READABLE_BY_ALL, "hush\n")))


def test_a_file_is_replaced_when_its_reader_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows does not replace a file that is open; after a second the agent gives up and leaves no other file."""
    path = tmp_path / "status.json"
    path.write_text("old")
    with path.open() as reader:
        monkeypatch.setattr(windows_files.time, "sleep", lambda _: reader.close())
        replace_file(path, b"new\n", 0o600)
    assert path.read_bytes() == b"new\n"
    monkeypatch.setattr(windows_files.time, "sleep", lambda _: None)
    with path.open(), pytest.raises(PermissionError):
        replace_file(path, b"newer\n", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_what_a_killed_agent_left_is_removed(tmp_path: Path) -> None:
    """The next agent that writes the file removes it."""
    (tmp_path / ".status.json.00ff.new").write_text("half")
    replace_file(tmp_path / "status.json", b"{}\n", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_the_journal_has_the_same_lines_as_on_linux(tmp_path: Path) -> None:
    """A line ends with one character, before and after compacting."""
    journal = Journal(tmp_path / "state", max_bytes=10)
    journal.append({"kind": "old"})
    assert journal.path.read_bytes().endswith(b'"old"}\n')
    journal.compact({"kind": "state"})
    journal.append({"kind": "new"})
    journal.close()
    data = journal.path.read_bytes()
    assert data.count(b"\n") == 2
    assert b"\r" not in data
