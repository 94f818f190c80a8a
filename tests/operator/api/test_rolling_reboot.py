"""examples/rolling-reboot.sh: a rolling reboot with curl and jq, against a real process."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

from tests.support.serve_process import serving
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent.parent
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
host = "rack1-a"
addresses = ["127.0.0.1"]
[[machines]]
scope = "shop"
name = "web-1"
update_domain = 1
host = "rack1-a"
[[machines]]
scope = "shop"
name = "web-2"
update_domain = 1
host = "rack1-a"
[[scopes]]
name = "other"
kind = "availability-set"
[[machines]]
scope = "other"
name = "db"
host = "rack1-a"
"""
# Fails the first time for web-1; otherwise the machine comes back on rack2-b.
WORK = """#!/bin/sh
echo "$@" >> "{log}"
if [ "$2" = shop/web-1 ] && [ "$(grep -c shop/web-1 "{log}")" = 1 ]; then exit 1; fi
echo rack2-b
"""


def test_a_rolling_reboot_with_curl_and_jq(tmp_path: Path) -> None:
    """It waits for notice, does each order in turn, retries one failure and reports new hosts."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    work, log = tmp_path / "work", tmp_path / "work.log"
    work.write_text(WORK.format(log=log))
    work.chmod(0o755)
    state = tmp_path / "state"
    # On this clock an hour is four seconds: neither the work nor a guest's silence may end anything by itself.
    config = tmp_path / "serve.toml"
    config.write_text('clock = "900x"\norder_timeout = "0"\ndisable_after = "0"\n')
    with serving(
        *("--config", str(config), "--fleet", str(tmp_path / "fleet.toml")),
        *("--state-dir", str(state), "--store", "memory:"),
    ) as served:
        poll = urllib.request.Request(
            f"{served.guest}/metadata/scheduledevents?api-version=2020-07-01", headers={"Metadata": "true"}
        )
        with urllib.request.urlopen(poll, timeout=PATIENCE_S) as response:  # after a guest's first poll there is notice
            assert response.status == 200
        token = (state / "operator.token").read_text().strip()
        foreign = json.dumps({"type": "Reboot", "targets": {"machines": ["other/db"]}}).encode()
        others = urllib.request.Request(
            f"{served.operator}/v1/maintenances", foreign, headers={"Authorization": f"Bearer {token}"}
        )
        urllib.request.urlopen(others, timeout=PATIENCE_S).close()  # an order of another scope, open all the time
        run = subprocess.run(
            [ROOT / "examples" / "rolling-reboot.sh", "shop"],
            env={**os.environ, "FOREWARN_SERVER": served.operator, "FOREWARN_TOKEN": token, "WORK": str(work)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        lines = run.stdout.splitlines()
        assert lines[:2] == ["wave 1: web-0, 900 s notice", "wave 2: web-1, web-2, 900 s notice"]
        assert lines[3:] == [
            "shop/web-0: done",
            "shop/web-1 shop/web-2: failed, trying again",
            "shop/web-1 shop/web-2: done",
            "all of shop is done",
        ]
        machines = urllib.request.Request(
            f"{served.operator}/v1/machines", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(machines, timeout=PATIENCE_S) as response:
            hosts = {machine["name"]: machine["host"] for machine in json.load(response)["items"]}
        assert hosts == {"web-0": "rack2-b", "web-1": "rack2-b", "web-2": "rack2-b", "db": "rack1-a"}
    worked = [line.split()[1] for line in log.read_text().splitlines()]
    assert worked == ["shop/web-0", "shop/web-1", "shop/web-1", "shop/web-2"]
