"""The recipe of three equal nodes is true: its files and commands run as printed, also those after the loss of a server."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.nodes.site import (
    BALANCER,
    DATABASES,
    MACHINES,
    MORE,
    SECRET,
    UP_WITHIN_S,
    Site,
    a_site,
    answered,
    apply_fleet,
    block,
    eventually,
    haproxy,
    make_certificate,
)
from tests.support.own_network import clean_environment
from tests.support.patroni_cluster import AS_POSTGRES
from tests.support.postgres_servers import program
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(func_only=True)

PAGE = ("three-nodes.md",)
NODES = DATABASES
PRIMARY, STANDBY = NODES[:2]
REPLICATOR = {"PGPASSWORD": "another-of-your-own"}
REBOOT = '"EventType":"Reboot"'
WEB_0 = next(iter(MACHINES))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with a_site() as made:
        _prepare(made, 1)
        _as_postgres(made, 1, f"initdb --auth-local trust --encoding UTF8 --no-sync --pgdata {made.folder}/db1/main")
        _start(made, 1)
        _as_postgres(made, 1, block("once, on 10.20.0.11", PAGE))
        _copy(made, 2, PRIMARY)
        _confirm(made, primary=1)
        make_certificate(made, *NODES, BALANCER)
        made.write("proxy.secret", SECRET + "\n")
        config = block("/etc/forewarn/serve.toml", PAGE)
        for number, address in enumerate(NODES, 1):
            made.serve(f"node-{number}", config.replace(f'"{PRIMARY}:', f'"{address}:'))
        until(lambda: all(made.ask(node, "/readyz")[0] == 200 for node in NODES), UP_WITHIN_S, detail=made.logs)
        with haproxy(made, PAGE):
            apply_fleet(made, BALANCER)
            yield made


def test_the_environment_is_that_of_the_other_page() -> None:
    """One file for every node, in both recipes: the site reads it from the page about several nodes."""
    assert block("/etc/forewarn/environment", PAGE) == block("/etc/forewarn/environment")


def test_the_balancer_serves_guests_and_operators(site: Site) -> None:
    """Every node is ready and sees the synchronous standby; a guest gets its document, an operator the API."""
    for node in NODES:
        until(lambda node=node: "warnings" not in site.ask(node, "/readyz")[1])  # type: ignore[misc]
    assert '"Events":[]' in eventually(lambda: site.guest(WEB_0), 200)
    assert answered(lambda: site.guest(WEB_0, "-H", "X-Forwarded-For: 10.30.0.13"))[0] == 400
    until(lambda: site.ask(BALANCER, "/v1/scopes")[0] == 200)


def test_the_loss_of_the_primarys_server_is_survived(site: Site) -> None:
    """Guests are answered from memory, the standby is promoted by hand, and the old primary returns as a standby."""
    _schedule(site, "the-first-key")
    for machine in (WEB_0, *MORE):  # of one scope, and so many that every node answers some of them
        until(lambda machine=machine: REBOOT in site.guest(machine)[1])  # type: ignore[misc]
    site.stop("postgres-1")
    site.stop("node-1")
    until(lambda: all(site.ask(node, "/readyz")[0] == 503 for node in NODES[1:]))
    assert REBOOT in eventually(lambda: site.guest(WEB_0), 200)
    _as_postgres(site, 2, block("on 10.20.0.12\n", PAGE))
    until(lambda: all(site.ask(node, "/readyz")[0] == 200 for node in NODES[1:]), detail=site.logs)
    until(lambda: len(_items(site, "/v1/events")) == 1)
    shutil.rmtree(site.folder / "db1" / "main")
    _copy(site, 1, STANDBY)
    _confirm(site, primary=2)
    until(lambda: "warnings" not in site.ask(NODES[2], "/readyz")[1])
    _schedule(site, "the-second-key")


def _schedule(site: Site, key: str) -> None:
    """Repeat the request until it is answered, as clients do: the balancer answers 503 while it finds no node ready."""
    reboot = {"type": "Reboot", "targets": {"machines": ["web/web-0"]}}
    until(lambda: site.ask(BALANCER, "/v1/maintenances", "POST", reboot, key=key)[0] == 201, detail=site.logs)


def _items(site: Site, path: str) -> list[object]:
    items = site.ask(BALANCER, path)[1].get("items")
    return items if isinstance(items, list) else []


# -- PostgreSQL as the page configures it


def _prepare(site: Site, number: int) -> None:
    """Make the folder of one server; its data directory and its sockets lie there."""
    home = site.folder / f"db{number}"
    home.mkdir(mode=0o755, exist_ok=True)
    shutil.chown(home, "postgres", "postgres")


def _start(site: Site, number: int) -> None:
    """Start a server with the page's files added to those that initdb made."""
    data = site.folder / f"db{number}" / "main"
    settings = block("/etc/postgresql/15/main/conf.d/forewarn.conf", PAGE)
    if number == 2:
        settings = settings.replace(f"'{PRIMARY}'", f"'{STANDBY}'").replace("'db1'", "'db2'")
    rules = block("added to /etc/postgresql/15/main/pg_hba.conf", PAGE)
    name = f"postgres-{number}"
    file = site.write(f"{name}.conf", f"include '{data}/postgresql.conf'\n{settings}", mode=0o644)
    access = site.write(f"{name}.hba", f"local all all trust\n{rules}", mode=0o644)
    # Only where things lie and what a test can go without: two servers on one machine, and no power cut.
    ours = {"hba_file": access, "unix_socket_directories": data.parent, "fsync": "off"}
    options = [word for key, value in ours.items() for word in ("-c", f"{key}={value}")]
    words = [program("postgres"), "-D", str(data), "-c", f"config_file={file}", *options]
    # The first process of a namespace: with it all of this server ends.
    site.begin(name, ["unshare", "--pid", "--fork", "--mount-proc", *AS_POSTGRES, *words])
    until(lambda: _psql(site, number, "SELECT 1") == "1", UP_WITHIN_S, detail=site.logs)


def _copy(site: Site, number: int, primary: str) -> None:
    """Make a standby with the page's command, and start it."""
    _prepare(site, number)
    command = block(f"on {NODES[number - 1]}, while its server is stopped", PAGE)
    assert f"@{primary}/" in command
    _as_postgres(site, number, command.replace("/var/lib/postgresql/15/", f"{site.folder}/db{number}/"), **REPLICATOR)
    _start(site, number)


def _confirm(site: Site, *, primary: int) -> None:
    attached = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
    until(lambda: _psql(site, primary, attached) == "1", detail=site.logs)
    _as_postgres(site, primary, block("on the primary, when the standby is attached", PAGE))
    synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    until(lambda: _psql(site, primary, synchronous) == "1", detail=site.logs)


def _psql(site: Site, number: int, statement: str) -> str:
    words = ["psql", "-h", str(site.folder / f"db{number}"), "-U", "postgres", "-AtXc", statement, "postgres"]
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip()


def _as_postgres(site: Site, number: int, script: str, **variables: str) -> None:
    """Run commands of the page as the user postgres of one server."""
    home = site.folder / f"db{number}"
    done = subprocess.run(
        [*AS_POSTGRES, "sh", "-eu"],
        input=script,
        env={**clean_environment(), "PGHOST": str(home), "HOME": str(home), **variables},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
