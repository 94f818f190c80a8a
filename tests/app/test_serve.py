"""`forewarn serve` as a real process: ready, healthy, refusing what is wrong, and gone in time."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from forewarn.app.service import Service
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Status, Targets
from forewarn.service.settings import load
from forewarn.store import EventQuery
from forewarn.store.sqlite.store import SqliteStore
from tests.support.waiting import PATIENCE_S, until

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


def forewarn(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", *arguments]


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")}
    return subprocess.run(
        forewarn(*arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**clean, **environment},
        check=False,
    )


def cpu_delays_s(pid: int) -> dict[Path, float]:
    """Return for how long each thread of a process was ready to run and got no processor."""
    found = {}
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found[thread] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


class Served:
    """A running service: its lines up to `ready`, and its operator address."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("ready "):
                break
        else:
            assert process.stderr is not None
            pytest.fail(f"it ended before it was ready: {process.stderr.read()}")
        told = dict(pair.split("=", 1) for pair in self.lines[-1].split()[1:])
        self.guest, self.operator = told["guest"], told["operator"]

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(self.operator + path, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def until_ready(self) -> dict[str, object]:
        """Return what `/readyz` says once it says yes: the first cycle may come after the line `ready`."""
        answers: list[tuple[int, dict[str, object]]] = []

        def ready() -> bool:
            answers.append(self.get("/readyz"))
            return answers[-1][0] == 200

        until(ready, told=lambda: answers[-1:])
        return answers[-1][1]

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM; return the exit code and how long it took, without the time for which the machine was too busy."""
        delayed_s: dict[Path, float] = {}
        before_s, begun_s = cpu_delays_s(os.getpid()), time.monotonic()
        self.process.send_signal(signal.SIGTERM)

        def ended() -> bool:
            delayed_s.update(cpu_delays_s(self.process.pid))
            return self.process.poll() is not None

        first_s = cpu_delays_s(self.process.pid)
        until(ended)
        took_s = time.monotonic() - begun_s
        self.process.communicate()
        ours_s = sum(cpu_delays_s(os.getpid()).values()) - sum(before_s.values())
        return self.process.returncode, took_s - ours_s - sum(delayed_s.values()) + sum(first_s.values())


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOREWARN_")}
    process = subprocess.Popen(
        forewarn("serve", "--operator", "127.0.0.1:0", "--guest", "127.0.0.1:0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean,
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return str(path)


def test_it_says_ready_and_is(tmp_path: Path, fleet: str) -> None:
    """One line names the listeners that exist; health and readiness answer; SIGTERM ends it with 0 within 5 s."""
    with serving("--store", f"sqlite:{tmp_path}/f.db", "--fleet", fleet) as service:
        assert service.lines[:-1] == [
            "+ scope shop (availability-set)",
            "+ machine shop/web-0",
            "fleet: 2 difference(s) applied",
        ]
        assert service.get("/healthz")[0] == 200
        assert service.until_ready() == {"ready": True, "checks": {"store": "ok", "ticker": "ok", "guest": "ok"}}
        code, seconds = service.stop()
    assert code == 0
    assert seconds < 5


def test_signals_at_once_do_not_hold_each_other_up(tmp_path: Path) -> None:
    """Ctrl-C twice, or a signal from a terminal and from `make` as well: it still ends."""
    with serving("--store", f"sqlite:{tmp_path}/f.db") as service:
        for _ in range(200):
            service.process.send_signal(signal.SIGINT)
            service.process.send_signal(signal.SIGTERM)
        code, seconds = service.stop()
    assert code == 0
    assert seconds < 5


def test_the_same_fleet_again_is_no_difference(tmp_path: Path, fleet: str) -> None:
    """Applying is idempotent, also across restarts."""
    for expected in ("fleet: 2 difference(s) applied", "fleet: no difference"):
        with serving("--store", f"sqlite:{tmp_path}/f.db", "--fleet", fleet) as service:
            assert service.lines[-2] == expected
            assert service.stop()[0] == 0


def test_a_wrong_fleet_is_refused_whole(tmp_path: Path) -> None:
    """The place in the file and what to do; exit code 2; nothing of it is kept."""
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(FLEET + '\n[[machines]]\nname = "web-1"\nscope = "shop"\nupdatedomain = 1\n')
    result = run("serve", "--store", f"sqlite:{tmp_path}/f.db", "--fleet", str(wrong))
    assert result.returncode == 2
    assert f'{wrong}: machines[1] "web-1": updatedomain: unknown key; the keys here are name, scope,' in result.stderr
    assert not SqliteStore(tmp_path / "f.db").inventory().scopes


def test_a_database_is_served_once(tmp_path: Path) -> None:
    """A second process is refused and told who has it; the first goes on."""
    with serving("--store", f"sqlite:{tmp_path}/f.db") as service:
        second = run("serve", "--store", f"sqlite:{tmp_path}/f.db", "--operator", "127.0.0.1:0")
        assert second.returncode == 1
        assert f"used by another forewarn process (pid {service.process.pid})" in second.stderr
        assert service.get("/healthz")[0] == 200


def test_an_address_in_use_is_said(tmp_path: Path) -> None:
    """Which address, why, and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", "--store", "memory:", "--guest", "127.0.0.1:0", "--operator", address)
    assert result.returncode == 2
    assert f"cannot listen on {address}: Address already in use" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
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
def test_wrong_settings_end_with_2_and_a_sentence(arguments: list[str], environment: dict[str, str], told: str) -> None:
    """No traceback: where the wrong setting stands, and what to write instead."""
    standing = ["--store", "memory:", "--guest", "127.0.0.1:0"]
    result = run("serve", *(standing if "--store" not in arguments else []), *arguments, **environment)
    assert result.returncode == 2
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_work_in_flight_is_safely_left_and_found_again(tmp_path: Path, fleet: str) -> None:
    """SIGTERM while a command runs: exit 0 in time; the command goes on, and the next start picks up its result."""
    state, database = tmp_path / "state", tmp_path / "f.db"
    command = tmp_path / "maintain"
    command.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n")
    command.chmod(0o700)
    config = tmp_path / "serve.toml"
    config.write_text(
        f'store = "sqlite:{database}"\nstate_dir = "{state}"\nexecutor = "command"\ncommand = ["{command}"]\nfleet = "{fleet}"\n'
    )
    quiet = load({"store": f"sqlite:{database}"}, {})
    prepared = Service(quiet)
    prepared.apply_fleet_file(Path(fleet))
    # Nobody of the scope ever asked: no notice is due, the event starts at once.
    request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope="shop"))
    maintenance_id = prepared.control.submit(request, Actor("operator"))
    prepared.close()
    with serving("--config", str(config)) as first:
        until(lambda: (tmp_path / "runs").exists())
        code, seconds = first.stop()
    assert code == 0
    assert seconds < 5
    with serving("--config", str(config)) as second:
        (tmp_path / "go").touch()
        reader = SqliteStore(database)
        until(lambda: _status(reader, maintenance_id) is Status.COMPLETED)
        reader.close()
        assert second.stop()[0] == 0
    assert (tmp_path / "runs").read_text() == "run\n"


