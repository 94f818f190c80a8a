"""Programs of steps: which file a name means."""

from pathlib import Path

import pytest

from forewarn.guest.system import system


def make_program(folder: Path, mode: int = 0o755) -> str:
    folder.mkdir()
    path = folder / "drain"
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


def test_a_name_means_the_first_program_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a file that cannot be run, a missing folder and an empty entry are passed over."""
    (tmp_path / "folder" / "drain").mkdir(parents=True)
    make_program(tmp_path / "text", mode=0o644)
    first, second = make_program(tmp_path / "first"), make_program(tmp_path / "second")
    monkeypatch.chdir(tmp_path / "second")
    monkeypatch.setenv(
        "PATH", ":".join(["", *(str(tmp_path / each) for each in ("none", "folder", "text", "first", "second"))])
    )
    assert system.find_program("drain") == first
    Path(first).unlink()
    assert system.find_program("drain") == second
    assert system.find_program("dra\0in") is None
    monkeypatch.setenv("PATH", "")
    assert system.find_program("drain") is None


def test_a_path_means_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH does not matter for it, and a relative path stays one."""
    path = make_program(tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    assert system.find_program(path) == path
    assert system.find_program("first/drain") == "first/drain"
    assert system.find_program("./drain") is None
