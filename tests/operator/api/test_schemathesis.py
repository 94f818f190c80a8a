"""The running API against its own description: no 5xx, and every answer as the OpenAPI document says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.operator.api.calls import CALLS
from tests.support.running_service import RunningService, running_service

BUDGET = int(os.environ.get("TEST_BUDGET", "1"))
SEED = os.environ.get("TEST_SEED", "1")
EXAMPLES = 12


def known(home: RunningService) -> dict[str, str]:
    """Things that exist, for half of the run: random ids never reach far."""
    home.enable("shop", "blog")
    made = home.schedule("shop/web-0", "shop/web-1")
    other = home.schedule("blog/db")
    home.post("/v1/clock/advance", {"seconds": 1000})
    event = other["waves"][0]["events"][0]["id"]
    return {
        "events": event,
        "orders": event,
        "maintenances": made["id"],
        "tokens": home.get("/v1/tokens")["items"][0]["id"],
    }


def explore(home: RunningService, folder: Path, ids: dict[str, str]) -> None:
    config = [f"seed = {SEED}"]
    for noun, value in ids.items():
        config += [
            "[[operations]]",
            f'include-path-regex = "^/v1/{noun}/"',
            f"parameters = {{ id = {json.dumps(value)} }}",
        ]
    if ids:
        config += [
            "[[operations]]",
            'include-path-regex = "^/v1/scopes/"',
            'parameters = { scope = "shop", name = "web-0" }',
        ]
    (folder / "schemathesis.toml").write_text("\n".join(config) + "\n")
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(folder / "schemathesis.toml")),
        *("run", f"{home.url}/v1/openapi.json", "-H", f"Authorization: Bearer {home.token}", "--no-color"),
        *("--exclude-path", "/v1/stream", "--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES * BUDGET)),
        # What no schema can say (a machine that exists, one of three targets) may well be refused.
        *("--exclude-checks", "positive_data_acceptance"),
    ]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert said.returncode == 0, f"TEST_SEED={SEED}\n{said.stdout}\n{said.stderr}"
    assert f"Tested: {len(CALLS)}" in said.stdout, said.stdout


@pytest.mark.timeout(1_000)
@pytest.mark.parametrize("with_ids", [False, True], ids=["strangers' ids", "known ids"])
def test_every_answer_is_as_described(tmp_path: Path, with_ids: bool) -> None:
    """Made-up requests, right and wrong, for every call."""
    with running_service() as home:
        explore(home, tmp_path, known(home) if with_ids else {})
        assert home.request("GET", "/healthz").status == 200
