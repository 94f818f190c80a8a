"""Several nodes on one PostgreSQL."""

from pathlib import Path

from bench.node_commits import measure_commits
from bench.node_house import database_server
from bench.report import Verdict
from bench.size import Size


def run(folder: Path, size: Size) -> list[Verdict]:
    with database_server(folder) as server:
        return measure_commits(server, folder, size)
