"""What forewarn leaves on disks and gives to other programs: state folders, orders, PostgreSQL's schema, the agent's journal."""

import json
import subprocess
from pathlib import Path
from typing import Any

from scripts.surface_parts import postgres
from scripts.surface_parts.checkout import FLEET, TOKEN, WITHIN_S, Checkout, Normal, Served, listing, shape, until
from scripts.surface_parts.service import metrics, schema_text
from scripts.surface_parts.wire import PATH, VERSION, exchange, request

# Tells what it was given, then works until it is let go.
COMMAND = """
cat > given.json
env | cut -d= -f1 | grep FOREWARN_ | sort > given.new
mv given.new given.env
while [ ! -e go ]; do sleep 0.1; done
echo done
"""
AGENT = """
endpoint = "{endpoint}"
state_dir = "state"
metrics_file = "agent.prom"
boot_id_file = "boot"
[[steps]]
name = "write it down"
log = {{ file = "events.jsonl" }}
[[steps]]
name = "stop"
required = true
[steps.command]
prepare = ["/bin/sh", "-c", "cat > given.json; env | cut -d= -f1 | grep FOREWARN_ | sort > given.env; touch stopped"]
verify = ["test", "-e", "stopped"]
recover = ["rm", "stopped"]
[health]
command = ["true"]
"""


def _given(folder: Path) -> dict[str, Any]:
    """What a command was given on its standard input and in its environment."""
    variables = (folder / "given.env").read_text().split()
    return {
        "input": shape(json.loads((folder / "given.json").read_text())),
        "variables": dict.fromkeys(variables, "set"),
    }


def state_folder(checkout: Checkout) -> dict[str, Any]:
    """With the embedded store: while it runs, and afterwards."""
    folder, normal = checkout.home / "state", Normal()
    words = ("serve", "--state-dir", str(folder), "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0")
    with checkout.serving(*words) as service:
        running = listing(folder, normal)
        token = (folder / "operator.token").read_text().strip()
        assert service.call("GET", "/v1/scopes", token=token).status == 200
        assert (folder / "operator.url").read_text().strip() == service.operator
        service.stop()
    return {"running": running, "stopped": listing(folder, normal)}


def shared_store(checkout: Checkout) -> dict[str, Any]:
    """A node on PostgreSQL that runs a command: its schema, its folder, its metrics, and what it answers without a database."""
    folder, normal = checkout.home / "node", Normal(folders=[(str(checkout.home), "(home)")])
    (checkout.home / "fleet.toml").write_text(FLEET)
    (checkout.home / "command.sh").write_text(COMMAND)
    found: dict[str, Any] = {}
    with postgres.running(checkout.home / "postgres") as server:
        words = ("serve", "--store", server.address, "--state-dir", str(folder), "--executor", "command")
        more = ("--fleet", "fleet.toml", "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0")
        command = f"/bin/sh {checkout.home / 'command.sh'}"
        with checkout.serving(*words, *more, FOREWARN_COMMAND=command, FOREWARN_TOKEN=TOKEN) as service:
            service.wait_ready()
            freeze = {"type": "Freeze", "targets": {"scope": "solo"}}
            assert service.call("POST", "/v1/maintenances", freeze).status == 201
            until(lambda: (checkout.home / "given.env").exists(), "the command runs")
            found["command"] = _given(checkout.home)
            until(lambda: any(folder.glob("orders/*/begun")), "the runner has begun")
            found["while the command runs"] = listing(folder, normal)
            (path,) = folder.glob("orders/*/request.json")
            found["request.json"] = shape({**json.loads(path.read_text()), "environment": {}})
            found["metrics"] = metrics(service.call("GET", "/metrics").body)
            found["schema"] = _statements(server.schema())
            server.stop()
            found["without a database"] = _without_database(service, normal)
            service.stop()
        (checkout.home / "go").touch()
        until(lambda: any(folder.glob("orders/*/result.json")), "the command has ended")
        found["after the command"] = listing(folder, normal)
        (result,) = folder.glob("orders/*/result.json")
        found["result.json"] = json.loads(result.read_text())
    return found


def _without_database(service: Served, normal: Normal) -> dict[str, Any]:
    until(lambda: service.call("GET", "/v1/scopes").status == 503, "the node has noticed")
    sent = request("GET", f"{PATH}?api-version={VERSION}")
    return {
        "guest of a scope that is not enabled": normal.text(exchange(service.guest, "127.0.0.10", sent).decode()),
        "operator": service.call("GET", "/v1/scopes").json["error"]["code"],
    }


