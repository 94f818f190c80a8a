"""The emulator's page is true: its tables name everything there is, its examples run."""

import os
import re
import subprocess
import threading
import tomllib
from pathlib import Path

from forewarn.guest import Client
from forewarn.testing.emulator import Emulator
from forewarn.testing.emulator_api import emulator_calls
from forewarn.testing.faults import KINDS, STATUSES, WHEN, parse_faults
from tests.support.waiting import PATIENCE_S

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGE = "".join(page.read_text("utf-8") for page in sorted(GUIDE.glob("emulator*.md")))


def block(language: str, containing: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (text,) = [each for each in found if containing in each]
    return str(text)


def test_every_fault_is_described() -> None:
    """Each kind with its row, each key in the text, each status in the example, which is a playbook."""
    for kind, keys in KINDS.items():
        assert f"| `{kind}` |" in PAGE
        assert all(f"`{key}`" in PAGE for key in keys)
    example = block("toml", "faults")
    assert all(key in example or f"`{key}`" in PAGE for key in WHEN)
    assert all(str(status) in example for status in STATUSES)
    assert [str(fault) for fault in parse_faults(tomllib.loads(example)["faults"])] == ["410", "slow", "reset"]


def test_every_call_is_described() -> None:
    """Of the emulator in Python and over HTTP."""
    for name in vars(Emulator):
        if not name.startswith("_") and name not in ("machine_names",):
            assert re.search(rf"`{name}\b", PAGE) or name in ("faults",), f"{name} is not described"
    with Emulator() as emulator:
        for call in emulator_calls(emulator):
            assert f"`{call.method} {call.path}`" in PAGE


def test_the_example_in_a_shell_runs() -> None:
    """With a guest that approves what it sees, every step of it passes."""
    with Emulator(seed=1) as emulator:
        guest = threading.Thread(target=approve_the_first, args=(emulator.endpoint,), daemon=True)
        guest.start()
        done = subprocess.run(
            ["bash", "-euc", block("sh", "emulator/expect")],
            env={**os.environ, **emulator.environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("true") >= 3
        assert [r.status for r in emulator.requests(method="POST")] == [200]
        guest.join(PATIENCE_S)


def approve_the_first(endpoint: str) -> None:
    client = Client(endpoint)
    for document in client.watch():
        if document.events:
            client.approve(document.events[0])
            client.close()
            return