def _status(store: SqliteStore, maintenance_id: str) -> Status:
    return store.events(EventQuery(maintenance_id=maintenance_id)).events[0].status


def test_the_example_fleet_is_served_as_the_quickstart_says(tmp_path: Path) -> None:
    """What the example's configuration serves comes up, from the files in the repository."""
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


def test_without_the_server_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """A bare install ends with 2 and one line."""
    program = "import sys; sys.modules['typer'] = None; from forewarn.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert "pip install 'forewarn[server]'" in result.stderr


def test_version_and_help() -> None:
    """Both work; help names every command, each flag's default, and nothing is lost to markup."""
    assert run("--version").stdout.startswith("forewarn ")
    told = run("--help").stdout
    assert all(command in told for command in ("serve", "db"))
    flags = " ".join(run("serve", "--help", COLUMNS="200").stdout.split())
    for default in ("127.0.0.1:8169", "127.0.0.1:8170", "system", "external", "info"):
        assert f"[default: {default}]" in flags
    assert "HOST:PORT[@INTERFACE]" in flags


def test_a_state_directory_that_cannot_be_made_is_said() -> None:
    """No traceback: which folder, why, and what to do."""
    result = run("serve", "--state-dir", "/proc/nowhere")
    assert result.returncode == 2
    assert "state_dir: /proc/nowhere cannot be made" in result.stderr


def test_what_is_not_in_the_fleet_file_goes_only_when_asked(tmp_path: Path, fleet: str) -> None:
    """A machine that moved to another scope collides with its old self: the error says how, and --prune does it."""
    store = ["--store", f"sqlite:{tmp_path}/f.db"]
    text = FLEET.replace('host = "rack1-a"', 'addresses = ["10.0.0.4"]')
    Path(fleet).write_text(text)
    with serving(*store, "--fleet", fleet) as service:
        assert service.stop()[0] == 0
    Path(fleet).write_text(text.replace('"shop"', '"store"'))
    refused = run("serve", *store, "--fleet", fleet, "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0")
    assert refused.returncode == 2
    assert f"{fleet}: it does not fit the fleet there is: machine store/web-0: addresses: 10.0.0.4" in refused.stderr
    assert "--prune" in refused.stderr
    with serving(*store, "--fleet", fleet, "--prune") as service:
        assert "- machine shop/web-0" in service.lines
