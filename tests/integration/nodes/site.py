"""The deployment that docs/guide prints for several nodes, on one machine: files and commands as printed, in other folders.

Its addresses are those of a loopback in a network of its own. What the page leaves to others (etcd, certificates) is here.
"""

import base64
import hmac
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.folders import folder_for_every_user
from tests.support.own_network import clean_environment, own_network
from tests.support.patroni_cluster import AS_POSTGRES
from tests.support.processes import kill_with_children
from tests.support.waiting import PATIENCE_S, first_accepted, until

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
PAGES = ("nodes.md", "balancing.md", "backup.md")
_BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
DATABASES, OPERATORS, GUESTS = (
    ("10.20.0.11", "10.20.0.12", "10.20.0.13"),
    ("10.20.0.21", "10.20.0.22"),
    ("10.20.0.31", "10.20.0.32"),
)
BALANCER, ENDPOINT = "10.20.0.40", "169.254.169.254"
MACHINES = {"10.30.0.11": "i-web-0", "10.30.0.12": "i-web-1", "10.30.0.13": "i-db-0", "10.30.0.14": "i-db-1"}
STRANGER = "10.30.0.99"
# Beside those of the page, so many that some are every node's.
MORE = {f"10.30.0.{n}": f"i-more-{n}" for n in range(21, 33)}
SECRET = "a secret of more than sixteen bytes"
SUPERUSER = {"PGPASSWORD": "a-password-of-your-own"}
URL = f"http://{ENDPOINT}/metadata/scheduledevents?api-version=2020-07-01"
UP_WITHIN_S = 300.0
ASK_EVERY_S = 0.1
# No node has answered, or only that the machine asks too often.
NOT_ANSWERED = (0, 429, 502, 503, 504)
T = TypeVar("T")
FLEET = """
[[scopes]]
name = "web"
kind = "availability-set"
[[scopes]]
name = "db"
kind = "availability-set"
""" + "".join(
    f'[[machines]]\nscope = "{scope}"\nname = "{name}"\naddresses = ["{address}"]\ninstance_id = "{each}"\n'
    for address, each in (MACHINES | MORE).items()
    for scope, name in [("db" if "db" in each else "web", each.removeprefix("i-"))]
)


def block(first_line: str, pages: Sequence[str] = PAGES) -> str:
    """Return the one block of the pages whose first line, a comment, begins like this."""
    printed = [dedent(text) for page in pages for text in _BLOCK.findall((GUIDE / page).read_text("utf-8"))]
    found = [text for text in printed if text.startswith(f"# {first_line}")]
    assert len(found) == 1, f"{len(found)} blocks begin with {first_line!r}"
    return str(found[0])


