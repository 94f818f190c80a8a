"""The systemd unit: systemd accepts it, and its command starts the service."""

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
UNIT = ROOT / "packaging" / "forewarn.service"
INSTALLED = "/opt/forewarn/bin/forewarn"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` ends with 0 and prints nothing, given the path of the program on this machine."""
    tool = shutil.which("systemd-analyze")
    assert tool is not None, "systemd-analyze is missing: run scripts/test_tools"
    text = UNIT.read_text("utf-8")
    assert INSTALLED in text
    local_unit = tmp_path / UNIT.name
    local_unit.write_text(text.replace(INSTALLED, f'"{Path(sys.executable).parent / "forewarn"}"'))
    result = subprocess.run(
        [tool, "verify", str(local_unit)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_the_command_of_the_unit_starts_the_service(tmp_path: Path) -> None:
    """The command runs with a configuration file that names free ports."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT, "utf-8")
    program, *arguments = shlex.split(parser["Service"]["ExecStart"])
    assert program == INSTALLED
    config = tmp_path / "serve.toml"
    config.write_text('operator = "127.0.0.1:0"\nguest = "127.0.0.1:0"\n')
    arguments = [str(config) if each == "/etc/forewarn/serve.toml" else each for each in arguments]
    name, _, value = parser["Service"]["Environment"].partition("=")
    assert value == f"/var/lib/{parser['Service']['StateDirectory']}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "forewarn", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, name: str(tmp_path / "state")},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
