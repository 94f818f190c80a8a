"""Several nodes on one PostgreSQL, each figure beside a bare peer in the same run.

Everything shares one machine: the database, the nodes and who asks them. PostgreSQL keeps its durable settings, and its
folder lies beside the other databases of the benches, on a disk. At toy size it does not wait for the disk.
"""

from pathlib import Path

from bench.node_approvals import measure_approvals
from bench.node_commits import measure_commits
from bench.node_failover import measure_epochs
from bench.node_house import database_server
from bench.node_news import measure_news
from bench.node_start import measure_polls, measure_start
from bench.report import Verdict
from bench.size import Size

PARTS = (measure_news, measure_approvals, measure_commits, measure_epochs, measure_start, measure_polls)


def run(folder: Path, size: Size) -> list[Verdict]:
    with database_server(folder, durable=size.judged) as server:
        return [verdict for measure in PARTS for verdict in measure(server, folder, size)]
