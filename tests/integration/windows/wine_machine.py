"""A machine with Windows: a Wine prefix with CPython in C:\\python and a shell that runs commands in it.

Wine ends the services of a prefix when the last other program ends. So the shell runs until the machine is shut down, and a new
shell is a new boot.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.folders import folder_for_every_user
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv" / "windows-python"
SHELL = Path(__file__).with_name("shell_inside.py")


@dataclass(frozen=True)
class Ended:
    code: int
    output: str


class WineMachine:
    """Runs commands on a machine that is up; `reboot` ends everything on it."""

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._shell: subprocess.Popen[str] | None = None
        self.drive = prefix / "drive_c"

    @property
    def _environment(self) -> Mapping[str, str]:
        # Without windows, menus, .NET and HTML: no program here needs them.
        without = "mscoree,mshtml,winemenubuilder.exe="
        # TMPDIR would name a folder that every user may write to, and Windows has one of its own.
        dropped = ("FOREWARN_", "PYTHON", "WINE", "TMPDIR")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        return {
            **kept, "WINEPREFIX": str(self._prefix), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": without, "DISPLAY": "",
        }  # fmt: skip

    def install(self) -> None:
        """Make the prefix, with Python in it."""
        self._wine("wineboot", "--init")
        # Wine gives a service ten seconds to report, which Python may need longer for on a busy machine.
        control = "HKLM\\System\\CurrentControlSet\\Control"
        limit_ms = str(round(PATIENCE_S * 1_000))
        self._wine("reg", "add", control, "/v", "ServicesPipeTimeout", "/t", "REG_SZ", "/d", limit_ms)
        self.shut_down()  # the service manager reads it when it starts
        shutil.copytree(PYTHON, self.drive / "python")

    def _wine(self, *argv: str) -> None:
        # A program of Windows needs pipes: with a closed stdin, Python does not start.
        subprocess.run(["wine", *argv], input=b"", capture_output=True, env=self._environment, check=True)

    def boot(self) -> None:
        assert self._shell is None, "the machine is up"
        self._shell = subprocess.Popen(
            ["wine", "C:\\python\\python.exe", "-u", windows_path(SHELL)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment, text=True,
            encoding="utf-8",
        )  # fmt: skip

    def run(self, *argv: str) -> Ended:
        """Run a command to its end."""
        assert self._shell is not None, "the machine is down"
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(json.dumps(argv) + "\n")
        self._shell.stdin.flush()
        answer = self._shell.stdout.readline()
        assert answer, f"the machine went down while it ran {argv}"
        return Ended(*json.loads(answer))

    def shut_down(self) -> None:
        """End every program at once, as a power failure does."""
        subprocess.run(["wineserver", "--kill"], env=self._environment, check=False)
        subprocess.run(["wineserver", "--wait"], env=self._environment, check=True)
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def reboot(self) -> None:
        self.shut_down()
        self.boot()


def windows_path(path: Path) -> str:
    """Return the path by which programs on the machine reach a file of this system."""
    return "Z:" + str(path.absolute()).replace("/", "\\")


@contextmanager
def wine_machine() -> Iterator[WineMachine]:
    """Yield a machine that is up. Its folder lies outside the checkout, whose path may be private."""
    folder = folder_for_every_user("forewarn-wine-")
    machine = WineMachine(folder / "prefix")
    try:
        machine.install()
        machine.boot()
        yield machine
    finally:
        machine.shut_down()
        shutil.rmtree(folder)
