"""`patroni` on a real PostgreSQL cluster: the leader's machine is announced to go, and goes; then one goes unannounced."""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forewarn.core.model import Status
from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers import patroni
from forewarn.guest.handlers.members import Spec
from tests.e2e.test_serve import until
from tests.handlers.announced import Agent, announced, page_steps, run_of
from tests.handlers.loopback import alone
from tests.handlers.patronis import LOGIN, SQL_PORT, TTL_S, WITHIN_S, Cluster, Member, cluster_of, streaming
from tests.handlers.writer import writing

# The example of the documentation, with this cluster's addresses.
(PAGE_STEP,) = page_steps("patroni")
# What a platform does: the machine's power goes, its agent with it.
POWER_OFF = (
    "kill -KILL $(cat {agent}/pid) $(cat {member}); touch {agent}/down; while [ -e {agent}/down ]; do sleep 0.1; done"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with alone(), cluster_of() as made:
        with psycopg.connect(everywhere(made), autocommit=True) as connection:
            connection.execute("CREATE TABLE rows (n bigint PRIMARY KEY)")
        yield made


@pytest.fixture
def login(tmp_path: Path) -> Path:
    path = tmp_path / "login"
    path.write_text(LOGIN + "\n")
    path.chmod(0o600)
    return path


def everywhere(cluster: Cluster) -> str:
    """To whoever leads."""
    hosts = f"host={cluster.addresses} port={SQL_PORT} user=postgres dbname=postgres"
    return f"{hosts} target_session_attrs=read-write connect_timeout=1"


class Rows:
    """A row for each number."""

    def __init__(self, cluster: Cluster) -> None:
        self._connection = psycopg.connect(everywhere(cluster), autocommit=True)

    def write(self, number: int) -> None:
        self._connection.execute("INSERT INTO rows VALUES (%s)", (number,))

    def close(self) -> None:
        self._connection.close()


def rows(cluster: Cluster) -> set[int]:
    with psycopg.connect(everywhere(cluster)) as connection:
        return {n for (n,) in connection.execute("SELECT n FROM rows")}


def step_of(member: Member, login: Path) -> str:
    step = PAGE_STEP.replace("http://10.0.0.4:8008", member.url).replace('"pg0"', f'"{member.name}"')
    return step.replace("/etc/forewarn/patroni", str(login))


def spec_of(member: Member, login: Path, **more: str) -> Spec:
    return patroni.parse({"url": member.url, "member": member.name, "login_file": str(login), **more}, "here")


def test_a_replica_has_nothing_to_do(cluster: Cluster, login: Path) -> None:
    """It is prepared as it is, the leader stays, and it counts as back at once."""
    leader, replica = cluster.members
    spec = spec_of(replica, login)
    assert patroni.check(spec) == []
    patroni.prepare(spec, run_of())
    assert patroni.verify(spec, run_of()) is True
    patroni.recover(spec, run_of())
    assert cluster.leader is leader


def test_what_keeps_a_leader_from_handing_over(cluster: Cluster, login: Path) -> None:
    """A login that Patroni does not know, a candidate that is not there; told, and the leader still leads."""
    leader, _ = cluster.members
    assert patroni.verify(spec_of(leader, login), run_of()) is False
    with pytest.raises(StepFailed, match="no member can take over: there is no 'pg7'"):
        patroni.prepare(spec_of(leader, login, candidate="pg7"), run_of())
    assert patroni.check(spec_of(leader, login, candidate="pg7")) == [
        "the cluster has no member 'pg7': it has pg0, pg1"
    ]
    login.write_text("operator:wrong-password")
    with pytest.raises(StepFailed, match="Patroni refuses a switchover: 401") as caught:
        patroni.prepare(spec_of(leader, login), run_of())
    assert "wrong-password" not in str(caught.value)
    assert cluster.leader is leader


def test_the_leaders_machine_goes_announced_and_another_unannounced(
    cluster: Cluster, login: Path, tmp_path: Path
) -> None:
    """It hands over, approves once the new leader is confirmed, and brings the member back; no acknowledged row is lost."""
    leader, replica = cluster.members
    agent_folder = tmp_path / "agent-0"
    power_off = POWER_OFF.format(agent=agent_folder, member=leader.pid_file)
    with writing(lambda: Rows(cluster)) as writer, announced(tmp_path, command=power_off) as service:
        agent = service.agent(step_of(leader, login))
        agent.up()
        until(lambda: (agent_folder / "down").exists(), WITHIN_S)
        assert cluster.leader is replica  # when its power went, it had handed over
        assert agent.kinds.count("approved") <= 1
        (handed_over,) = agent.ended("prepare")
        assert handed_over["ok"] is True
        boot(agent, leader)
        until(lambda: agent.kinds[-1] == "in-service" or service.status is Status.COMPLETED, WITHIN_S)
        until(lambda: "in-service" in agent.kinds, WITHIN_S)
        assert streaming(replica) == [leader.name]
        until(lambda: service.status is Status.COMPLETED, WITHIN_S)
        announced_s = writer.longest_gap_s()
        lost = set(writer.acknowledged) - rows(cluster)
        assert lost == set()

        killed_s = time.monotonic()
        replica.down()
        until(lambda: writer.last_s > killed_s + 1, WITHIN_S)
        unannounced_s = writer.longest_gap_s(killed_s)
    print(f"seconds without writes: {announced_s:.1f} announced, {unannounced_s:.1f} unannounced (ttl {TTL_S} s)")
    assert announced_s < unannounced_s


def boot(agent: Agent, member: Member) -> None:
    """The machine comes up again."""
    agent.kill()
    member.down()
    (agent.folder / "boot").write_text("boot-2")
    member.up()
    agent.up()
    (agent.folder / "down").unlink()
