"""`forewarn serve` as a real process: ready, healthy, refusing wrong settings, and stopping in time."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.formatting import count
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Status, Targets
from forewarn.service.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.support.serve_process import Served, clean_environment, forewarn, run, serving
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"

[[machines]]
name = "web-0"
scope = "shop"
host = "rack1-a"
"""


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def test_a_service_reports_ready_and_stops_in_time(tmp_path: Path, fleet: str) -> None:
    """One line names the listeners; health and readiness answer; SIGTERM ends it with 0 after less than 5 s of waiting."""
    with serving("--store", f"sqlite:{tmp_path}/f.db", "--fleet", fleet) as service:
        assert service.lines[:-1] == [
            "+ scope shop (availability-set)",
            "+ machine shop/web-0",
            "fleet: 2 difference(s) applied",
        ]
        assert service.get("/healthz")[0] == 200
        assert service.until_ready() == {
            "ready": True,
            "checks": {"store": "ok", "ticker": "ok", "executor": "ok", "guest": "ok"},
        }
        code, waited_s = service.stop()
    assert code == 0
    assert waited_s < 5


def test_many_signals_at_once_stop_a_service_in_time(tmp_path: Path) -> None:
    """A service that gets many signals at once still ends after less than 5 s of waiting."""
    with serving("--store", f"sqlite:{tmp_path}/f.db") as service:
        for _ in range(200):
            service.process.send_signal(signal.SIGINT)
            service.process.send_signal(signal.SIGTERM)
        code, waited_s = service.stop()
    assert code == 0
    assert waited_s < 5


# Python empties the module sys at its very end, when it no longer runs handlers of signals.
ENDING_SLOWLY = """
import os
import sys
from forewarn.cli.app import run

class Last:
    def __del__(self, write=os.write, read=os.read):
        write(1, b"ending\\n")
        read(0, 1)

sys.last = Last()
run()
"""


def test_a_signal_at_the_very_end_of_a_service_does_not_kill_it(tmp_path: Path) -> None:
    """The service has stopped, and says so with its exit code."""
    options = ["--store", f"sqlite:{tmp_path}/f.db", "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0"]
    command = [sys.executable, "-c", ENDING_SLOWLY, "serve", *options]
    with (
        clean_environment() as environment,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as service,
    ):
        assert service.stdin is not None
        assert service.stdout is not None
        assert any(line.startswith("ready ") for line in service.stdout)
        service.send_signal(signal.SIGTERM)
        assert any(line == "ending\n" for line in service.stdout)
        for number in (signal.SIGTERM, signal.SIGINT):
            service.send_signal(number)
        service.stdin.close()
    assert service.returncode == 0


def test_applying_the_same_fleet_again_changes_nothing(tmp_path: Path, fleet: str) -> None:
    """Applying a fleet is idempotent, also across restarts."""
    for expected in ("fleet: 2 difference(s) applied", "fleet: no difference"):
        with serving("--store", f"sqlite:{tmp_path}/f.db", "--fleet", fleet) as service:
            assert service.lines[-2] == expected
            assert service.stop()[0] == 0