def _statements(dumped: str) -> dict[str, Any]:
    """Each statement of pg_dump by how it begins; tables with their columns and constraints by name."""
    lines = [line for line in dumped.splitlines() if not line.startswith(("--", "SET ", "\\", "SELECT pg_catalog"))]
    found: dict[str, Any] = {}
    for statement in "\n".join(lines).split(";\n\n"):
        head, _, rest = statement.strip().partition(" (\n")
        if head.startswith("CREATE TABLE"):
            parts = [schema_text(line).rstrip(",") for line in rest.splitlines()[:-1]]
            found[head] = {part.removeprefix("CONSTRAINT ").partition(" ")[0]: part for part in parts}
        elif head:
            text = schema_text(statement)
            found[" ".join(text.split()[:8])] = text
    return found


def agent(checkout: Checkout) -> dict[str, Any]:
    """An agent through one Reboot: its files, records, metrics, exit codes, and what it gives to a step's command."""
    folder, normal = checkout.home / "machine", Normal(folders=[(str(checkout.home), "(home)")])
    folder.mkdir(mode=0o700)
    (folder / "boot").write_text("boot-1")
    found: dict[str, Any] = {}
    with (
        checkout.serving("emulate", "--seed", "1", "--clock", "manual", "--port", "0") as service,
        checkout.program("forewarn-agent") as program,
        checkout.program("forewarn") as forewarn,
    ):
        (folder / "agent.toml").write_text(AGENT.format(endpoint=service.guest))
        (folder / "agent.toml").chmod(0o600)

        def ends(*words: str) -> int:
            return program(*words, folder=folder).code

        exits = {
            "status before": ends("status", "--config", "agent.toml"),
            "check": ends("check", "--config", "agent.toml"),
        }
        words = [checkout.command("forewarn-agent"), "run", "--config", "agent.toml"]
        with (checkout.home / "log").open("wb") as log:
            running = subprocess.Popen(words, cwd=folder, stderr=log, env=checkout.environment())
        try:
            until(lambda: "start" in _kinds(folder), "the agent has begun")
            reboot = {"type": "Reboot", "targets": {"machines": ["vm-0"]}}
            assert service.call("POST", "/v1/maintenances", reboot).status == 201
            until(lambda: "started" in _kinds(folder), "the event has started")
            exits["status"] = ends("status", "--config", "agent.toml")
            exits["second agent"] = ends("run", "--config", "agent.toml")
            exits["simulate beside it"] = ends("simulate", "Reboot", "--config", "agent.toml")
            found["status"] = shape(
                json.loads(program("status", "--json", "--config", "agent.toml", folder=folder).out)
            )
            service.advance(3_600)
            until(lambda: "in-service" in _kinds(folder), "the agent is back")
            until(lambda: "in_service 1" in (folder / "agent.prom").read_text(), "the metrics say so")
            until(lambda: '"told"' in (folder / "state" / "journal.jsonl").read_text().splitlines()[-1], "all was told")
            exits["recording"] = forewarn(
                "record", "--endpoint", service.guest, "--for", "1s", "--output", "recorded"
            ).code
        finally:
            running.terminate()
            exits["SIGTERM"] = running.wait(WITHIN_S)
        history = program("history", "--json", "--config", "agent.toml", folder=folder)
        exits |= {"history": history.code, "status afterwards": ends("status", "--config", "agent.toml")}
        exits |= {"simulate": ends("simulate", "Reboot", "--in", "5m", "--config", "agent.toml")}
    exits |= {"nobody answers": ends_of(checkout, "check", "--config", str(folder / "agent.toml"))}
    exits |= {"no file": ends_of(checkout, "check", "--config", "none.toml"), "no command": ends_of(checkout)}
    exits |= {"file is there": ends_of(checkout, "init", str(folder / "agent.toml"))}
    recorded = [json.loads(line) for line in (checkout.home / "recorded").read_text().splitlines()]
    found |= {
        "exits": exits,
        "files": listing(folder, normal),
        "records": _records(folder),
        "history is the journal": history.out.count("\n")
        == len((folder / "state" / "journal.jsonl").read_text().splitlines()),
        "metrics": metrics((folder / "agent.prom").read_text()),
        "command": _given(folder),
        "log handler": _merged(json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()),
        "recording": [shape(each) for each in recorded],
    }
    return found


def ends_of(checkout: Checkout, *words: str) -> int:
    with checkout.program("forewarn-agent") as program:
        return program(*words).code


def _journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "state" / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def _kinds(folder: Path) -> set[str]:
    return {record["kind"] for record in _journal(folder)}


def _records(folder: Path) -> dict[str, Any]:
    """The fields of each kind of record."""
    records = _journal(folder)
    return {kind: _merged(each for each in records if each["kind"] == kind) for kind in {r["kind"] for r in records}}


def _merged(records: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in records:
        for key, value in record.items():
            found.setdefault(key, {})[json.dumps(shape(value), sort_keys=True)] = "seen"
    return found