class Site:
    """What runs, and how to ask it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._begun: dict[str, subprocess.Popen[bytes]] = {}
        self.variables = dict(
            line.split("=", 1) for line in block("/etc/forewarn/environment").splitlines() if not line.startswith("#")
        )

    # -- files and processes

    def write(self, name: str, text: str, *, mode: int = 0o600) -> Path:
        """A file of the page; those it names lie in our folder too."""
        path = self.folder / name
        for place in ("/etc/forewarn/", "/etc/haproxy/", "/etc/ssl/", "/var/lib/postgresql/15/"):
            text = text.replace(place, f"{self.folder}/")
        path.write_text(text)
        path.chmod(mode)
        return path

    def begin(self, name: str, words: list[str], **variables: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words, env={**clean_environment(), **variables}, stdout=log, stderr=log, cwd=self.folder
            )
        self._stack.callback(kill_with_children, process)
        self._begun[name] = process
        return process

    def stop(self, name: str) -> None:
        kill_with_children(self._begun[name])

    def shell(self, script: str, **variables: str) -> str:
        """A block of commands; `forewarn` is ours."""
        ours = f'forewarn() {{ {shlex.quote(sys.executable)} -m forewarn "$@"; }}\n'
        environment = {**os.environ, **clean_environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables}
        done = subprocess.run(
            ["sh", "-eu"], input=ours + script, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, name: str, config: str) -> "subprocess.Popen[bytes]":
        self.write(f"{name}.toml", config)
        words = [sys.executable, "-m", "forewarn", "serve", "--config", str(self.folder / f"{name}.toml")]
        # Memory counts for longer than the 45 s of the page: a busy machine may need more to notice that every database is gone.
        more = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "FOREWARN_MAX_STALE": "10m"}
        return self.begin(name, words, FOREWARN_STATE_DIR=str(self.folder / f"state-{name}"), **more, **self.variables)

    def logs(self) -> str:
        return "\n".join(
            f"-- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in self.folder.glob("*.log")
        )

    # -- asking

    def ask(
        self, node: str, path: str, method: str = "GET", body: object = None, *, key: str = ""
    ) -> tuple[int, dict[str, object]]:
        """An operator, at a node's own address; status 0 where nobody answers. With a key a request takes effect once."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.variables['FOREWARN_TOKEN']}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        request = Request(f"https://{node}:8170{path}", data, headers, method=method)
        trust = ssl.create_default_context(cafile=str(self.folder / "our-authority.pem"))
        try:
            with urlopen(request, timeout=PATIENCE_S, context=trust) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if path != "/metrics" else {"text": text.decode()}
        except HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")
        except OSError:
            return 0, {}

    def guest(self, address: str, *more: str) -> tuple[int, str]:
        """A machine asks at the well-known address: status and body."""
        words = [
            "curl",
            "--silent",
            "--noproxy",
            "*",
            "--max-time",
            "60",
            "--interface",
            address,
            "-H",
            "Metadata:true",
        ]
        done = subprocess.run(
            [*words, "-w", "\n%{http_code}", *more, URL],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        body, _, status = done.stdout.rpartition("\n")
        return int(status or 0), body

    def create(self, node: str, path: str, body: object) -> tuple[int, dict[str, object]]:
        """Repeat a request that creates something until it is answered, under one key, as clients do; return the answer."""
        key = str(uuid.uuid4())
        return answered(lambda: self.ask(node, path, "POST", body, key=key))

    def documents_sent(self, node: str) -> float:
        """How many requests of machines a node has answered with a document."""
        text = first_accepted(lambda: str(self.ask(node, "/metrics")[1].get("text", "")), bool)
        return sum(
            float(n) for n in re.findall(r'^forewarn_guest_requests_total\{status="200"\} (\S+)$', text, re.MULTILINE)
        )


@contextmanager
def a_site() -> Iterator[Site]:
    """A network and a folder; nothing runs yet."""
    folder = folder_for_every_user("site-")
    try:
        with own_network(), ExitStack() as stack:
            for address in (*DATABASES, *OPERATORS, *GUESTS, *MACHINES, *MORE, BALANCER, ENDPOINT, STRANGER):
                subprocess.run(
                    ["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True, env=clean_environment()
                )
            site = Site(folder, stack)
            try:
                yield site
            except BaseException:
                print(site.logs())
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def with_database(site: Site) -> None:
    """Patroni on three machines, a synchronous standby attached, and the database made."""
    _etcd(site)
    for number, address in enumerate(DATABASES, 1):
        _member(site, number, address)
        if number == 1:
            until(lambda: _patroni(site).count('"running"') >= 1 and '"leader"' in _patroni(site), UP_WITHIN_S)
    until(lambda: '"sync_standby"' in _patroni(site), UP_WITHIN_S)
    site.shell(block("once, from any of them"), **SUPERUSER)


def with_nodes(site: Site) -> None:
    """A certificate that operators trust, and the four nodes; the fleet is applied through the first."""
    make_certificate(site, *OPERATORS, *GUESTS)
    site.write("proxy.secret", SECRET + "\n")
    for role, addresses in (("operator", OPERATORS), ("guest", GUESTS)):
        config = block(f"/etc/forewarn/serve.toml on {addresses[0]}")
        for number, address in enumerate(addresses, 1):
            site.serve(f"{role}-{number}", config.replace(addresses[0], address))
    until(lambda: all(site.ask(each, "/readyz")[0] == 200 for each in (*OPERATORS, *GUESTS)), UP_WITHIN_S)
    apply_fleet(site, OPERATORS[0])


def make_certificate(site: Site, *addresses: str) -> None:
    names = ",".join(f"IP:{address}" for address in addresses)
    site.shell(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=forewarn"
        f" -addext subjectAltName={names} -keyout tls.key -out tls.crt 2>/dev/null\n"
        "cp tls.crt our-authority.pem\nchmod 600 tls.key\n"
    )


def apply_fleet(site: Site, address: str) -> None:
    site.write("fleet.toml", FLEET)
    operator = {
        "FOREWARN_SERVER": f"https://{address}:8170",
        "FOREWARN_CA_FILE": str(site.folder / "our-authority.pem"),
        "FOREWARN_TOKEN": site.variables["FOREWARN_TOKEN"],
    }
    site.shell("forewarn fleet apply fleet.toml", **operator)


@contextmanager
def haproxy(site: Site, pages: Sequence[str] = PAGES) -> Iterator[None]:
    more = "".join(f"{address} {each}\n" for address, each in MORE.items())
    site.write("instances.map", block("/etc/haproxy/instances.map") + more)
    config = site.write("haproxy.cfg", block("haproxy.cfg", pages))
    secret = base64.b64encode(SECRET.encode()).decode()
    process = site.begin(
        "haproxy",
        ["haproxy", "-db", "-f", str(config)],
        INSTANCE_ID_SECRET=secret,
        FOREWARN_TOKEN=site.variables["FOREWARN_TOKEN"],
    )
    try:
        for address, port in re.findall(r"bind ([0-9.]+):([0-9]+)", config.read_text()):
            until(lambda address=address, port=port: accepts(address, int(port)))  # type: ignore[misc]
        yield
    finally:
        kill_with_children(process)


def accepts(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


@contextmanager
def nginx(site: Site, metadata: str) -> Iterator[None]:
    """The proxy of the OpenStack page, with the balancing page's group of servers in place of one server."""
    upstream = block("upstream.conf")
    maps = re.sub(r"map \$remote_addr \$instance_id \{.*?\}", _nginx_map(), metadata, flags=re.DOTALL)
    one = "proxy_pass http://127.0.0.1:8169;"
    assert one in maps
    instead = " ".join(re.findall(r"`(proxy_\w+ [^`]*;)`", upstream))
    (site.folder / "signatures.map").write_text("".join(f"{each} {sign(each)};\n" for each in MACHINES.values()))
    config = (
        "daemon off; pid nginx.pid; error_log stderr; events {}\n"
        "http { access_log off; client_body_temp_path body; proxy_temp_path proxied;\n"
        f"proxy_bind {BALANCER};\n{upstream}\n{maps.replace(one, instead)}}}\n"
    )
    (site.folder / "nginx.conf").write_text(config)
    process = site.begin("nginx", ["nginx", "-e", "stderr", "-p", str(site.folder), "-c", "nginx.conf"])
    try:
        yield
    finally:
        kill_with_children(process)


def _nginx_map() -> str:
    return "map $remote_addr $instance_id {\n" + "".join(f"{a} {i};\n" for a, i in MACHINES.items()) + "}"


def sign(instance_id: str) -> str:
    return hmac.new(SECRET.encode(), instance_id.encode(), "sha256").hexdigest()


def _etcd(site: Site) -> None:
    """One that answers at all three addresses."""
    clients = ",".join(f"http://{address}:2379" for address in DATABASES)
    words = [
        "etcd",
        "--data-dir",
        str(site.folder / "etcd"),
        "--unsafe-no-fsync",
        "--enable-v2=false",
        "--log-level",
        "error",
    ]
    words += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
    site.begin("etcd", words)
    until(lambda: _curl(f"http://{DATABASES[0]}:2379/health") != "", UP_WITHIN_S)


def _member(site: Site, number: int, address: str) -> None:
    """The printed file, with this machine's name and addresses where they stand."""
    home = site.folder / f"db{number}"
    home.mkdir(mode=0o700)
    shutil.chown(home, "postgres", "postgres")
    text = block("/etc/patroni/patroni.yml").replace("name: db1", f"name: db{number}")
    text = re.sub(r"((?:listen|connect_address): )10\.20\.0\.11", rf"\g<1>{address}", text)
    text = text.replace("/var/lib/postgresql/15/", f"{home}/")
    # Only where they lie: three servers on one machine need a place each for their sockets and passwords.
    text += f"  parameters: {{unix_socket_directories: '{home}'}}\n  pgpass: {home}/pgpass\n"
    config = site.write(f"patroni-{number}.yml", text)
    shutil.chown(config, "postgres", "postgres")
    # The first process of a namespace: with it all of this machine ends.
    words = ["unshare", "--pid", "--fork", "--mount-proc", *AS_POSTGRES, "patroni", str(config)]
    site.begin(f"patroni-{number}", words, HOME=str(home))


def _patroni(site: Site) -> str:
    del site
    return _curl(f"http://{DATABASES[0]}:8008/cluster")


def _curl(url: str) -> str:
    words = ["curl", "--silent", "--fail", "--noproxy", "*", "--max-time", "3", url]
    return subprocess.run(
        words, env=clean_environment(), capture_output=True, text=True, timeout=10, check=False
    ).stdout


def eventually(ask: Callable[[], tuple[int, str]], status: int) -> str:
    """The body of the first answer with this status, for what other nodes and the balancer must hear of first."""
    return first_accepted(ask, lambda answer: answer[0] == status, UP_WITHIN_S, every_s=ASK_EVERY_S)[1]


def answered(ask: Callable[[], tuple[int, T]]) -> tuple[int, T]:
    """The first answer of a node, whatever its status: where the first answer must be the right one."""
    return first_accepted(ask, lambda answer: answer[0] not in NOT_ANSWERED, UP_WITHIN_S, every_s=ASK_EVERY_S)
