"""What the caller's environment may change in a run of the tests: nothing but the way to packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.test_parts import run

from tests.caller import forget_the_caller, neutral

ROOT = Path(__file__).parents[2]
PROXY = {"https_proxy": "http://127.0.0.1:9", "NO_PROXY": "a.example"}
HOSTILE = {
    "FOREWARN_SERVER": "http://127.0.0.1:9", "PYTEST_ADDOPTS": "--no-such-option", "PYTHONWARNINGS": "error",
    "PYTHONOPTIMIZE": "2", "PYTHONPATH": "/nowhere", "PGHOST": "elsewhere", "COLUMNS": "20", "FORCE_COLOR": "1", "MAKEFLAGS": "B",
    "LC_ALL": "de_DE.ISO-8859-1", "LANGUAGE": "de",
}  # fmt: skip


def test_only_harmless_variables_are_left() -> None:
    """Programs report in English and in UTF-8. What names the way to packages stays."""
    left = neutral({**HOSTILE, **PROXY, "PATH": "/bin", "PYTHONHASHSEED": "7", "LANG": "de_DE.UTF-8"})
    assert left == {**PROXY, "PATH": "/bin", "PYTHONHASHSEED": "7", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize("folder", ["/tmp/a b", "/tmp/" + "a" * 50, "tmp"])
def test_a_temporary_folder_is_short_and_plain(folder: str) -> None:
    """Tests have the paths of their files in scripts and as addresses of sockets."""
    assert "TMPDIR" not in neutral({"TMPDIR": folder})
    assert neutral({"TMPDIR": "/mnt/scratch/tmp.1"})["TMPDIR"] == "/mnt/scratch/tmp.1"


def test_the_process_of_the_tests_has_no_proxies() -> None:
    """They are returned, for the tests that fetch packages."""
    variables = {**HOSTILE, **PROXY, "PATH": "/bin"}
    assert forget_the_caller(variables) == PROXY
    assert variables == {"PATH": "/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def test_a_part_runs_as_if_nobody_had_set_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pytest reads its variables before any file of ours; the mask of new files is that of most users."""
    monkeypatch.setattr("scripts.test_parts.ROOT", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import os\ndef test_it(): assert os.umask(0) == 0o022 and 'PGHOST' not in os.environ"
    )
    before = os.umask(0o077)
    try:
        result = run("it", [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], {**os.environ, **HOSTILE})
    finally:
        os.umask(before)
    assert result.code == 0, result.output
    assert "1 passed" in result.output


def test_a_single_test_is_as_independent() -> None:
    """The tests that print help see neither the width nor the colours of the caller's terminal."""
    harmful = {"COLUMNS": "20", "FORCE_COLOR": "1", "GITHUB_ACTIONS": "true", "FOREWARN_SERVER": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cli/test_options.py"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **harmful}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
