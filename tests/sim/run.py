"""One run of the simulation: a fleet, a few nodes, their guests and an operator, from a seed to the judge's verdict.

First everything happens, with the faults that the seed drew. Then the faults stop, time goes on, and everything that was
started must end.
"""

import gc
import logging
import random
import traceback
from dataclasses import dataclass, replace

from forewarn.app.guest_server import SEEN_EVERY_S
from forewarn.core.change import Change
from forewarn.core.fleet import Fleet
from forewarn.core.model import Actor, ApprovalMode, EventType, Host, Machine, MaintenanceStatus, Scope, ScopeKind
from forewarn.service.clock import MAX_READING_S
from forewarn.service.decisions import MAX_DECISION_AGE_S
from forewarn.store import MaintenanceQuery
from tests.sim.database import MAX_LOST_MS
from tests.sim.guest_checks import Notice
from tests.sim.history import ClockMoved, Entry
from tests.sim.judge import judge
from tests.sim.node import ORDER_TIMEOUT_S, Node, Shared
from tests.sim.parts import CALL_WITHIN_MS
from tests.sim.people import HOSTS, Guest, Operator
from tests.sim.universe import MAX_STEP_MS, Faults, Line, Universe
from tests.sim.window_checks import SALE, SALE_SCOPE, WINDOWS_OF_SCOPE, has_windows, windows

LENGTH_S = 1_800
MAX_ROUNDS = 120
# The longest time from a decision to its commit: in the process, then in the store.
DECISION_MS = int(MAX_DECISION_AGE_S * 1_000) + CALL_WITHIN_MS
# The greatest age of a reading of the clock.
READING_MS = int(MAX_READING_S * 1_000)
OPEN = (MaintenanceStatus.PLANNED, MaintenanceStatus.RUNNING, MaintenanceStatus.PAUSED)
# A run keeps its whole history, so collecting garbage during a run finds little. Each run first collects its predecessor.
gc.set_threshold(1_000_000)


@dataclass(frozen=True, slots=True)
class Run:
    seed: int
    lines: list[Line]
    history: list[Entry]
    complaints: list[str]
    notice: Notice

    @property
    def trace(self) -> list[str]:
        return [str(line) for line in self.lines]


