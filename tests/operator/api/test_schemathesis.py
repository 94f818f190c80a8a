"""The running API against its own description: no 5xx, and every response as the OpenAPI document says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.operator.api.calls import CALLS
from tests.support.budget import BUDGET, chosen_seed
from tests.support.running_service import RunningService, running_service

SEED = chosen_seed(1)
EXAMPLES = 8


def make_ids(service: RunningService) -> dict[str, str]:
    """Make something of each kind, so that lists have items, and return the ids: random ids are never found."""
    service.enable("shop", "blog")
    made = service.schedule("shop/web-0", "shop/web-1")
    other = service.schedule("blog/db")
    service.post("/v1/clock/advance", {"seconds": 1000})
    event = other["waves"][0]["events"][0]["id"]
    return {
        "events": event,
        "orders": event,
        "maintenances": made["id"],
        "tokens": service.get("/v1/tokens")["items"][0]["id"],
        "hooks": service.post("/v1/hooks", {"url": "https://receiver.invalid/in"}, 201)["id"],
    }


def explore(service: RunningService, folder: Path, ids: dict[str, str]) -> None:
    """Send generated requests to every call; with ids, only to the calls whose paths take them."""
    config = [f"seed = {SEED}"]
    for noun, value in ids.items():
        config += [
            "[[operations]]",
            f'include-path-regex = "^/v1/{noun}/"',
            f"parameters = {{ id = {json.dumps(value)} }}",
        ]
    # The calendar is no call of the table.
    paths = [*(call.path for call in CALLS), "/v1/calendar.ics"]
    chosen = "^/v1/"
    if ids:
        config += [
            "[[operations]]",
            'include-path-regex = "^/v1/scopes/"',
            'parameters = { scope = "shop", name = "web-0" }',
        ]
        chosen = f"^/v1/({'|'.join([*ids, 'scopes'])})/"
    (folder / "schemathesis.toml").write_text("\n".join(config) + "\n")
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(folder / "schemathesis.toml")),
        *("run", f"{service.url}/v1/openapi.json", "-H", f"Authorization: Bearer {service.token}", "--no-color"),
        *("--include-path-regex", chosen, "--exclude-path", "/v1/stream"),
        *("--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES * BUDGET)),
        # How long an example takes says how busy the machine is.
        *("--suppress-health-check", "too_slow"),
        # What no schema can say (a machine that exists, one of three targets) may well be refused.
        *("--exclude-checks", "positive_data_acceptance"),
    ]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3_600, check=False)
    assert run.returncode == 0, f"TEST_SEED={SEED}\n{run.stdout}\n{run.stderr}"
    assert f"Tested: {sum(bool(re.search(chosen, path)) for path in paths)}\n" in run.stdout, run.stdout


@pytest.mark.timeout(3_700)
@pytest.mark.parametrize("with_ids", [False, True], ids=["random ids", "existing ids"])
def test_every_response_is_as_described(tmp_path: Path, with_ids: bool) -> None:
    """For generated requests, valid and invalid, of every call. Wrong tokens are not limited: schemathesis sends many."""
    with running_service() as service:
        service.allow_wrong_tokens()
        ids = make_ids(service)
        explore(service, tmp_path, ids if with_ids else {})
        assert service.request("GET", "/healthz").status == 200
