"""How long nobody can write when a database's leader goes down: announced, with an agent that hands over, and unannounced.

A real PostgreSQL under Patroni with etcd, Patroni's usual times, and a writer that never stops. An acknowledged row that is
gone after an announced Redeploy is an error of the agent. Needs root, and what `scripts/test_tools` installs.
"""

import time
from pathlib import Path

from tests.integration.handlers.database_handover import Rows, redeployed, rows, with_table
from tests.integration.handlers.steady_writer import writing
from tests.support.own_network import own_network
from tests.support.patroni_cluster import cluster_of
from tests.support.waiting import until

from bench.report import Verdict, none_of, print_table
from bench.size import Size

# Patroni's own defaults; and shorter ones, at toy size. A leader that a busy machine holds up for the whole of the TTL loses its
# lead, so the TTL is not shorter than the least that Patroni recommends.
TTL_S, LOOP_S = 30, 10
TOY_TTL_S, TOY_LOOP_S = 20, 1
WITHIN_S = 120.0


def run(folder: Path, size: Size) -> list[Verdict]:
    rounds = [_round(folder / str(number), size) for number in range(size.failovers)]
    head = ["what happens to the leader's machine", *(f"round {number + 1}" for number in range(size.failovers))]
    table = [
        ["Redeploy, announced to its agent", *(f"{announced_s:.1f} s" for announced_s, _, _ in rounds)],
        ["power lost, unannounced", *(f"{unannounced_s:.1f} s" for _, unannounced_s, _ in rounds)],
    ]
    print_table("seconds without writes", head, table)
    return [none_of("acknowledged row lost by an announced Redeploy", sum(lost for _, _, lost in rounds))]


def _round(folder: Path, size: Size) -> tuple[float, float, int]:
    """Seconds without writes, announced and not; and how many rows an announced Redeploy lost."""
    folder.mkdir()
    ttl_s, loop_s = (TTL_S, LOOP_S) if size.judged else (TOY_TTL_S, TOY_LOOP_S)
    with own_network(), cluster_of(ttl_s=ttl_s, loop_s=loop_s) as cluster:
        with_table(cluster)
        with writing(lambda: Rows(cluster)) as writer:
            redeployed(cluster, folder)
            announced_s = writer.longest_gap_s()
            lost = len(set(writer.acknowledged) - rows(cluster))
            until(lambda: cluster.ready, WITHIN_S)
            cluster.leader.down()
            killed_s, written = time.monotonic(), len(writer.acknowledged)
            # The dead leader may have acknowledged one row that the writer had not yet noted.
            until(lambda: len(writer.acknowledged) > written + 1, WITHIN_S)
            return announced_s, writer.longest_gap_s(killed_s), lost
