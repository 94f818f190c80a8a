"""The redeployment of a cluster leader's machine with notice, for tests and bench."""

from pathlib import Path

import psycopg

from forewarn.core.model import Status
from tests.integration.handlers.agent_process import Agent
from tests.integration.handlers.service_with_event import page_steps, service_with_event
from tests.support.patroni_cluster import LOGIN, SQL_PORT, WITHIN_S, Cluster, Member, streaming
from tests.support.waiting import PATIENCE_S, until

# The example of the documentation, with this cluster's addresses.
(PAGE_STEP,) = page_steps("patroni")
# What a platform does: the machine's power goes, its agent with it.
POWER_OFF = (
    "kill -KILL $(cat {agent}/agent.pid) $(cat {member}); touch {agent}/down;"
    " while [ -e {agent}/down ]; do sleep 0.1; done"
)


def connection_string(cluster: Cluster, within_s: float = PATIENCE_S) -> str:
    """Return a connection string that leads to the current leader. A member that is off refuses at once."""
    hosts = f"host={cluster.addresses} port={SQL_PORT} user=postgres dbname=postgres"
    return f"{hosts} target_session_attrs=read-write connect_timeout={int(within_s)}"


class Rows:
    """Writes numbers into a table of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._connection = psycopg.connect(connection_string(cluster, 1.0), autocommit=True)

    def write(self, number: int) -> None:
        self._connection.execute("INSERT INTO rows VALUES (%s)", (number,))

    def close(self) -> None:
        self._connection.close()


def rows(cluster: Cluster) -> set[int]:
    with psycopg.connect(connection_string(cluster)) as connection:
        return {n for (n,) in connection.execute("SELECT n FROM rows")}


def with_table(cluster: Cluster) -> None:
    """Create the table for the rows."""
    with psycopg.connect(connection_string(cluster), autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (n bigint PRIMARY KEY)")


def login_in(folder: Path) -> Path:
    path = folder / "login"
    path.write_text(LOGIN + "\n")
    path.chmod(0o600)
    return path


def step_of(member: Member, login: Path) -> str:
    step = PAGE_STEP.replace("http://10.0.0.4:8008", member.url).replace('"pg0"', f'"{member.name}"')
    return step.replace("/etc/forewarn/patroni", str(login))


def redeployed(cluster: Cluster, folder: Path) -> None:
    """Redeploy the leader: its agent hands over, approves, dies with its machine, and brings the member back."""
    leader = cluster.leader
    agent_folder = folder / "agent-0"
    power_off = POWER_OFF.format(agent=agent_folder, member=leader.pid_file)
    with service_with_event(folder, command=power_off) as service:
        agent = service.agent(step_of(leader, login_in(folder)))
        agent.up()
        until(lambda: (agent_folder / "down").exists(), WITHIN_S)
        successor = cluster.leader
        assert successor is not leader, "it went down as the leader"
        (handed_over,) = agent.ended("prepare")
        assert handed_over["ok"] is True
        assert agent.records.index(handed_over) < agent.kinds.index("approving")
        boot(agent, leader)
        until(lambda: "in-service" in agent.kinds, WITHIN_S)
        assert leader.name in streaming(successor)
        until(lambda: service.status is Status.COMPLETED, WITHIN_S)


def boot(agent: Agent, member: Member) -> None:
    """Boot the machine again."""
    agent.kill()
    member.down()
    (agent.folder / "boot").write_text("boot-2")
    member.up()
    agent.up()
    (agent.folder / "down").unlink()
