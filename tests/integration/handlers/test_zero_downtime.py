"""A rolling reboot of a whole scope under load: with agents no request fails, without them some do.

Three machines in network namespaces, each with a small HTTP service, behind two HAProxies that retry nothing; a real `forewarn
serve` whose executor kills every process of a machine and boots it again; eight clients that ask without pause.
"""

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forewarn.guest.journal import read
from tests.support.agent_command import agent_command
from tests.support.budget import BUDGET
from tests.support.network_lab import Lab, Namespace, laboratory
from tests.support.waiting import until

HERE = Path(__file__).parent
ROUNDS = BUDGET
MACHINES = ("web-0", "web-1", "web-2")
ADDRESSES = dict(zip(MACHINES, ("10.88.0.10", "10.88.0.11", "10.88.0.12"), strict=True))
FRONTS, RUNTIMES = ("10.88.0.1:8081", "10.88.0.1:8082"), ("10.88.0.1:9991", "10.88.0.1:9992")
CLIENTS = 8
SERVER, TOKEN = "http://127.0.0.1:8170", "t" * 32
FORWARDING = "3"

HAPROXY = """
global
  stats socket ipv4@{runtime} level admin
defaults
  mode http
  retries 0
  timeout connect 1m
  timeout client 1m
  timeout server 1m
  timeout check 1m
frontend all
  bind {front}
  default_backend web
backend web
  balance roundrobin
"""
AGENT = """
state_dir = "state"
boot_id_file = "boot"
[[steps]]
name = "leave the pool"
required = true
timeout = "1m"
haproxy = {{ proxies = {proxies}, servers = ["web/{name}"] }}
[health]
command = ["curl", "-fsS", "-o", "/dev/null", "http://{address}:8080/"]
"""
# What a machine does when it boots.
BOOT = """#!/bin/sh
cd {folder}/{name}
boots=$(($(cat boots 2>/dev/null || echo 0) + 1))
echo $boots >boots
echo boot-$boots >boot
{python} {web_service} {address} 8080 {name}/$boots >>log 2>&1 &
{agent}
wait
"""
# What the operator's tooling does: the machine is off at once with all that runs on it, and done is when it answers again.
REBOOT = """#!/bin/sh
set -eu
for name in $FOREWARN_RESOURCES; do
    space=$(cat {folder}/$name/space)
    while pids=$(ip netns pids "$space"); [ "$pids" ]; do kill -9 $pids || true; done
    echo reboot >>{folder}/$name/did
    sleep 0.5
    setsid ip netns exec "$space" {folder}/$name/init </dev/null >>{folder}/$name/log 2>&1 &
    until curl -fsS -o /dev/null "http://$(cat {folder}/$name/address):8080/" 2>/dev/null; do sleep 0.05; done
done
"""


