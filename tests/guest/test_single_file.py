"""The single file on every Python from 3.9 that this machine has, and the unit that runs it."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scripts.build_agent import build

from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OLDEST = (3, 9)


def pythons() -> dict[str, str]:
    """Return one interpreter of each version from 3.9 on, from the PATH or pyenv."""
    found = {".".join(map(str, sys.version_info[:2])): sys.executable}
    homes = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    candidates = [shutil.which(f"python3.{minor}") or "" for minor in range(OLDEST[1], 30)]
    candidates += [str(path) for home in homes for path in sorted(home.glob("*/bin/python3"))]
    for candidate in filter(None, candidates):
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-I", "-c", program], capture_output=True, text=True, check=False)
        if done.returncode == 0 and tuple(map(int, done.stdout.split("."))) >= OLDEST:
            found.setdefault(done.stdout.strip(), candidate)
    return found


PYTHONS = pythons()
CONFIG = """
state_dir = "state"
name = "here"
[[rules]]
when = { type = ["Freeze"], max_duration = "9s" }
do = "approve"
[[steps]]
name = "touch"
required = true
command = { prepare = ["touch", "flag"], verify = ["test", "-e", "flag"], recover = ["rm", "flag"] }
[[steps]]
name = "written"
log = { file = "told" }
[health]
command = ["true"]
"""


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist") / "forewarn-agent.pyz")


@pytest.mark.parametrize("version", sorted(PYTHONS))
def test_the_single_file_works(pyz: Path, version: str, tmp_path: Path) -> None:
    """It prints its version, writes and reads a configuration, simulates an event, and watches until it is terminated."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [PYTHONS[version], "-I", str(pyz), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=PATIENCE_S)

    assert run("--version").stdout.startswith("forewarn-agent ")
    assert run("init", "made.toml").returncode == 0
    config = tmp_path / "agent.toml"
    config.write_text(CONFIG)
    config.chmod(0o600)
    simulated = run("simulate", "Reboot", "--in", "5m", "--config", "agent.toml")
    assert simulated.returncode == 0, simulated.stderr
    assert "step 'touch': prepared in" in simulated.stdout
    assert "it would be approved" in simulated.stdout
    assert not (tmp_path / "flag").exists()
    assert "back in service" in (tmp_path / "told").read_text()
    watching = subprocess.Popen(
        [PYTHONS[version], "-I", str(pyz), "run", "--config", "agent.toml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FOREWARN_ENDPOINT": "http://127.0.0.1:9"},
    )
    assert watching.stderr is not None
    assert "watching http://127.0.0.1:9" in watching.stderr.readline()
    assert "no connection to http://127.0.0.1:9" in watching.stderr.readline()
    watching.terminate()
    watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 0


def test_several_versions_were_tried() -> None:
    """The version that the project runs on is among them; the test prints all."""
    print("single file tried on", ", ".join(sorted(PYTHONS)))
    assert "{}.{}".format(*sys.version_info[:2]) in PYTHONS


def test_the_single_file_is_the_guest_side_and_nothing_else(pyz: Path, tmp_path: Path) -> None:
    """It holds no server code and nothing compiled, is executable, and a second build has the same bytes."""
    names = zipfile.ZipFile(pyz).namelist()
    assert {name.partition("/")[0] for name in names} == {"__main__.py", "forewarn", "tomli"}
    assert all(
        re.fullmatch(r"__main__\.py|forewarn/__init__\.py|forewarn/guest/.+\.py|tomli/.+", name) for name in names
    )
    assert not any(name.endswith(".so") for name in names)
    assert build(tmp_path / "again.pyz").read_bytes() == pyz.read_bytes()
    assert os.access(pyz, os.X_OK)


def test_the_unit_always_restarts_the_agent() -> None:
    """systemd starts it again after any end, every five seconds, without limit."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(ROOT / "packaging" / "forewarn-agent.service")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert (unit["Service"]["Restart"], unit["Service"]["RestartSec"]) == ("always", "5")


def test_systemd_accepts_the_unit() -> None:
    """`systemd-analyze verify` reports no problem."""
    unit = ROOT / "packaging" / "forewarn-agent.service"
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stderr
    assert "forewarn-agent" not in verified.stderr
