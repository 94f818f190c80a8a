"""`make demo-kvm`: the portal of a forewarn that knows two hosts and four guests, and nothing left at the end.

In `make soak` the guests boot, and their agents ask for events.
"""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from scripts.kvm_bed.bed import ROOT

from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.support.budget import BUDGET
from tests.support.waiting import PATIENCE_S, until

GUESTS_RUN = BUDGET > 1


def test_the_demo_shows_its_guests_and_leaves_nothing_behind() -> None:
    """The printed address and token show the machines; after SIGTERM hosts and files are gone."""
    command = [sys.executable, "-m", "scripts.demo_kvm", "--port", "0", *([] if GUESTS_RUN else ["--paused"])]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert demo.stdout is not None
        (portal, token) = next(
            found.groups() for line in demo.stdout if (found := re.search(r"portal: (\S+) +token: (\S+)", line))
        )
        program = next(line for line in demo.stdout if "--evacuate" in line).split()[0]
        assert (ROOT / program).is_file()

        def get(path: str) -> Any:
            request = urllib.request.Request(f"{portal}{path}", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)

        fleet = get("/v1/fleet")
        assert {machine["name"]: machine["host"] for machine in fleet["machines"]} == {
            "web-0": "kvm-a", "db-0": "kvm-a", "web-1": "kvm-b", "db-1": "kvm-b",
        }  # fmt: skip
        folder = Path(next(host["connection"] for host in fleet["hosts"]).partition("socket=")[2]).parents[2]
        assert folder.is_dir()
        if GUESTS_RUN:
            until(lambda: all(scope["enabled"] for scope in get("/v1/scopes")["items"]), GUEST_PATIENCE_S, every_s=0.5)
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.communicate(timeout=PATIENCE_S)
    until(lambda: not folder.exists())
    assert demo.returncode == 0
