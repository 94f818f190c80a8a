"""The pages about several nodes are true: their deployment runs as printed, and their tables match the code."""

import json
import re
from collections.abc import Iterator

import pytest

from forewarn.cli import client
from forewarn.endpoint import limits
from forewarn.operator.api import app
from forewarn.service import decisions, follower, leases
from forewarn.service.settings import Settings
from forewarn.service.settings import names as setting_names
from forewarn.store.postgres import dsn, pool, store
from tests.integration.nodes.site import (
    DATABASES,
    GUESTS,
    GUIDE,
    MACHINES,
    MORE,
    OPERATORS,
    STRANGER,
    SUPERUSER,
    Site,
    a_site,
    answered,
    block,
    eventually,
    haproxy,
    nginx,
    with_database,
    with_nodes,
)
from tests.support import guide_blocks as networking
from tests.support.processes import kill_with_children
from tests.support.waiting import until

# Each wait of the fixture has a limit of its own: a busy machine needs long for three databases and four nodes.
pytestmark = pytest.mark.timeout(func_only=True)

NODES, FAILURES = ((GUIDE / page).read_text("utf-8") for page in ("nodes.md", "failures.md"))
WEB_0, WEB_1, DB_0, DB_1 = MACHINES


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with a_site() as made:
        with_database(made)
        with_nodes(made)
        yield made


def test_every_node_is_ready_and_sees_the_standby(site: Site) -> None:
    """The user of the page may see that a synchronous standby is attached: there is nothing to warn of."""
    for node in (*OPERATORS, *GUESTS):
        until(lambda node=node: site.ask(node, "/readyz")[1] == READY)  # type: ignore[misc]
    until(lambda: [site.ask(node, "/v1/scopes")[0] for node in (*OPERATORS, *GUESTS)] == [200, 200, 404, 404])


READY = {"ready": True, "checks": {"store": "ok", "ticker": "ok", "executor": "ok", "guest": "ok"}}


def test_haproxy_balances_guests_by_source_and_says_who_they_are(site: Site) -> None:
    """One machine, one node; all machines, every node. A stranger learns nothing, what was relayed is refused."""
    with haproxy(site):
        for machine in (*MACHINES, *MORE):
            eventually(lambda machine=machine: site.guest(machine), 200)  # type: ignore[misc]
        for machine in (WEB_0, DB_1):
            until(lambda machine=machine: shares_of_six(site, machine) == [0, 6])  # type: ignore[misc]
        until(lambda: every_node_answers(site))
        assert answered(lambda: site.guest(STRANGER))[0] == 404
        for relayed in (
            "X-Forwarded-For: 10.30.0.13",
            "Forwarded: for=10.30.0.13",
            "Via: 1.1 x",
            "X-Real-IP: 10.30.0.13",
        ):
            assert answered(lambda relayed=relayed: site.guest(WEB_0, "-H", relayed))[0] == 400  # type: ignore[misc]
        reboot = {"type": "Reboot", "targets": {"machines": ["web/web-0"]}}
        assert site.create(OPERATORS[0], "/v1/maintenances", reboot)[0] == 201
        until(lambda: events_of(site, WEB_1) != [])
        body = eventually(lambda: site.guest(WEB_1), 200)
        (event,) = json.loads(body)["Events"]
        assert json.loads(body)["DocumentIncarnation"] >= 1
        approval = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
        assert answered(lambda: site.guest(DB_0, "-d", approval))[0] == 400
        forged = f"X-Instance-ID: {MACHINES[DB_0]}"
        assert answered(lambda: site.guest(WEB_1, "-d", approval, "-H", forged))[0] == 200
        (entry,) = [e for e in _audit(site) if e["action"] == "event approved"]
        assert (entry["who"], entry["scope"]) == ("web/web-1", "web")


def every_node_answers(site: Site) -> bool:
    """Let every machine ask; return whether each node has answered some of them.

    A node that is not ready for a moment, because the machine is busy, gets no requests.
    """
    for machine in (*MACHINES, *MORE):
        site.guest(machine)
    return all(site.documents_sent(node) > 0 for node in GUESTS)


def shares_of_six(site: Site, machine: str) -> list[float]:
    """Let a machine ask six times; return how many requests each node answered, the fewest first.

    A node that was not ready for a moment, because the machine is busy, hands its guests to the other.
    """
    before = [site.documents_sent(node) for node in GUESTS]
    for _ in range(6):
        eventually(lambda: site.guest(machine), 200)
    return sorted(site.documents_sent(node) - was for node, was in zip(GUESTS, before, strict=True))


def events_of(site: Site, machine: str) -> list[dict[str, object]]:
    events: list[dict[str, object]] = json.loads(eventually(lambda: site.guest(machine), 200))["Events"]
    return events


def _audit(site: Site) -> list[dict[str, object]]:
    status, page = answered(lambda: site.ask(OPERATORS[1], "/v1/audit"))
    assert status == 200, page
    items = page["items"]
    assert isinstance(items, list)
    return items


def test_nginx_balances_guests_by_source(site: Site) -> None:
    """The same with the maps of the OpenStack page."""
    with nginx(site, networking.block("A proxy at the address itself", "conf.d/metadata.conf")):
        for machine in MACHINES:
            eventually(lambda machine=machine: site.guest(machine), 200)  # type: ignore[misc]
        until(lambda: shares_of_six(site, DB_0) == [0, 6])
        assert answered(lambda: site.guest(STRANGER))[0] == 404


