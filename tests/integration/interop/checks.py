"""Runs the programs of examples/testing as a user would: `forewarn emulate -- …`, with an app that the program tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples" / "testing"
APP = Path(__file__).parent / "app.py"
# The app runs beside the program, and ends with it.
BESIDE_APP = '"$1" "$2" "$3" & trap "kill $!" EXIT; shift 3; "$@"'


def programs(folder: Path) -> dict[str, list[str]]:
    """Return the command of each program whose language is installed; compile the one in C#."""
    commands = {
        "shell": ["sh", str(EXAMPLES / "check.sh")],
        "node": ["node", "--test", str(EXAMPLES / "check.mjs")],
        "java": ["java", str(EXAMPLES / "Check.java")],
        "go": ["go", "run", str(EXAMPLES / "check.go")],
        "csharp": ["mono", str(folder / "Check.exe")],
    }
    if shutil.which("mcs"):
        subprocess.run(["mcs", f"-out:{folder / 'Check.exe'}", str(EXAMPLES / "Check.cs")], check=True)
    return commands


def check(command: list[str], approvals: int) -> "subprocess.CompletedProcess[str]":
    """Run one program with an emulator and an app that approves each event so many times."""
    beside_app = ["sh", "-c", BESIDE_APP, "sh", sys.executable, str(APP), str(approvals), *command]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    return subprocess.run(
        [sys.executable, "-m", "forewarn", "emulate", "--", *beside_app],
        capture_output=True, text=True, timeout=PATIENCE_S, env=clean, check=False,
    )  # fmt: skip


def problem(command: list[str]) -> str:
    """Return what is wrong with a program: it passes an app that approves once, and fails one that approves twice."""
    good, bad = check(command, approvals=1), check(command, approvals=2)
    if good.returncode:
        return f"it fails an app that approves once:\n{good.stdout}{good.stderr}"
    if not bad.returncode or "approved twice" not in bad.stdout + bad.stderr:
        return f"it passes an app that approves twice:\n{bad.stdout}{bad.stderr}"
    return ""