def test_a_wrong_fleet_file_is_refused(tmp_path: Path) -> None:
    """The error names the entry and the valid keys; exit code 2; nothing of the file is saved."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(FLEET + '\n[[machines]]\nname = "web-1"\nscope = "shop"\nupdatedomain = 1\n')
    result = run("serve", "--store", f"sqlite:{tmp_path}/f.db", "--fleet", str(wrong))
    assert result.returncode == 2
    assert (
        f'{wrong}: machines[1] "web-1": updatedomain: unknown key; did you mean update_domain? The keys here are name, scope,'
        in result.stderr
    )
    with closing(SqliteStore(tmp_path / "f.db")) as store:
        assert not store.inventory().scopes


def test_a_database_is_served_by_one_process(tmp_path: Path) -> None:
    """A second process is refused, with the id of the first; the first still answers."""
    with serving("--store", f"sqlite:{tmp_path}/f.db") as service:
        second = run("serve", "--store", f"sqlite:{tmp_path}/f.db", "--operator", "127.0.0.1:0")
        assert second.returncode == 1
        assert f"used by another forewarn process (pid {service.process.pid})" in second.stderr
        assert service.get("/healthz")[0] == 200


def test_an_address_in_use_is_an_error() -> None:
    """The error names the address and the reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", "--store", "memory:", "--guest", "127.0.0.1:0", "--operator", address)
    assert result.returncode == 2
    assert f"cannot listen on {address}: Address already in use" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--clock", "sometimes"], {}, "clock 'sometimes' is unknown"),
        (["--store", "mongodb:"], {}, "write sqlite:PATH, postgresql:"),
        (["--executor", "gremlins"], {}, "--executor: 'gremlins' is unknown: use one of external, command, simulated"),
        (["--executor", "command"], {}, "the command executor needs a command"),
        (["--operator", "8170"], {}, "--operator: '8170' is not HOST:PORT"),
        ([], {"FOREWARN_ORDER_TIMEOUT": "soon"}, "FOREWARN_ORDER_TIMEOUT: 'soon' is not a duration"),
        ([], {"FOREWARN_COLOUR": "red"}, "FOREWARN_COLOUR: unknown setting"),
        (["--config", "/nowhere.toml"], {}, "/nowhere.toml: cannot be read: No such file"),
        (["--fleet", "/nowhere.toml"], {}, "/nowhere.toml: cannot be read: No such file"),
        (["--guest", "0.0.0.0:8169"], {}, "0.0.0.0:8169 would answer on every interface"),
        (["--guest", "metadata:80"], {}, "does not begin with an IP address"),
        ([], {"FOREWARN_COMMAND_TIME_LIMIT": "0"}, "FOREWARN_COMMAND_TIME_LIMIT: a command needs some time"),
        ([], {"FOREWARN_RETAIN_HISTORY": "999999999d"}, "is longer than ten years"),
        ([], {"FOREWARN_SIMULATED_FAILURES": "shop/web-0"}, "is not a whole number"),
        ([], {"FOREWARN_TRUSTED_PROXIES": "127.0.0.9"}, "set `proxy_secret_file` as well"),
        (
            ["--executor", "command"],
            {"FOREWARN_COMMAND": "/bin/true", "FOREWARN_ORDER_TIMEOUT": "5m"},
            "must be longer than command_time_limit",
        ),
    ],
)
def test_wrong_settings_end_with_2_and_a_message(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    """The message names the setting and what to write instead; there is no traceback."""
    defaults = ["--store", "memory:", "--guest", "127.0.0.1:0"]
    result = run("serve", *(defaults if "--store" not in arguments else []), *arguments, **environment)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_large_fleet_file_shows_progress(tmp_path: Path, fleet: str) -> None:
    """The service says what it read before it saves it; a small fleet needs no such line."""
    shown: list[str] = []
    for many in (1, 1_000):
        service = Service(load({"store": "memory:", "state_dir": str(tmp_path / "state")}, {}))
        lines = service.apply_fleet_file(Path(fleet), shown.append, many_machines=many).lines
        service.close()
    scopes, machines = (count(sum(f"+ {what} " in line for line in lines), what) for what in ("scope", "machine"))
    assert shown == [f"fleet: {scopes} and {machines} read from {fleet}; saving them"]


def test_a_command_survives_a_restart_of_the_service(tmp_path: Path, fleet: str) -> None:
    """SIGTERM while a command runs: the service exits with 0 in time, and its next start takes the command's result."""
    state, database = tmp_path / "state", tmp_path / "f.db"
    command = tmp_path / "maintain"
    command.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n")
    command.chmod(0o700)
    config = tmp_path / "serve.toml"
    config.write_text(
        f'store = "sqlite:{database}"\nstate_dir = "{state}"\nexecutor = "command"\ncommand = ["{command}"]\nfleet = "{fleet}"\n'
    )
    quiet = load({"store": f"sqlite:{database}", "state_dir": str(tmp_path / "prepared")}, {})
    prepared = Service(quiet)
    prepared.apply_fleet_file(Path(fleet))
    # No guest of the scope ever polled: no notice is due, the event starts at once.
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop"))
    maintenance_id = prepared.control.submit(request, Actor("operator"))
    prepared.close()
    with serving("--config", str(config)) as first:
        until(lambda: (tmp_path / "runs").exists())
        code, waited_s = first.stop()
    assert code == 0
    assert waited_s < 5
    with serving("--config", str(config)) as second:
        (tmp_path / "go").touch()
        reader = SqliteStore(database)
        until(lambda: _status(reader, maintenance_id) is Status.COMPLETED)
        reader.close()
        assert second.stop()[0] == 0
    assert (tmp_path / "runs").read_text() == "run\n"


def _status(store: SqliteStore, maintenance_id: str) -> Status:
    return store.events(EventQuery(maintenance_id=maintenance_id)).events[0].status


def test_the_example_fleet_is_served_as_in_the_quickstart(tmp_path: Path) -> None:
    """The example's configuration and fleet, copied from the repository, start a service."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    process = subprocess.Popen(
        forewarn(
            "serve",
            "--config",
            "examples/serve.toml",
            "--operator",
            "127.0.0.1:0",
            "--guest",
            "127.0.0.1:0",
            "--state-dir",
            "run",
        ),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        service = Served(process)
        assert service.lines[-2] == "fleet: 10 difference(s) applied"
        assert service.stop()[0] == 0
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "run" / "forewarn.db").exists()


def test_without_the_server_extra_the_error_names_it(tmp_path: Path) -> None:
    """A bare install ends with 2 and the command to install the rest."""
    program = "import sys; sys.modules['typer'] = None; from forewarn.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert "pip install 'forewarn[server]'" in result.stderr


def test_version_and_help() -> None:
    """Help names every command and the default of each option, and loses nothing to markup."""
    assert run("--version").stdout.startswith("forewarn ")
    help_text = run("--help").stdout
    assert all(command in help_text for command in ("serve", "db"))
    flags = " ".join(run("serve", "--help", COLUMNS="200").stdout.split())
    for default in ("127.0.0.1:8169", "127.0.0.1:8170", "system", "external", "info"):
        assert f"[default: {default}]" in flags
    assert "HOST:PORT[@INTERFACE]" in flags


def test_a_state_directory_that_cannot_be_made_is_an_error() -> None:
    """The error names the folder; exit code 2."""
    result = run("serve", "--state-dir", "/proc/nowhere")
    assert result.returncode == 2
    assert "state_dir: /proc/nowhere cannot be made" in result.stderr


def test_a_machine_that_is_not_in_the_fleet_file_is_removed_only_with_prune(tmp_path: Path, fleet: str) -> None:
    """A machine that moved to another scope conflicts with its old entry; the error names --prune, which removes that."""
    store = ["--store", f"sqlite:{tmp_path}/f.db"]
    text = FLEET.replace('host = "rack1-a"', 'addresses = ["10.0.0.4"]')
    Path(fleet).write_text(text)
    with serving(*store, "--fleet", fleet) as service:
        assert service.stop()[0] == 0
    Path(fleet).write_text(text.replace('"shop"', '"store"'))
    refused = run("serve", *store, "--fleet", fleet, "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0")
    assert refused.returncode == 2
    assert f"{fleet}: it does not fit the present fleet: machine store/web-0: addresses: 10.0.0.4" in refused.stderr
    assert "--prune" in refused.stderr
    with serving(*store, "--fleet", fleet, "--prune") as service:
        assert "- machine shop/web-0" in service.lines


def test_a_large_removal_is_refused_at_start(tmp_path: Path, fleet: str) -> None:
    """`serve` cannot ask, so an emptied fleet file does not empty the fleet; the error says how to do it."""
    store = ["--store", f"sqlite:{tmp_path}/f.db"]
    with serving(*store, "--fleet", fleet):
        pass
    Path(fleet).write_text("")
    refused = run("serve", *store, "--fleet", fleet, "--prune", "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "it removes 1 machine and 1 scope that the file does not contain" in refused.stderr
    assert f"forewarn fleet apply {fleet} --prune" in refused.stderr
    assert "what is not in the file stays" not in refused.stderr
    assert json.loads(run("db", "status", "--json", *store).stdout)["machines"] == "1"
