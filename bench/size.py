"""How much each bench does: in full for figures, at toy size to see that every path still runs."""

from dataclasses import dataclass

from bench.history import Past


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`judged` says whether the figures mean enough to be held against their targets."""

    judged: bool
    machines: tuple[int, ...]
    due_events: int
    tick_rounds: int
    burst_events: int
    spawns: int
    transition_rounds: int
    transition_scopes: int
    bare_commits: int
    agent_changes: int
    agent_idle_s: float
    agent_settle_s: float
    emulator_starts: int
    emulator_fixtures: int
    pasts: tuple[Past, Past]
    list_rounds: int
    failovers: int
    portal: tuple[int, int, int]  # machines, open events, rounds
    node_writers: tuple[int, ...]
    node_count: int
    node_changes: int
    node_approvers: int
    node_approvals: int
    node_scopes: int
    node_machines: int
    node_polls: tuple[int, int, float]  # scopes, rounds, seconds
    kvm: tuple[int, int]  # rounds, guests of the host that is emptied
    planned: tuple[int, int]  # machines, rounds
    simulation_seeds_per_round: int


FULL = Size(
    judged=True,
    machines=(10_000, 1_000_000),
    due_events=100,
    tick_rounds=15,
    burst_events=10_000,
    spawns=3,
    transition_rounds=7,
    transition_scopes=100,
    bare_commits=50,
    agent_changes=100,
    agent_idle_s=30.0,
    agent_settle_s=3.0,
    emulator_starts=15,
    emulator_fixtures=100,
    pasts=(Past(100, 60, 6_000), Past(10_000, 1_000, 1_000_000)),
    list_rounds=15,
    failovers=3,
    portal=(10_000, 1_000, 5),
    node_writers=(1, 3),
    node_count=3,
    node_changes=300,
    node_approvers=500,
    node_approvals=5,
    node_scopes=100_000,
    node_machines=1_000_000,
    node_polls=(50, 9, 2.0),
    kvm=(5, 10),
    planned=(100_000, 5),
    simulation_seeds_per_round=40,
)
TOY = Size(
    judged=False,
    machines=(200, 1_000),
    due_events=10,
    tick_rounds=1,
    burst_events=20,
    spawns=1,
    transition_rounds=1,
    transition_scopes=5,
    bare_commits=2,
    agent_changes=2,
    agent_idle_s=0.5,
    agent_settle_s=0.5,
    emulator_starts=1,
    emulator_fixtures=3,
    pasts=(Past(100, 10, 200), Past(200, 20, 2_000)),
    list_rounds=1,
    failovers=1,
    portal=(400, 50, 1),
    node_writers=(2,),
    node_count=2,
    node_changes=3,
    node_approvers=20,
    node_approvals=1,
    node_scopes=1_000,
    node_machines=1_000,
    node_polls=(4, 1, 0.1),
    kvm=(1, 1),
    planned=(1_000, 1),
    simulation_seeds_per_round=1,
)
