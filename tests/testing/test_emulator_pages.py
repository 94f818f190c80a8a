"""The emulator's pages in the documentation describe every fault and call, and their example runs."""

import os
import re
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from pathlib import Path

from forewarn.guest import Client, EndpointError
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_api import emulator_calls
from forewarn.testing.faults import KINDS, OPTIONAL, WHEN, parse_faults
from tests.support.waiting import PATIENCE_S

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGES = "".join(page.read_text("utf-8") for page in sorted(GUIDE.glob("emulator*.md")))


def code_block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGES, re.DOTALL)
    (text,) = [each for each in blocks if containing in each]
    return str(text)


def test_every_fault_is_described() -> None:
    """The pages have a row for each kind, name each key, and have an example that can be parsed."""
    for kind, keys in KINDS.items():
        assert f"| `{kind}` |" in PAGES
        assert all(f"`{key}`" in PAGES for key in (*keys, *OPTIONAL.get(kind, ())))
    example = code_block("toml", "faults")
    assert all(key in example or f"`{key}`" in PAGES for key in WHEN)
    assert [str(fault) for fault in parse_faults(tomllib.loads(example)["faults"])] == [
        "410",
        "slow",
        "reset",
        "503",
        "refuse",
    ]


def test_every_call_is_described() -> None:
    """The pages name every public call of the emulator, in Python and over HTTP."""
    for name in vars(Emulator):
        if not name.startswith("_") and name not in ("machine_names",):
            assert re.search(rf"`{name}\b", PAGES) or name in ("faults",), f"{name} is not described"
    with Emulator() as emulator:
        for call in emulator_calls(emulator):
            assert f"`{call.method} {call.path}`" in PAGES


def test_the_example_in_a_shell_runs() -> None:
    """Every step of the example passes for a guest that approves the first event."""
    with Emulator(seed=1) as emulator:
        guest = threading.Thread(target=approve_the_first, args=(emulator.endpoint,), daemon=True)
        guest.start()
        script = code_block("sh", "emulator/expect").replace('"within_s":5', '"within_s":60')
        result = run_shell(emulator, script)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.count('"passed":true') == 3
        assert [r.status for r in emulator.requests(method="POST")] == [200]
        guest.join(PATIENCE_S)


def test_the_example_of_held_approvals_runs(tmp_path: Path) -> None:
    """The approval passes only after the check: without the file the script ends, and the event has not started."""
    first, _ = code_block("sh", "emulator/expect").split("event=")
    script = first + code_block("sh", "emulator/approvals")
    (tmp_path / "state").mkdir()
    for content, code, status in (("", 1, "Scheduled"), ("saved", 0, "Started")):
        (tmp_path / "state" / "saved.txt").write_text(content)
        with Emulator(seed=1) as emulator:
            event = emulator.schedule("Reboot", "vm-0")
            emulator.approvals.set_hold(hold=True)  # as the script does, but surely before the guest approves
            guest = threading.Thread(target=approve_the_first, args=(emulator.endpoint,), daemon=True)
            guest.start()
            result = run_shell(emulator, script, tmp_path)
            assert (result.returncode, result.stderr) == (code, "")
            assert emulator.service.control.event(event.id)[0].status == status
        guest.join(PATIENCE_S)


def test_the_example_of_a_reset_runs(tmp_path: Path) -> None:
    """Several tests use one emulator and one app, and a failed test shows the timeline."""
    tests = """
import contextlib
from forewarn.guest import Client

@contextlib.contextmanager
def start_my_service(environment):
    starts.append(environment["FOREWARN_ENDPOINT"])
    yield Client(starts[0])

starts = []

@pytest.mark.parametrize("ok", [True, True, False])
def test_approves(events, my_service, ok):
    event = events.schedule("Reboot", "vm-0")
    assert [each.id for each in my_service.document().events] == [event.id]
    my_service.approve(event.id)
    events.expect_approval(event)
    assert len(starts) == 1
    assert ok
"""
    (tmp_path / "test_app.py").write_text(code_block("python", "reset()") + tests)
    unused = ("-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:anyio")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *unused, "test_app.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "POST /metadata/scheduledevents?api-version=2020-07-01 approving" in done.stdout


def run_shell(emulator: Emulator, script: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, **emulator.environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def approve_the_first(endpoint: str) -> None:
    client = Client(endpoint)
    for document in client.watch():
        if document.events:
            with suppress(EndpointError):  # the emulator may end before it answers
                client.approve(document.events[0])
            client.close()
            return
