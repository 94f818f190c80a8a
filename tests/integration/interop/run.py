"""Runs every client through a whole cycle against a real `forewarn serve`: see the event, approve it, see it start and end.
Then runs the programs of examples/testing whose language is installed.

The requests of each client are recorded byte for byte; --record writes them to the files that `make test` replays.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from forewarn.app.service import Service
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Actor, EventType, MaintenanceRequest, Targets
from forewarn.service.settings import load
from tests.integration.interop.checks import problem, programs
from tests.integration.interop.recording_proxy import RecordingProxy, split_requests

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"
RECORDED = HERE / "recorded"
PROXY_PORT = 8168
WORK_S = 2
CYCLE_WITHIN_S = 60
OPERATOR = Actor("operator", "interop")


def python27() -> list[str]:
    """Return the command of Python 2.7 from the PATH or from pyenv; Debian 12 and later have no package of it."""
    for command in (["python2.7"], ["pyenv", "exec", "python2.7"]):
        version = os.environ.get("PYENV_VERSION") or _newest_pyenv_27()
        environment = {**os.environ, "PYENV_VERSION": version} if version else dict(os.environ)
        if shutil.which(command[0]) and _runs([*command, "--version"], environment):
            return ["env", f"PYENV_VERSION={version}", *command] if version else command
    sys.exit(
        "Python 2.7 is missing: put python2.7 on the PATH or `pyenv install 2.7.18`; Debian 12 has no package of it"
    )


def _newest_pyenv_27() -> str:
    if not shutil.which("pyenv"):
        return ""
    listed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False)
    return max((line.strip() for line in listed.stdout.splitlines() if line.strip().startswith("2.7")), default="")


def _runs(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def clients(folder: Path) -> dict[str, list[str]]:
    """Return the command of each client, to which the address is added."""
    program = folder / "WebClientCycle.exe"
    subprocess.run(["mcs", f"-out:{program}", str(CLIENTS / "WebClientCycle.cs")], check=True)
    return {
        "curl": [str(CLIENTS / "curl.sh")],
        "python27": [*python27(), str(CLIENTS / "python27")],
        "csharp": ["mono", str(program)],
        "node": ["node", str(CLIENTS / "etags.js")],
    }


def fleet(names: list[str]) -> str:
    """Return a fleet with one standalone machine for each client."""
    parts = [
        f'[[scopes]]\nname = "{name}"\nkind = "standalone"\n[[machines]]\nscope = "{name}"\nname = "vm-{name}"\n'
        f'addresses = ["{address(number)}"]\n'
        for number, name in enumerate(names)
    ]
    return "\n".join(parts)


def address(number: int) -> str:
    return f"127.0.1.{number + 1}"


def prepare(store: str, state_dir: str, names: list[str]) -> list[str]:
    """Prepare a store in which each client's scope is enabled and has one event; return the ids of the events."""
    ids = count(1)
    settings = load({"store": store, "state_dir": state_dir}, {})
    service = Service(settings, new_id=lambda: f"{next(ids):08X}-0000-4000-8000-000000000000")
    try:
        control = service.control
        control.apply_fleet(parse_fleet(fleet(names), "interop"), OPERATOR)
        events = []
        for name in names:
            control.enable(name, OPERATOR)
            request = MaintenanceRequest(type=EventType.REBOOT, targets=Targets(scope=name))
            events.append(control.maintenance(control.submit(request, OPERATOR))[1][0].id)
        return events
    finally:
        service.close()


@contextmanager
def served(store: str, state_dir: str) -> Iterator[tuple[str, int]]:
    """Run a real service; yield the address of its guest listener."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FOREWARN_")}
    listeners = ["--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "forewarn", "serve", "--store", store, "--state-dir", state_dir, *listeners],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **clean,
            "FOREWARN_EXECUTOR": "simulated",
            "FOREWARN_SIMULATED_WORK": f"{WORK_S}s",
            "FOREWARN_LOG_LEVEL": "warning",
        },
    )
    try:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready "))
        guest = dict(pair.split("=", 1) for pair in ready.split()[1:])["guest"]
        yield "127.0.0.1", int(guest.rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(timeout=10)


def run(name: str, command: list[str], event_id: str, proxy: RecordingProxy) -> list[bytes]:
    """Run one client to its end; return every request it sent."""
    clean = {key: value for key, value in os.environ.items() if key.lower() not in ("http_proxy", "all_proxy")}
    result = subprocess.run(
        [*command, proxy.url], capture_output=True, text=True, timeout=CYCLE_WITHIN_S, env=clean, check=False
    )
    lines = result.stdout.split("\n")
    expected = [f"seen {event_id}", "approved", "started", "gone", ""]
    if result.returncode or lines != expected:
        sys.exit(f"{name} ended with {result.returncode}: {lines}\n{result.stderr}")
    return [request for recorded in proxy.connections for request in split_requests(bytes(recorded))]


def recordings(name: str, requests: list[bytes]) -> dict[str, bytes]:
    """Return one request of each kind that the client sends, by file name."""
    kinds: dict[str, bytes] = {}
    for request in requests:
        tagged = "-etag" if b"\nif-none-match:" in request.partition(b"\r\n\r\n")[0].lower() else ""
        kinds.setdefault(f"{name}-{request.split(b' ')[0].decode().lower()}{tagged}.http", request)
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the requests of the clients to the recorded files")
    record = parser.parse_args().record
    with tempfile.TemporaryDirectory() as folder:
        commands = clients(Path(folder))
        store, state_dir = f"sqlite:{folder}/forewarn.db", f"{folder}/state"
        events = prepare(store, state_dir, list(commands))
        with served(store, state_dir) as guest:
            for number, (name, command) in enumerate(commands.items()):
                with RecordingProxy(PROXY_PORT, guest, address(number)) as proxy:
                    requests = run(name, command, events[number], proxy)
                kinds = recordings(name, requests)
                print(f"{name}: ok, {len(requests)} requests, {', '.join(kinds)}")
                for file, request in kinds.items():
                    if record:
                        (RECORDED / file).write_bytes(request)
                    elif not (RECORDED / file).exists():
                        sys.exit(f"{file} is not recorded: run scripts/interop --record")
        run_examples(Path(folder))
    return 0


def run_examples(folder: Path) -> None:
    for name, command in programs(folder).items():
        if shutil.which(command[0]) is None:
            print(f"example in {name}: not run, because {command[0]} is not installed")
        elif found := problem(command):
            sys.exit(f"example in {name}: {found}")
        else:
            print(f"example in {name}: ok")


if __name__ == "__main__":
    sys.exit(main())