def fleet(choose: random.Random) -> Fleet:
    """Return one to three scopes with different settings, two hosts with machines of every scope, and an empty host."""
    kinds = [
        Scope(name="any", kind=ScopeKind.AVAILABILITY_SET),
        Scope(
            name="each",
            kind=ScopeKind.CLOUD_SERVICE,
            approval=ApprovalMode.ALL,
            minimum_notice_s={EventType.REBOOT: 1_200},
        ),
        Scope(name="pool", kind=ScopeKind.PLACEMENT_GROUP, approve_user_events=True),
    ]
    scopes = sorted(choose.sample(kinds, choose.randint(1, 3)), key=lambda scope: scope.name)
    domains_and_hosts = [(0, "h0"), (0, "h1"), (1, "h1")]
    machines = [
        Machine(scope=scope.name, name=f"m{number}", update_domain=domain, host=host)
        for scope in scopes
        for number, (domain, host) in enumerate(domains_and_hosts)
    ]
    hosts = {name: Host(name=name, fault_domain=number, listed=True) for number, name in enumerate(HOSTS)}
    return Fleet({scope.name: scope for scope in scopes}, {machine.key: machine for machine in machines}, hosts)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be down at once. No wave is larger than this, so that everything can end."""

    of_scopes: str = ""
    machines: int = 0
    hosts: int = 0

    @staticmethod
    def drawn(seed: int, faults: Faults) -> "Budget":
        """Return a budget for every other seed. Machines in place are shut down together: up to two of a scope."""
        if seed % 2:
            return Budget()
        if faults.host_work:
            return Budget(of_scopes="2", hosts=1)
        return Budget(of_scopes=("1", "2", "50%")[seed // 2 % 3], machines=(2, 3, 4, 5)[seed // 2 % 4])


def run_seed(seed: int) -> Run:
    """Run a seed. An error that ends the run is a complaint, so that the seeds after it are run too."""
    gc.collect(0)
    simulation = Simulation(seed)
    try:
        return simulation.run()
    except Exception:
        complaint = f"the run ended with an error:\n{traceback.format_exc()}"
        return Run(seed, simulation.universe.lines, simulation.history, [complaint], Notice(0, 0))


class Simulation:
    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.history: list[Entry] = []
        self.universe = Universe(seed, faults=faults)
        self.shared = Shared(self.universe, self.history.append)
        self.seed = seed
        self._set_back_ms = self._lives_until_ms = 0
        self.universe.log(f"seed {seed}: {self.universe.faults}")

    def run(self) -> Run:
        logger = logging.getLogger("forewarn")
        level, logger.level = logger.level, logging.CRITICAL
        logger.manager._clear_cache()  # type: ignore[attr-defined]
        try:
            self._begin()
            self.universe.pass_time(LENGTH_S * 1_000)
            self._end()
        finally:
            logger.setLevel(level)
        complaints, notice = judge(self.history, self.shared.database.memory, tolerance_ms=DECISION_MS + READING_MS)
        return Run(self.seed, self.universe.lines, self.history, complaints, notice)

    # -- the beginning

    def _begin(self) -> None:
        universe, shared, faults = self.universe, self.shared, self.universe.faults
        faults.on = False
        shared.nodes += [Node(shared, number) for number in range(universe.choose.choice([2, 2, 3, 3, 4]))]
        first, *others = shared.nodes
        first.start()
        stated = fleet(universe.choose)
        budget = Budget.drawn(self.seed, faults)
        limited = {name: replace(scope, max_unavailable=budget.of_scopes) for name, scope in stated.scopes.items()}
        stated = replace(stated, scopes=limited)
        operator = Actor("fleet file")
        if has_windows(self.seed):
            for window in windows():
                first.request(lambda: first.control.put_window(window, operator))  # noqa: B023 - called at once
            scopes = {name: replace(scope, windows=WINDOWS_OF_SCOPE[name]) for name, scope in stated.scopes.items()}
            stated = replace(stated, scopes=scopes)
        first.request(lambda: first.control.apply_fleet(stated, operator))
        if has_windows(self.seed) and SALE_SCOPE in stated.scopes:
            first.request(lambda: first.control.put_no_go_time(SALE, operator))
        first.request(
            lambda: first.control.set_budget(operator, max_hosts_down=budget.hosts, max_machines_down=budget.machines)
        )
        for node in others:
            node.start()
        faults.on = True
        for node in shared.nodes:
            universe.every(universe.choose.choice([40, 60, 100]), node.cycle)
            universe.every(int(SEEN_EVERY_S), node.write_seen)
        self.guests = [Guest(shared, scope, machine) for scope, machine in sorted(stated.machines)]
        shared.on_commit = self._guests_hurry
        self.operator = Operator(shared)
        universe.every(100, self.operator.turn)
        universe.every(faults.crash_every_s, lambda: self._some_node().kill())
        universe.every(faults.blackout_every_s, self._blackout)
        universe.every(faults.away_every_s, self._store_goes_away)
        universe.every(faults.stop_every_s, lambda: self._some_node().stop(universe.about_ms(60)))
        universe.every(faults.clock_every_s, self._clock_is_set)
        universe.every(faults.failover_every_s, self._fail_over)
        universe.every(faults.foreign_every_s, self._foreign_transaction)
        universe.every(200, self._changes_are_forgotten)
        universe.every(faults.forget_every_s, shared.works.forget)

    def _guests_hurry(self, change: Change) -> None:
        """Let a guest of a changed scope poll at once, twice, through any nodes."""
        choose = self.universe.choose
        if self.universe.faults.failover_every_s and change.events and self.universe.chance(0.05):
            self.universe.later(
                choose.randrange(3_000), self._fail_over
            )  # the worst moment is right after guests saw a change
        enabled = any(scope.enabled and scope.incarnation == 1 for scope in change.scopes)
        if not change.scopes or not self.universe.faults.on or (choose.random() < 0.7 and not enabled):
            return
        scope = choose.choice(change.scopes).name
        guests = [guest for guest in self.guests if guest.scope == scope and not guest.gone and not guest.asleep]
        if guests:
            guest = choose.choice(guests)
            for in_ms in sorted(choose.randrange(700) for _ in range(2)):
                self.universe.later(in_ms, lambda: guest.hurry(choose.choice(self.shared.nodes)))

    def _blackout(self) -> None:
        """Kill all nodes at once. By chance the clock is set just before, or while they are down."""
        clock_is_set = self.universe.faults.clock_every_s and self.universe.choose.random() < 0.7
        for node in self.shared.nodes:
            self.universe.later(self.universe.choose.randrange(1_000, 2_000), node.kill)
        if clock_is_set:
            self.universe.later(self.universe.choose.randrange(6_000), self._clock_is_set)

    def _some_node(self) -> Node:
        """Return a node that is not busy, if there is one."""
        idle = [node for node in self.shared.nodes if not node.busy]
        return self.universe.choose.choice(idle or self.shared.nodes)

    def _store_goes_away(self) -> None:
        for node in self.shared.nodes:
            if self.universe.choose.random() < 0.6:
                node.lose_store(self.universe.about_ms(30))

    def _clock_is_set(self) -> None:
        """Set the clock forward or back, by a small step or by a jump."""
        universe = self.universe
        by_ms = universe.choose.choice([universe.choose.randrange(-MAX_STEP_MS, MAX_STEP_MS), *self._jumps_ms()])
        if self._set_back_ms and universe.choose.random() < 0.6:
            by_ms = self._set_back_ms  # the clock is corrected
        self._set_back_ms = -by_ms if by_ms < -MAX_STEP_MS else 0
        universe.set_wall(by_ms)
        self.history.append(ClockMoved(universe.now_ms, by_ms))
        # Every node acts within two seconds.
        for node in self.shared.nodes:
            universe.later(universe.choose.randrange(2_000), node.cycle)

    def _jumps_ms(self) -> list[int]:
        jump_ms = self.universe.faults.jump_s * 1_000
        return [jump_ms, -jump_ms] if jump_ms else []

    def _fail_over(self) -> None:
        """Fail over to another server. Most new servers fail in turn, some with the agreement made on them."""
        if self.universe.now_ms < self._lives_until_ms:
            return
        self._lives_until_ms = self.universe.now_ms + 10 * MAX_LOST_MS
        if self.universe.choose.random() < 0.8:
            self.universe.later(self.universe.choose.randrange(MAX_LOST_MS, 2 * MAX_LOST_MS), self._lose_server)
        self._lose_server()

    def _lose_server(self) -> None:
        for node in self.shared.nodes:
            node.lose_store(self.universe.about_ms(5))
        self.universe.later(1, self.shared.database.fail_over)
        if self.universe.faults.clock_every_s and self.universe.choose.random() < 0.5:
            self.universe.later(2, self._clock_is_set)  # a server has a clock of its own
        for _ in range(8):
            self.universe.later(self.universe.choose.randrange(12_000), self._some_guest_polls)

    def _some_guest_polls(self) -> None:
        awake = [guest for guest in self.guests if not guest.asleep]
        if awake:
            self.universe.choose.choice(awake).hurry(self.universe.choose.choice(self.shared.nodes))

    def _changes_are_forgotten(self) -> None:
        self.shared.database.forget_changes()

    def _foreign_transaction(self) -> None:
        """Keep a long transaction open, which holds back the horizon."""
        database = self.shared.database
        xid = database.begin()
        self.universe.later(self.universe.about_ms(60), lambda: database.end(xid))

    # -- the end

    def _end(self) -> None:
        """Stop the faults; let the operator resolve failures and time go on until nothing is left to do."""
        self.universe.calm()
        nodes = self.shared.nodes
        for node in nodes:
            node.away_until_ms = 0
            node.start()
        for number in range(MAX_ROUNDS):
            for node in nodes:
                node.cycle()
            if not self.shared.database.memory.maintenances(MaintenanceQuery(statuses=OPEN, limit=1)):
                break
            self.operator.finish_all(nodes[number % len(nodes)])
            for guest in self.guests[number % 3 :: 3]:
                if not guest.gone:
                    guest.poll(self.universe.choose.choice(nodes))
            self.universe.pass_time(60_000 if number % 4 else ORDER_TIMEOUT_S * 500)
