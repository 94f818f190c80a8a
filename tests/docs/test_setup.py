"""What scripts/setup says when something is missing, and what it makes of an environment that is there already."""

import os
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_venv_and_without_root_it_says_what_to_install(tmp_path: Path) -> None:
    """It names the package and stops, before it tries what only root may."""
    program(tmp_path / "python", 'case "$2" in *ensurepip*) exit 1;; esac')
    program(tmp_path / "id", "echo 1000")
    program(tmp_path / "apt-get", f"touch {tmp_path}/tried")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        [SETUP, tmp_path / "venv"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / "tried").exists()
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("finished", [True, False])
def test_what_an_interrupted_run_left_is_made_anew(tmp_path: Path, finished: bool) -> None:
    """A finished environment, or one that a developer has made, is brought up to date. Until that is done it is unfinished."""
    program(tmp_path / "python", 'case "$*" in "-m venv"*) exit 9;; esac')
    venv = tmp_path / "venv"
    part = venv / "lib" / "half-a-package"
    part.mkdir(parents=True)
    unfinished = venv / ".unfinished"
    if not finished:
        unfinished.touch()
    done = subprocess.run(
        [SETUP, venv],
        env={**os.environ, "PYTHON": str(tmp_path / "python")},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 9
    assert part.exists() is finished
    assert unfinished.exists()
