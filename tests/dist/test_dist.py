"""The published packages: the wheel in empty virtual environments, and the tutorial with it."""

import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from scripts.build_dist import build

from tests.caller import PROXIES
from tests.support.own_network import own_network

ROOT = Path(__file__).parent.parent.parent
TUTORIAL = ROOT / "docs" / "guide" / "testing-your-app.md"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITHIN_S = 300


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def user(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The programs of an environment with the test kit, installed as in the tutorial, with our pinned versions."""
    folder = tmp_path_factory.mktemp("user")
    pinned = re.findall(r"^[\w.-]+==\S+", (ROOT / "requirements" / "dev.txt").read_text("utf-8"), re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(pinned))
    options = ["-c", str(folder / "constraints.txt")]
    return _environment(folder, *options, f"{built[0]}[server]", "pytest", proxies=pytestconfig.stash[PROXIES])


def _environment(folder: Path, *installed: str, proxies: Mapping[str, str] | None = None) -> Path:
    """Create an environment and return its programs. The packages may be reached only through proxies.

    It has no pip, which would take longest to install. What is used of the packages is compiled at its first import.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    programs = folder / "venv" / "bin"
    variables = {**os.environ, **(proxies or {})}
    subprocess.run([*_pip(programs), "install", "-q", "--no-compile", *installed], check=True, env=variables)
    return programs


def _pip(programs: Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", programs / "python"]


def _run(command: list[str | Path], **more: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, capture_output=True, text=True, timeout=WITHIN_S, check=False, **{"env": _inherited(), **more}
    )


def _inherited() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FOREWARN"))}


def test_the_packages_have_exactly_the_needed_files(built: tuple[Path, Path]) -> None:
    """They have every file of `src`, also queries, pages and scenarios, and no tests or tools."""
    wheel, archive = built
    files = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "forewarn").rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if ".dist-info/" not in name} == files
    with tarfile.open(archive) as packed_source:
        top = {name.split("/")[1] for name in packed_source.getnames() if "/" in name}
    assert top <= {
        "src",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }


def test_the_base_install_has_no_dependencies(built: tuple[Path, Path], tmp_path: Path) -> None:
    """The agent and the SDK work in it, and the service says what to install."""
    programs = _environment(tmp_path, "--no-index", str(built[0]))
    listed = _run([*_pip(programs), "list", "--format=freeze"]).stdout
    assert re.fullmatch(r"forewarn==\S+\n", listed)
    agent = _run([programs / "forewarn-agent", "--help"], cwd=tmp_path)
    assert agent.returncode == 0
    assert "Prepare this machine" in agent.stdout
    assert _run([programs / "python", "-c", "from forewarn.guest import Client; Client"], cwd=tmp_path).returncode == 0
    service = _run([programs / "forewarn", "serve"], cwd=tmp_path)
    assert service.returncode == 2
    assert "pip install 'forewarn[server]'" in service.stderr


def test_the_tutorial_works_as_written(user: Path, tmp_path: Path) -> None:
    """All its commands run in one shell with its files, from the first request to the app that loses nothing."""
    with own_network():  # the tutorial's ports are free there
        result = _run_script(_script(TUTORIAL.read_text("utf-8")), user, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    first, scheduled, started = re.findall(r'^\{"DocumentIncarnation".*', result.stdout, re.MULTILINE)[:3]
    assert '"Events":[]' in first
    assert '"EventStatus":"Scheduled","EventType":"Reboot"' in scheduled
    assert '"EventStatus":"Started","EventType":"Reboot"' in started
    assert "vm-0 has not seen event" in result.stdout  # before the app reacts to events
    assert result.stdout.count("1 passed") == 1
    assert "vm-0 saw the Redeploy, approved it once, and saw it start" in result.stdout


def _script(page: str) -> str:
    """Return the page as a shell script that waits until each background command is ready."""
    steps = [
        "set -em",
        "ready() { until curl -sf http://127.0.0.1:8170/readyz; do sleep 0.1; done; echo; }",
    ]
    for language, info, body in BLOCK.findall(page):
        name = re.search(r"title=(\S+)", info)
        if name:
            steps.append(f"cat > {name[1]} <<'END'\n{body}END")
        elif language == "sh" and "pip install" not in body:
            commands = body.replace("curl -s ", "echo; curl -s ")
            if "fails" in info:
                # What the run that passes waits for may take long on a busy machine.
                steps += [f"! {commands}", "sed -i s/within_s=5/within_s=60/ test_worker.py"]
            else:
                steps.append(commands)
            steps += ["ready"] if re.search(r"forewarn emulate.* &\n", body) else []
            # The next block may need the port of the killed emulator.
            steps += ["wait || true"] if "kill %" in body else []
    return "\n".join(steps)


def _run_script(script: str, programs: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / "check.sh").write_bytes((ROOT / "examples" / "testing" / "check.sh").read_bytes())
    environment = {**_inherited(), "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder)}
    with subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            out, err = shell.communicate(timeout=WITHIN_S)
        finally:
            for group in _process_groups(shell.pid):
                with suppress(ProcessLookupError):  # it may have ended meanwhile
                    os.killpg(group, signal.SIGKILL)
        return subprocess.CompletedProcess(script, shell.returncode, out, err)


def _process_groups(session: int) -> Iterator[int]:
    """Yield the process groups of a session: a failed script may have left background commands."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and int(fields[2]) != os.getpgrp():
            yield int(fields[2])
