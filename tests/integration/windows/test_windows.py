"""The guest suite on Windows: its portable part, and the tests of what only Windows has."""

import re
import sysconfig
from pathlib import Path

import pytest

from tests.integration.windows.wine_machine import ROOT, WineMachine, windows_path

HERE = Path(__file__).parent
PORTABLE = (
    "client", "config", "decide", "discovery", "document", "journal", "names", "sockets", "transient_failures",
)  # fmt: skip
PORTABLE_SERVING = ("published", "requests")
ONLY_WINDOWS = ("windows_clients", "windows_files", "windows_machine", "windows_processes", "windows_services")
# Fewer would mean that tests are no longer collected.
LEAST_TESTS = 250
# The usual limit is for one test, and this one runs them all.
WHOLE_SUITE_S = 1_800


@pytest.mark.timeout(WHOLE_SUITE_S)
def test_the_guest_suite_passes_on_windows(machine: WineMachine) -> None:
    """The tests without the mark `posix`, and those of `ONLY_WINDOWS`."""
    files = [HERE.parents[1] / "guest" / f"test_{name}.py" for name in PORTABLE]
    files += [HERE.parents[1] / "guest" / "serving" / f"test_{name}.py" for name in PORTABLE_SERVING]
    files += [HERE / f"{name}.py" for name in ONLY_WINDOWS]
    ended = machine.run(
        "C:\\python\\python.exe",
        windows_path(HERE / "pytest_inside.py"),
        windows_path(ROOT),
        windows_path(Path(sysconfig.get_paths()["purelib"])),
        *map(windows_path, files),
    )
    print(ended.output)
    assert ended.code == 0, ended.output
    passed = re.search(r"([0-9]+) passed", ended.output)
    assert passed is not None
    assert int(passed[1]) >= LEAST_TESTS