class Shop:
    """The whole of it, up and answering."""

    def __init__(self, lab: Lab, *, agents: bool) -> None:
        self.lab, self.folder, self._agents = lab, lab.folder, agents
        self.host = lab.namespace("host")
        self.host.run(
            "ip link add br0 type bridge\nip link set br0 up\n"
            "ip address add 10.88.0.1/24 dev br0\nip address add 169.254.169.254/32 dev br0"
        )
        spaces = {name: self._machine(name) for name in MACHINES}
        self._serve()
        for name, space in spaces.items():
            lab.start(space, [f"{self.folder}/{name}/init"])
        for address in ADDRESSES.values():
            until(lambda at=address: "200" in self._status(f"http://{at}:8080/"))  # type: ignore[misc]
        # Only now: a proxy that finds a machine silent answers 503 until two of its checks have succeeded.
        self._balance()
        if agents:
            until(lambda: all("this machine is" in log for log in self.logs()))
            until(lambda: "true" in self._forewarn("scope show shop --json | jq .enabled"))

    def _machine(self, name: str) -> Namespace:
        address = ADDRESSES[name]
        space = self.lab.machine(self.host, name, f"{address}/24")
        self.host.run(f"ip link set {name} master br0 up")
        space.run("ip route add default via 10.88.0.1")
        until(lambda: self.host.run(f"cat /sys/class/net/{name}/brport/state").strip() == FORWARDING)
        folder = self.folder / name
        folder.mkdir()
        agent = f"{shlex.join(agent_command('run', '--config', 'agent.toml'))} >>log 2>&1 &" if self._agents else ""
        files = {
            "space": space.name,
            "address": address,
            "agent.toml": AGENT.format(proxies=list(RUNTIMES), name=name, address=address),
            "init": BOOT.format(
                folder=self.folder,
                name=name,
                python=shlex.quote(sys.executable),
                web_service=shlex.quote(f"{HERE}/web_service.py"),
                address=address,
                agent=agent,
            ),
            "log": "",
        }
        for file, text in files.items():
            folder.joinpath(file).write_text(text)
            folder.joinpath(file).chmod(0o700)
        return space

    def _serve(self) -> None:
        fleet = '[[scopes]]\nname = "shop"\nkind = "availability-set"\n'
        for number, (name, address) in enumerate(ADDRESSES.items()):
            fleet += (
                f'[[machines]]\nscope = "shop"\nname = "{name}"\nupdate_domain = {number}\naddresses = ["{address}"]\n'
            )
        script = self.folder / "reboot"
        script.write_text(REBOOT.format(folder=self.folder))
        script.chmod(0o700)
        settings = f'store = "sqlite:{self.folder}/f.db"\nstate_dir = "{self.folder}/service"\nexecutor = "command"\n'
        settings += f'command = ["{script}"]\nguest = ["169.254.169.254:80"]\nfleet = "{self.folder}/fleet.toml"\n'
        self.lab.write({"fleet.toml": fleet, "serve.toml": settings})
        self.lab.serve(self.host, ["forewarn", "serve", "--config", "serve.toml"], FOREWARN_TOKEN=TOKEN)

    def _balance(self) -> None:
        for number, (front, runtime) in enumerate(zip(FRONTS, RUNTIMES, strict=True)):
            text = HAPROXY.format(front=front, runtime=runtime)
            text += "".join(
                f"  server {name} {address}:8080 check inter 500ms\n" for name, address in ADDRESSES.items()
            )
            self.lab.write({f"haproxy-{number}.cfg": text})
            self.lab.start(self.host, ["haproxy", "-db", "-f", f"haproxy-{number}.cfg"])
        # A request before a proxy listens would count as lost by a reboot.
        for front in FRONTS:
            until(lambda at=front: "200" in self._status(f"http://{at}/"))  # type: ignore[misc]

    def _status(self, url: str) -> str:
        return self.host.run(f"curl -s -o /dev/null -w '%{{http_code}}' {url} || true")

    def _forewarn(self, words: str) -> str:
        return self.host.run(f"FOREWARN_SERVER={SERVER} FOREWARN_TOKEN={TOKEN} forewarn {words}")

    def _completed(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/f.db?mode=ro", uri=True)) as database:
            (count,) = database.execute("SELECT count(*) FROM events WHERE status = 'Completed'").fetchone()
            return int(count)

    def _times(self, kind: str) -> list[int]:
        """How often each agent has written that down."""
        journals = [read(self.folder / name / "state/journal.jsonl")[0] for name in MACHINES]
        return [[record["kind"] for record in records].count(kind) for records in journals]

    def rolling_reboot(self, round_: int = 1) -> dict[str, dict[str, int]]:
        """Of the whole scope, under load, until every machine is back in service; what the clients got."""
        stop, out, begun = self.folder / "stop", self.folder / "load.json", self.folder / "load.begun"
        for path in (stop, out, begun):
            path.unlink(missing_ok=True)
        words = [sys.executable, str(HERE / "load_clients.py"), str(stop), str(out), str(CLIENTS)]
        self.lab.start(self.host, [*words, *(f"http://{front}" for front in FRONTS)])
        until(begun.exists)
        self._forewarn("maintenance schedule --type Reboot --scope shop --yes --no-notice-ok")
        for count in range(3 * round_ - 2, 3 * round_ + 1):
            until(lambda least=count: self._completed() >= least, detail=self.logs)  # type: ignore[misc]
        if self._agents:
            until(lambda: self._times("in-service") == [round_] * 3, detail=self.logs)
        stop.touch()
        until(out.exists)
        counted: dict[str, dict[str, int]] = json.loads(out.read_text())
        return counted

    def logs(self) -> list[str]:
        return [(self.folder / name / "log").read_text() for name in MACHINES]

    def approvals(self) -> dict[str, int]:
        """How many approvals of each machine the service has recorded: the reboot can come before the agent notes its own."""
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/f.db?mode=ro", uri=True)) as database:
            return dict(database.execute("SELECT machine, count(*) FROM approvals GROUP BY machine"))

    def close(self) -> None:
        """Machines that were booted by the executor are nobody's children."""
        for space in self.lab.spaces:
            found = subprocess.run(["ip", "netns", "pids", space.name], capture_output=True, text=True, check=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


@contextmanager
def shop(folder: Path, *, agents: bool) -> Iterator[Shop]:
    with laboratory(folder) as lab:
        made = None
        try:
            made = Shop(lab, agents=agents)
            yield made
        finally:
            if made is not None:
                made.close()


@pytest.mark.timeout(600 * ROUNDS)
def test_with_agents_no_request_fails(tmp_path: Path) -> None:
    """Every machine is rebooted once a round and serves before and after."""
    with shop(tmp_path, agents=True) as made:
        for round_ in range(1, ROUNDS + 1):
            counted = made.rolling_reboot(round_)
            print(f"with agents: {sum(counted['answers'].values())} requests, {sum(counted['errors'].values())} errors")
            assert counted["errors"] == {}, made.logs()
            assert set(counted["answers"]) == {f"{name}/{boot}" for name in MACHINES for boot in (round_, round_ + 1)}
        for name in MACHINES:
            assert (made.folder / name / "did").read_text().split() == ["reboot"] * ROUNDS
        assert made.approvals() == dict.fromkeys(MACHINES, ROUNDS)
        assert max(made._times("approved")) <= ROUNDS


def test_without_agents_requests_fail(tmp_path: Path) -> None:
    """The same reboots under the same load lose requests without agents."""
    with shop(tmp_path, agents=False) as made:
        counted = made.rolling_reboot()
        print(f"without agents: {sum(counted['answers'].values())} requests, and {counted['errors']} errors")
        assert sum(counted["errors"].values()) > 0
        for name in MACHINES:
            assert (made.folder / name / "did").read_text().split() == ["reboot"]
