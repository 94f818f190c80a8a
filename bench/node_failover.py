"""What a failover that may have lost commits costs before the first change: every scope begins a new epoch at once.

The nodes' agreement on a server is made wrong by hand, which is what a promoted replica without a synchronous standby looks
like; then the store is asked to agree. The peer is one bare UPDATE of the same rows.
"""

import time
from contextlib import closing
from pathlib import Path

from tests.support.postgres_servers import Server

from bench.measure import median_ratio
from bench.report import Verdict, at_most, print_table
from bench.size import Size
from forewarn.store.postgres.pool import FLEET_WITHIN_S
from forewarn.store.postgres.store import PostgresStore

ROUNDS = 3
LEAST_ROOM = 0.25
SCOPES = """INSERT INTO forewarn.scopes SELECT 'scope-' || to_char(s, 'FM000000'), 'availability-set', 'any', false, 20, 300,
    '{{}}', true, 1, 1, 1, now() FROM generate_series(1, {scopes}) s"""
BARE = "CREATE TABLE IF NOT EXISTS bare AS SELECT * FROM forewarn.scopes"
UPDATE_BARE = "UPDATE bare SET epoch = epoch + 1000, incarnation = 1, version = version + 1000000"


def measure_epochs(server: Server, folder: Path, size: Size) -> list[Verdict]:
    del folder
    name = server.database()
    ours_s, bare_s = [], []
    with closing(PostgresStore(server.address(name))) as store:
        server.execute(SCOPES.format(scopes=size.node_scopes), name)
        server.execute(BARE, name)
        for _ in range(ROUNDS):
            server.execute("UPDATE forewarn.cluster SET timeline = 0", name)
            began_s = time.monotonic()
            if not store.adopt():
                raise RuntimeError("the store found nothing to agree on")
            ours_s.append(time.monotonic() - began_s)
            began_s = time.monotonic()
            server.execute(UPDATE_BARE, name)
            bare_s.append(time.monotonic() - began_s)
    ratio = median_ratio(ours_s, bare_s)
    rows = [["new epochs", f"{max(ours_s):.2f} s", f"{ratio:.1f}"], ["bare UPDATE", f"{max(bare_s):.2f} s", "1.0"]]
    title = f"{size.node_scopes:,} scopes begin a new epoch after a failover, the longest of {ROUNDS} in turns"
    print_table(title, ["what", "longest", "ratio"], rows)
    name = f"seconds for {size.node_scopes:,} new epochs (a statement may take {FLEET_WITHIN_S})"
    return [at_most(name, max(ours_s), FLEET_WITHIN_S * LEAST_ROOM)]