def test_a_dump_restored_on_the_same_server_begins_new_epochs(site: Site) -> None:
    """With the commands of the page; its nodes find that it is another, and there is nothing to migrate.

    It is held until an operator resumes it, and can be held by hand as after a recovery to a point in time.
    """
    site.shell(block("a backup"), **site.variables)
    create, restore = block("restored, into a new database").split("\npg_restore ")
    site.shell(create, **SUPERUSER)
    site.shell(f"pg_restore {restore}", **site.variables)
    output = site.shell(block("with every node stopped").replace("/forewarn?", "/restored?"), **site.variables)
    assert "has schema" in output
    assert "applied" not in output
    config = block(f"/etc/forewarn/serve.toml on {OPERATORS[0]}")
    for address, port in ((OPERATORS[0], "8270"), ("/forewarn?", "/restored?")):
        config = config.replace(
            f"{address}:8170" if port.isdigit() else address, f"{address}:{port}" if port.isdigit() else port
        )
    node = site.serve("restored", config)
    until(lambda: "the database was restored" in (site.folder / "restored.log").read_text())
    before, after = epochs(site, "forewarn"), epochs(site, "restored")
    assert before.keys() == after.keys()
    hold = block("after a recovery to a point in time")
    resume = hold.replace("db hold", "db resume --yes").replace('--reason "recovered to 12:00"', "")
    resumed = site.shell(resume.replace("/forewarn?", "/restored?"), **site.variables)
    assert "held since" in resumed
    assert "the store is held" in site.shell(hold.replace("/forewarn?", "/restored?"), **site.variables)
    assert "recovered to 12:00" in site.shell(resume.replace("/forewarn?", "/restored?"), **site.variables)
    assert all(after[name] >= epoch + 1_000 for name, epoch in before.items()), (before, after)
    kill_with_children(node)


def epochs(site: Site, database: str) -> dict[str, int]:
    address = f"postgresql://postgres@{','.join(DATABASES)}/{database}?target_session_attrs=read-write"
    query = "SELECT name, epoch FROM forewarn.scopes"
    rows = site.shell(f'psql "{address}" --tuples-only --no-align --command "{query}"', **SUPERUSER)
    return {name: int(epoch) for name, _, epoch in (line.partition("|") for line in rows.split())}


def test_while_no_node_is_ready_haproxy_still_asks_them(site: Site) -> None:
    """The database is gone: guests are answered from memory, through the balancer, though every node is unready."""
    with haproxy(site):
        eventually(lambda: site.guest(WEB_0), 200)
        for name in ("patroni-1", "patroni-2", "patroni-3"):
            site.stop(name)
        until(lambda: all(site.ask(node, "/readyz")[0] == 503 for node in GUESTS))
        until(lambda: "'ready' has no server available" in (site.folder / "haproxy.log").read_text(), detail=site.logs)
        assert eventually(lambda: site.guest(WEB_0), 200)
        code, body = site.ask(GUESTS[0], "/readyz")
        assert (code, body["ready"]) == (503, False)
        assert re.match(r"this node has read nothing for \d+ s: ", body["checks"]["store"])  # type: ignore[index]


# -- tables


def rows(heading: str) -> list[list[str]]:
    text = FAILURES.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ][2:]


def test_the_time_limits_are_those_of_the_code() -> None:
    """Each number stands in a constant, each setting is one, in the order of the table."""
    seconds: list[tuple[float, ...]] = [
        (dsn.CONNECT_WITHIN_S,),
        (dsn.FREE_WITHIN_S,),
        (dsn.STATEMENT_WITHIN_S, dsn.PATIENCE_S),
        (dsn.LOCK_WITHIN_S,),
        (dsn.LOCK_WITHIN_S,),
        (dsn.SILENT_WITHIN_S,),
        (pool.FLEET_WITHIN_S,),
        (decisions.MAX_DECISION_AGE_S,),
        (decisions.MAX_DECISION_AGE_S,),
        (limits.MAX_QUEUED_S,),
        (store.DECIDED_WITHIN_S,),
        (dsn.AWAY_S,),
        (follower.UNREADY_AFTER_S,),
        (leases.UNREADY_AFTER_S,),
        (Settings(state_dir=GUIDE).max_stale_s,),
        (leases.LEASE_S, leases.RENEW_EVERY_S),
        (Settings(state_dir=GUIDE).stop_grace_s,),
        (),
        (),
        (),
        (Settings(state_dir=GUIDE).operator_head_timeout_s, app.READ_WITHIN_S),
        (client.CONNECT_S, client.RESPONSE_S),
    ]
    table = rows("Time limits")
    assert [tuple(map(float, re.findall(r"(\d+) s\b", row[1]))) for row in table] == [
        tuple(map(float, s)) for s in seconds
    ]
    named = {name for row in table for name in re.findall(r"`(\w+)`", row[1])}
    assert named - setting_names().keys() == {"connect_timeout"}
    assert f"{leases.ELSEWHERE_AFTER_S:g} s later" in table[15][2]


def test_the_pool_is_as_large_as_told() -> None:
    """Ten connections for each node: those of the pool, the one that listens, and one at the start."""
    text = NODES.partition("\n## Pools")[2].partition("\n## ")[0]
    assert f"at most {pool.MAX_CONNECTIONS} connections" in text
    assert f"at least {pool.MAX_CONNECTIONS + 2} for each node" in text


def test_what_readyz_says_is_what_it_says() -> None:
    """The printed answer is JSON, and its words are those of the code."""
    (printed,) = re.findall(r"```json\n(.*?)```", FAILURES, re.DOTALL)
    body = json.loads(printed)
    assert body["checks"] == READY["checks"]
    from forewarn.store.postgres.feed import _no_standby

    assert body["warnings"] == {"store": _no_standby(0)}
