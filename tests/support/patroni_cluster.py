"""A real PostgreSQL cluster under Patroni with etcd; each member can lose its power."""

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.folders import folder_for_every_user
from tests.support.own_network import clean_environment
from tests.support.processes import kill_with_children
from tests.support.waiting import PATIENCE_S, until

ETCD = "127.0.0.9"
SQL_PORT, REST_PORT = 5432, 8008
LOGIN = "operator:let-me-in"
# Far more than a cluster needs to begin, and to elect a leader, on a busy machine.
WITHIN_S = 300.0
# How long a leader that says nothing more still counts as one: long, so that none loses its lead because the machine is busy.
TTL_S = 60
# Patroni adds the folder with the version itself where it finds it by this name.
BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
CONFIG = """
scope: shop
name: {name}
log: {{level: WARNING}}
restapi:
  listen: {address}:{rest}
  connect_address: {address}:{rest}
  authentication: {{username: operator, password: let-me-in}}
etcd3: {{host: "{etcd}:2379"}}
bootstrap:
  dcs:
    ttl: {ttl_s}
    loop_wait: {loop_s}
    retry_timeout: {retry_s}
    synchronous_mode: {synchronous}
    postgresql:
      use_pg_rewind: true
      parameters: {{wal_keep_size: 64MB, shared_buffers: 16MB, max_connections: 60, wal_retrieve_retry_interval: 500ms}}
  initdb: [{{auth-local: trust}}, {{auth-host: trust}}, {{encoding: UTF8}}, no-sync]
postgresql:
  listen: {address}:{sql}
  connect_address: {address}:{sql}
  data_dir: {folder}/data
  bin_dir: {binaries}
  basebackup: [{{checkpoint: fast}}]
  pgpass: {folder}/pgpass
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: replicator}}
    rewind: {{username: postgres}}
  parameters: {{unix_socket_directories: "{folder}"}}
  pg_hba: ["local all all trust", "host all all 127.0.0.0/8 trust", "host replication all 127.0.0.0/8 trust"]
"""


class Member:
    """A machine of the cluster: everything in it dies with its first process."""

    def __init__(self, folder: Path, number: int, *, ttl_s: int, loop_s: int, synchronous: bool = False) -> None:
        self.name = f"pg{number}"
        self.address = f"127.0.0.{10 + number}"
        self.url = f"http://{self.address}:{REST_PORT}"
        self.folder = folder / self.name
        self.folder.mkdir(mode=0o700)
        _give(self.folder)
        self._file = self.folder / "patroni.yml"
        self._file.write_text(
            CONFIG.format(
                name=self.name, address=self.address, rest=REST_PORT, sql=SQL_PORT, etcd=ETCD, folder=self.folder,
                binaries=BINARIES[-1], ttl_s=ttl_s, retry_s=(ttl_s - loop_s) // 2,
                loop_s=loop_s, synchronous=str(synchronous).lower(),
            )
        )  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        """Start the member in a process namespace: when its first process ends, everything in it ends, as in a power failure."""
        words = ["unshare", "--pid", "--fork", "--mount-proc", *AS_POSTGRES, "patroni", str(self._file)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                words, env={**clean_environment(), "HOME": str(self.folder)}, stdout=log, stderr=log, cwd=self.folder
            )
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        until(lambda: bool(children.read_text()))
        self.pid_file.write_text(children.read_text())

    @property
    def pid_file(self) -> Path:
        """The file with the pid of the first process; killing that takes away the machine's power."""
        return self.folder / "pid"

    def down(self) -> None:
        if self.process is not None:
            # The pid in the file may be another process's by now: a test may have killed the member with it.
            kill_with_children(self.process)
            self.process = None

    def says(self, path: str = "/patroni") -> dict[str, object]:
        """Return what the member's REST API answers, or {}."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                status: dict[str, object] = json.load(answer)
                return status
        except (OSError, ValueError):
            return {}

    @property
    def runs(self) -> bool:
        return self.says().get("state") == "running"

    @property
    def role(self) -> object:
        return self.says().get("role")


class Cluster:
    """The members of a cluster; the first one led when it was created."""

    def __init__(self, folder: Path, members: list[Member]) -> None:
        self.folder, self.members = folder, members

    @property
    def leader(self) -> Member:
        """Return the member that leads, once one answers."""
        leading: list[Member] = []

        def found() -> bool:
            leading.extend(each for each in self.members if each.role in ("master", "primary"))
            return bool(leading)

        until(found, WITHIN_S)
        return leading[0]

    def end_lease(self) -> None:
        """Delete the key of a dead leader, as etcd does at the end of its TTL: the members elect another leader."""
        key = base64.b64encode(b"/service/shop/leader").decode()
        url = f"http://{ETCD}:2379/v3/kv/deleterange"
        with urllib.request.urlopen(url, json.dumps({"key": key}).encode(), timeout=PATIENCE_S) as answer:
            answer.read()

    @property
    def ready(self) -> bool:
        """Return whether every member runs and its lag is known."""
        members = self.members[0].says("/cluster").get("members", [])
        assert isinstance(members, list)
        good = [each for each in members if each["state"] == "running" and each.get("lag", 0) == 0]
        return len(good) == len(self.members)

    @property
    def confirmed(self) -> bool:
        """Return whether a standby confirms every commit."""
        members = self.members[0].says("/cluster").get("members", [])
        assert isinstance(members, list)
        return any(each["role"] == "sync_standby" for each in members)

    @property
    def addresses(self) -> str:
        return ",".join(each.address for each in self.members)

    def log(self) -> str:
        """Return the last lines of the members' logs."""
        logs = [each.folder / "log" for each in self.members]
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())


@contextmanager
def cluster_of(count: int = 2, *, ttl_s: int = TTL_S, loop_s: int = 1, synchronous: bool = False) -> Iterator[Cluster]:
    """Run a cluster whose first member leads and streams to the others; one confirms every commit if `synchronous`."""
    folder = folder_for_every_user("patroni-")
    etcd = _etcd(folder)
    members = [Member(folder, n, ttl_s=ttl_s, loop_s=loop_s, synchronous=synchronous) for n in range(count)]
    cluster = Cluster(folder, members)
    try:
        first, *others = cluster.members
        first.up()
        until(lambda: first.role in ("master", "primary"), WITHIN_S)
        for each in others:
            each.up()
        until(lambda: cluster.ready and cluster.confirmed == synchronous, WITHIN_S)
        yield cluster
    except BaseException:
        print(cluster.log())
        raise
    finally:
        for each in cluster.members:
            each.down()
        etcd.kill()
        etcd.wait()
        shutil.rmtree(folder, ignore_errors=True)


def streaming(leader: Member) -> list[str]:
    """Return the names of the members to which it streams."""
    senders = leader.says().get("replication", [])
    assert isinstance(senders, list)
    return [each["application_name"] for each in senders if each["state"] == "streaming"]


AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def _give(folder: Path) -> None:
    shutil.chown(folder, "postgres", "postgres")


def _etcd(folder: Path) -> "subprocess.Popen[bytes]":
    client, peer = f"http://{ETCD}:2379", f"http://{ETCD}:2380"
    words = ["etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--enable-v2=false"]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    words += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--log-level", "error"]
    with (folder / "etcd.log").open("ab") as log:
        process = subprocess.Popen(words, env=clean_environment(), stdout=log, stderr=log)
    until(lambda: os.system(f"curl -sf {client}/health >/dev/null") == 0, WITHIN_S)
    return process
