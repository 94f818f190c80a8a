"""`patroni` on a real PostgreSQL cluster: the leader's machine goes down with notice, then another without."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers import patroni
from forewarn.guest.handlers.patroni_members import Spec
from tests.integration.handlers.agent_process import new_run
from tests.integration.handlers.database_handover import Rows, login_in, redeployed, rows, with_table
from tests.integration.handlers.steady_writer import writing
from tests.support.budget import BUDGET
from tests.support.own_network import own_network
from tests.support.patroni_cluster import WITHIN_S, Cluster, Member, cluster_of
from tests.support.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_network(), cluster_of() as made:
        with_table(made)
        yield made


@pytest.fixture
def login(tmp_path: Path) -> Path:
    return login_in(tmp_path)


def spec_of(member: Member, login: Path, **more: str) -> Spec:
    return patroni.parse({"url": member.url, "member": member.name, "login_file": str(login), **more}, "here")


def test_a_replica_has_nothing_to_do(cluster: Cluster, login: Path) -> None:
    """It is prepared as it is, the leader stays, and it counts as back at once."""
    leader, replica = cluster.members
    spec = spec_of(replica, login)
    until(lambda: patroni.check(spec) == [])  # a busy member may answer too late
    patroni.prepare(spec, new_run())
    assert patroni.verify(spec, new_run()) is True
    patroni.recover(spec, new_run())
    assert cluster.leader is leader


def test_what_keeps_a_leader_from_handing_over(cluster: Cluster, login: Path) -> None:
    """A wrong login and a missing candidate are reported, and the leader still leads."""
    leader, _ = cluster.members
    assert patroni.verify(spec_of(leader, login), new_run()) is False
    with pytest.raises(StepFailed, match="no member can take over: there is no 'pg7'"):
        patroni.prepare(spec_of(leader, login, candidate="pg7"), new_run())
    unknown = ["the cluster has no member 'pg7': it has pg0, pg1"]
    until(lambda: patroni.check(spec_of(leader, login, candidate="pg7")) == unknown)
    login.write_text("operator:wrong-password")
    with pytest.raises(StepFailed, match="Patroni refuses a switchover: 401") as caught:
        patroni.prepare(spec_of(leader, login), new_run())
    assert "wrong-password" not in str(caught.value)
    assert cluster.leader is leader


@pytest.mark.timeout(600 * BUDGET)
def test_the_leaders_machine_goes_announced_and_another_unannounced(cluster: Cluster, tmp_path: Path) -> None:
    """An announced leader hands over, loses no acknowledged row and returns; the test prints how long writes failed."""
    with writing(lambda: Rows(cluster)) as writer:
        for number in range(BUDGET):
            (tmp_path / str(number)).mkdir()
            redeployed(cluster, tmp_path / str(number))
            until(lambda: cluster.ready, WITHIN_S)
        announced_s = writer.longest_gap_s()
        assert set(writer.acknowledged) - rows(cluster) == set()
        killed_s = time.monotonic()
        cluster.leader.down()
        cluster.end_lease()
        until(lambda: writer.last_s > killed_s + 1, WITHIN_S)
        unannounced_s = writer.longest_gap_s(killed_s)
    # No assertion: any pause of the writer makes a gap too. `redeployed` checks that the leader handed over before it went.
    print(f"seconds without writes: {announced_s:.1f} announced, {unannounced_s:.1f} unannounced")
