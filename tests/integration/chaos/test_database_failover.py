"""The database's primary is killed under load: what was acknowledged is kept, and no guest sees an older document.

Real PostgreSQL under Patroni with etcd, three nodes that name all its servers, and the load and the checker of every run.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from tests.integration.chaos.check_documents import stage
from tests.integration.chaos.checker import Verdict, check
from tests.integration.chaos.history import Fault, History, Recorder, Request
from tests.integration.chaos.run import NODES, run
from tests.integration.chaos.three_nodes import MAX_STALE_S, running_three_nodes
from tests.support.own_network import own_network
from tests.support.patroni_cluster import SQL_PORT, WITHIN_S, Cluster, Member, cluster_of
from tests.support.waiting import PATIENCE_S, until

SEED = 4
CALM_S, AFTERWARDS_S = 5.0, 5.0
# How long nobody leads: longer than guests get answers from a node's memory.
LEADERLESS_S = MAX_STALE_S + 4.0
# Of a failover that loses commits: what was acknowledged after the standby had all there was, and was under way then.
LOST_WITHIN_S = 2.0
PRIMARY_KILLED, STANDBY_HAD_ALL = "primary killed", "a standby had all there was"
# All the time limits of a test together, of the cluster, the nodes and the run.
RUN_WITHIN_S = 900.0
GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")


@contextmanager
def failing_over(folder: Path, *, synchronous: bool) -> Iterator[tuple[Cluster, History]]:
    """The cluster after it all, and what happened."""
    with own_network(), cluster_of(synchronous=synchronous) as cluster:
        with psycopg.connect(f"{address_of(cluster, 'postgres')}", autocommit=True) as connection:
            connection.execute("CREATE DATABASE forewarn")
        address = address_of(cluster, "forewarn")
        with running_three_nodes(folder, [address] * NODES, address) as nodes:
            worst = partial(kill_the_primary, cluster)
            seconds = CALM_S + AFTERWARDS_S
            yield (
                cluster,
                run(nodes.nodes_now, worst, SEED, folder=folder, work_log=nodes.work_log, seconds=seconds),
            )


def address_of(cluster: Cluster, database: str) -> str:
    """Every server; the one that can be written is taken. A server that is off refuses at once."""
    hosts = ",".join(f"{each.address}:{SQL_PORT}" for each in cluster.members)
    return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write&connect_timeout={int(PATIENCE_S)}"


def kill_the_primary(cluster: Cluster, recorder: Recorder) -> None:
    """SIGKILL to all of its machine; it comes back when another leads, which must let operators make changes again."""
    time.sleep(CALM_S)
    primary = cluster.leader
    caught_up_s = time.monotonic()
    wait_for_standby(primary)
    recorder.record(Fault(at_s=caught_up_s, what=STANDBY_HAD_ALL, node=primary.name))
    primary.down()
    recorder.record(Fault(at_s=time.monotonic(), what=PRIMARY_KILLED, node=primary.name))
    time.sleep(LEADERLESS_S)
    cluster.end_lease()
    assert cluster.leader is not primary
    led_s = time.monotonic()
    primary.up()
    until(lambda: any(r.begin_s > led_s for r in changes(recorder.history)), WITHIN_S)
    time.sleep(AFTERWARDS_S)


def wait_for_standby(primary: Member) -> None:
    """Wait until a standby has all that the primary has saved by now: on a busy machine it may be behind by seconds."""
    with psycopg.connect(f"postgresql://postgres@{primary.address}:{SQL_PORT}/postgres", autocommit=True) as connection:
        (now,) = connection.execute("SELECT pg_current_wal_lsn()").fetchall()
        behind = "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= %s"
        until(lambda: connection.execute(behind, now).fetchall() != [(0,)])


def killed_s(history: History) -> float:
    return moment_s(history, PRIMARY_KILLED)


def moment_s(history: History, what: str) -> float:
    (fault,) = [each for each in history.faults if each.what == what]
    return fault.at_s


def without_writes_s(history: History) -> float:
    """The longest time in which nobody's change was acknowledged, around the death of the primary."""
    at_s, ends = killed_s(history), sorted(r.end_s for r in changes(history))
    return max(later - earlier for earlier, later in pairwise(ends) if later > at_s and earlier < at_s + WITHIN_S)


def changes(history: History) -> list[Request]:
    """Return the changes by operators that were acknowledged."""
    return [r for r in history.requests if r.acknowledged and (r.what == "submit" or " " in r.what)]


def summary(history: History, verdict: Verdict) -> str:
    polls = [r for r in history.requests if r.what == "poll" and r.end_s > killed_s(history)]
    refused = [r.end_s for r in polls if r.status == 503]
    silence_s = max(refused) - min(refused) if refused else 0.0
    return (
        f"{verdict}\nseconds without writes: {without_writes_s(history):.1f}, in which guests were refused for"
        f" {silence_s:.1f} s (max_stale {history.run.max_stale_s:g} s)"
    )


def epochs(history: History) -> set[int]:
    return {stage(r.etag)[0] for r in history.requests if r.what == "poll" and r.acknowledged}


def failovers(history: History) -> list[str]:
    return [entry.detail for entry in history.audit if entry.action == "database failed over"]


@pytest.mark.timeout(RUN_WITHIN_S)
def test_a_primary_with_a_synchronous_standby_is_killed(tmp_path: Path) -> None:
    """No complaint: nothing acknowledged is lost, nothing starts twice or early. Epochs begin all the same: nobody can know."""
    with failing_over(tmp_path, synchronous=True) as (cluster, history):
        verdict = check(history)
        print(summary(history, verdict))
        assert verdict.complaints == ()
        assert verdict.share == 1.0
        assert verdict.promised > 0
        assert failovers(history) == [f"commits may be lost: {len(history.scopes)} scope(s) begin a new epoch"]
        assert epochs(history) == {1, 1_001}
        until(lambda: cluster.confirmed, WITHIN_S)


@pytest.mark.timeout(RUN_WITHIN_S)
def test_a_primary_without_one_is_killed(tmp_path: Path) -> None:
    """Every scope begins a new epoch, once; no complaint but of what was acknowledged just before, which may be lost."""
    with failing_over(tmp_path, synchronous=False) as (_, history):
        verdict = check(history)
        print(summary(history, verdict))
        may_be_lost = last_things(history)
        assert [each for each in verdict.complaints if not may_be_lost.intersection(GUID.findall(each))] == []
        (detail,) = failovers(history)
        assert detail == f"commits may be lost: {len(history.scopes)} scope(s) begin a new epoch"
        assert epochs(history) == {1, 1_001}


def last_things(history: History) -> set[str]:
    """Return what a client saw, or an executor worked at, just before the primary died, with all that belongs to it."""
    since_s, until_s = moment_s(history, STANDBY_HAD_ALL) - LOST_WITHIN_S, killed_s(history)

    def late(request: Request) -> bool:
        return request.acknowledged and since_s <= request.end_s and request.begin_s <= until_s

    found = {each for r in history.requests if late(r) for each in (*r.ids, *r.answered_ids)}
    found |= {each for r in history.requests if late(r) and r.body for each in GUID.findall(r.body)}
    found |= {w.order for w in history.worked if history.at(since_s) <= w.at <= history.at(until_s)}
    of = {event.id: event.maintenance for event in history.events}
    found |= {of[each] for each in found if each in of}
    return found | {event for event, maintenance in of.items() if maintenance in found}
