"""The state directory: its name, and which process is alone in it."""

import os
import pwd
from itertools import count
from pathlib import Path

import pytest

from forewarn.core.errors import Conflict, InvalidSettings
from forewarn.service.state_dir import StateDir


def state_dir(folder: Path, *, named_within_s: float = 3.0) -> StateDir:
    return StateDir(folder, lambda: "here-1", named_within_s=named_within_s)


def test_a_state_directory_is_named_once(tmp_path: Path) -> None:
    """A later process finds the name; another folder on the same machine has another name."""
    names = count(1)
    folders = [StateDir(tmp_path / folder, lambda: f"here-{next(names)}") for folder in ("a", "a", "b")]
    assert [folder.name for folder in folders] == ["here-1", "here-1", "here-2"]
    assert (tmp_path / "a" / "place").stat().st_mode & 0o777 == 0o600
    for folder in folders:
        folder.close()


def test_a_process_knows_whether_it_is_alone(tmp_path: Path) -> None:
    """While one process checks, no other starts; then both use the folder; when the first ends, the second is alone."""
    first, second = state_dir(tmp_path), state_dir(tmp_path)
    with first.alone() as alone:
        assert alone
        with pytest.raises(Conflict, match="just starting"), second.alone():
            pass
    with second.alone() as alone:
        assert not alone
    with first.alone() as alone:
        assert not alone
    first.close()
    with second.alone() as alone:
        assert alone
    second.close()


@pytest.mark.parametrize("text", ["", "two words", "a:b", "x" * 81])
def test_an_invalid_name_is_refused(tmp_path: Path, text: str) -> None:
    """The names of nodes are made of it."""
    (tmp_path / "place").write_text(text)
    with pytest.raises(InvalidSettings, match="does not hold a valid name"):
        state_dir(tmp_path)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    (tmp_path / "place.lock").mkdir()
    with pytest.raises(InvalidSettings, match=r"place\.lock cannot be opened.*--state-dir"):
        state_dir(tmp_path)
    (tmp_path / "other" / "place").mkdir(parents=True)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        state_dir(tmp_path / "other")


def test_a_name_that_was_lost_while_a_node_runs_is_not_replaced(tmp_path: Path) -> None:
    """With another name the node would lose its orders; the running node holds the lock for life, so nobody waits for it."""
    running = state_dir(tmp_path)
    with running.alone():
        pass
    (tmp_path / "place").unlink()
    with pytest.raises(InvalidSettings, match=r"a node uses .*, but the file `place` in it is gone: stop that node"):
        state_dir(tmp_path, named_within_s=0.05)
    running.close()
    state_dir(tmp_path).close()


def test_a_state_directory_is_made_private(tmp_path: Path) -> None:
    """Only the user of the service may enter it."""
    state_dir(tmp_path / "above" / "state").close()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("above", "above/state")] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777, 0o720])
def test_a_folder_that_others_can_write_to_is_refused_unchanged(tmp_path: Path, mode: int) -> None:
    """The message says which command makes it safe; the service does not, because others may have changed files there."""
    folder = tmp_path / "my state"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(InvalidSettings, match=rf"can write to {folder} \(mode {mode:04o}\).* `chmod 700 '{folder}'`"):
        state_dir(folder)
    assert folder.stat().st_mode & 0o7777 == mode
    assert list(folder.iterdir()) == []
    folder.chmod(0o755)
    state_dir(folder).close()


def test_a_folder_of_another_user_is_refused_unchanged(tmp_path: Path) -> None:
    """That user could replace every file in it."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    expected = rf"{folder} belongs to the user nobody, but this process runs as root.*`chown -R root {folder}`"
    with pytest.raises(InvalidSettings, match=expected):
        state_dir(folder)
    assert list(folder.iterdir()) == []
