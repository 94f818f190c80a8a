"""A trial of one behaviour: its own emulator, the agent as a process, and what both show.

On a busy machine an agent does little in a second. So seconds alone decide nothing: the agent has failed to act when its time is
over *and* it has polled several times since without acting, or when it no longer polls.

Two files show what the agent does inside: its hooks append a line to `{prepared}` each time it has prepared, and one to
`{recovered}` each time it has undone that. The number of lines is read when an approval arrives, before it is answered.
"""

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from forewarn.testing.conform.agent_process import AgentFailed, AgentProcess
from forewarn.testing.conform.event_kinds import CATALOGUE, EventKind
from forewarn.testing.conform.probe import KindResult
from forewarn.testing.conform.trial_emulator import TrialEmulator, TrialFleet
from forewarn.testing.emulator import Scheduled
from forewarn.testing.request_log import LoggedRequest

CLAIMS = {
    "approval": "it approves events by itself",
    "prepare": "its prepare hook appends a line to {prepared}",
    "recover": "its recover hook appends a line to {recovered}",
    "restart": "it remembers across a kill what it did",
    "preempt": "it handles Preempt, which version 2017-11-01 and later show",
}
MACHINE = "vm-0"
SEED = 1
RATE_LIMIT = 5
# The agent must see a Preempt early enough to use the rest of its 30 s of notice.
SEEN_WITHIN_S = 5.0
# An agent has failed to act after this time, pauses after failures included, and after this many polls: both must be over.
PATIENCE_S = 10.0
PATIENCE_POLLS = 5
# To check that the agent does not act, wait this long after its next poll, and the time that it took to act in the probe.
QUIET_S = 0.4
CHECK_EVERY_S = 0.05
# An agent that got no document has failed after this many refused polls.
MAX_REFUSALS = 5
MAX_HOOK_BYTES = 65_536
# A supervisor pauses before it starts an agent again. An agent that ends more often in one trial has failed.
RESTART_AFTER_S = 0.2
MAX_RESTARTS = 100
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """How long, on the agent's own clock, the first answer takes, and how long an endpoint that is moved is away."""

    first_answer_s: int
    outage_s: float


class Interrupted(Exception):
    """The caller wants to end the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """The agent under test, and how a run treats it.

    `silence_s` is how long the agent may not poll during a wait. With `restarts` the agent may end, and is started again.
    """

    command: Sequence[str]
    claims: frozenset[str]
    environment: Mapping[str, str]
    delays: Delays
    patience_s: float = PATIENCE_S
    silence_s: float = PATIENCE_S
    machine: str = MACHINE
    listen: str = ""
    restarts: bool = False
    declared: tuple[EventKind, ...] = ()

    @property
    def kinds(self) -> tuple[EventKind, ...]:
        return self.declared or CATALOGUE


class Trial:
    """Runs the agent and waits for what it does.

    `results` are the results of the probe, and `usable` those with which the behaviour is tested.
    """

    def __init__(
        self,
        setup: AgentSetup,
        folder: Path,
        stopping: threading.Event,
        results: Sequence[KindResult] = (),
        usable: Sequence[KindResult] = (),
        faults: Sequence[Mapping[str, object]] = (),
    ) -> None:
        self.setup, self._folder, self._stopping = setup, folder, stopping
        self.results, self.usable = results, usable
        self.agent = AgentProcess()
        self._variables: Mapping[str, str] = {}
        self.restarts = 0
        self._hooks = folder / "hooks"
        self._hooks.mkdir()
        (folder / "state").mkdir(mode=0o700)
        self.claims, self.delays = setup.claims, setup.delays
        self.names = TrialFleet(setup.machine)
        self.machine = setup.machine
        # On a manual clock notice does not run out while the agent works, and work does not end by itself.
        self.emulator = TrialEmulator(
            lambda: self.prepared,
            self.machine,
            fleet=self.names.fleet,
            guest=setup.listen,
            clock="manual",
            seed=SEED,
            faults=faults,
            executor="external",
            rate_limit=RATE_LIMIT,
        )

    @contextmanager
    def run_emulator(self) -> Iterator[None]:
        with self.emulator:
            try:
                yield
            finally:
                # Before the endpoint ends, so that the agent's output does not end with complaints about that.
                self.agent.kill()

    # -- events

    def schedule(self, kind: EventKind | None = None, *machines: str, **options: object) -> Scheduled:
        """Schedule an event, by default of a kind that the agent handles and of its own machine."""
        return self.emulator.schedule_kind(kind or self.usable[0].kind, *(machines or (self.machine,)), **options)

    def schedule_held(self, kind: EventKind | None = None, *machines: str) -> Scheduled:
        """Schedule an event that stays Scheduled even if it is approved, because of its `earliest`."""
        return self.schedule(kind, *machines, earliest=timedelta(hours=2))

    # -- the agent

    def start(self, **variables: str) -> None:
        """Start the agent, with further environment variables. It finds the state that it left in its folder."""
        self._variables = variables
        values = placeholders(self.emulator.endpoint, self.machine, self._folder)
        inherited = {key: value for key, value in self.setup.environment.items() if key.lower() not in PROXY_VARIABLES}
        environment = {
            **inherited,
            "FOREWARN_ENDPOINT": values["endpoint"],
            "STATE_DIRECTORY": str(self._folder / "state"),
            **{f"CONFORM_{name.upper()}": value for name, value in values.items()},
            **variables,
        }
        self.agent.start([_fill_in(argument, values) for argument in self.setup.command], environment)

    def kill(self) -> None:
        """Kill the agent, and log every request that it sent: no later request is from this process."""
        self.agent.kill()
        self.emulator.read_what_was_sent()

    def ends_on_sigterm(self, within_s: float) -> bool:
        self.agent.terminate()
        deadline_s = time.monotonic() + within_s
        while self.agent.exit_code() is None and not self._stopping.is_set():
            if time.monotonic() > deadline_s:
                return False
            self._pause()
        return True

    def _pause(self) -> None:
        self.agent.read_output()
        self.emulator.log.wait(lambda _: None, CHECK_EVERY_S)

    def break_preparation(self) -> None:
        """Make the prepare hook fail from now on, by removing the folder of its file."""
        self._hooks.rmdir()

    # -- what the agent did

    @property
    def prepared(self) -> int:
        return _count_lines(self._hooks / "prepared")

    @property
    def recovered(self) -> int:
        return _count_lines(self._hooks / "recovered")

    @property
    def requests(self) -> list[LoggedRequest]:
        return self.emulator.requests()

    @property
    def polls(self) -> list[LoggedRequest]:
        return [each for each in self.requests if each.polls]

    @property
    def refusals(self) -> list[LoggedRequest]:
        """The polls that the service refused because of an error in the request, not because of a fault or the rate."""
        return [
            each for each in self.polls if (each.status or 0) >= 400 and str(each.status) not in ("429", each.fault)
        ]

    @property
    def rate_limited(self) -> int:
        """How many requests the rate limit refused."""
        return sum(each.status == 429 and not each.fault for each in self.requests)

    @property
    def served(self) -> bool:
        """Whether the agent got a document, or would have got one without the faults."""
        polls = self.polls
        return any(each.incarnation is not None for each in polls) or (bool(polls) and not self.refusals)

    def approvals(self, event: Scheduled) -> list[LoggedRequest]:
        """Return the approvals whose answer reached the agent; others may be repeated."""
        return [each for each in self.requests if event.id in each.approves and each.status == 200 and not each.lost]

    @property
    def answered(self) -> frozenset[int]:
        """The numbers of the answered requests. A waiting long poll is not among them."""
        return frozenset(each.number for each in self.requests if each.answered_s is not None)

    def seen(self, event: Scheduled, status: str = "", but: Container[int] = ()) -> LoggedRequest | None:
        """Return the first request whose answer has the event, in this status if given, except those in `but`."""
        return next((each for each in self.requests if each.number not in but and each.shows(event.id, status)), None)

    # -- waiting for the agent

    def until(self, find: Callable[[], T | None], what: str) -> T:
        """Return the result of `find` once it is true; raise AgentFailed if the agent has ended or its time is over."""
        begun_s = polled_s = time.monotonic()
        before, polls = self.emulator.log.last_number, 0
        while True:
            # Before `find`: what the agent did by then counts, however long this thread stands still in between.
            now_s, polls_before, polls = time.monotonic(), polls, self._polls_since(before)
            had_ended = self.agent.has_ended
            if result := find():
                return result
            if had_ended or self._stopping.is_set():
                self._check_going()
            self._check_served()
            if polls != polls_before:
                polled_s = now_s
            if now_s - begun_s > self.setup.patience_s and polls >= PATIENCE_POLLS:
                raise AgentFailed(f"{what}: not within {self.setup.patience_s:g} s and {polls} polls")
            if now_s - polled_s > self.setup.silence_s:
                raise AgentFailed(f"{what}: the agent has not polled for {self.setup.silence_s:g} s")
            self._pause()

    def _polls_since(self, number: int) -> int:
        """Return the number of answered polls after request `number`, without those that the rate limit refused."""
        return sum(
            each.number > number and each.answered_s is not None and (each.status != 429 or bool(each.fault))
            for each in self.polls
        )

    def _check_going(self) -> None:
        if self._stopping.is_set():
            raise Interrupted
        if self.setup.restarts and self.restarts < MAX_RESTARTS and self.agent.has_ended:
            self.restarts += 1
            self.agent.kill()
            self.emulator.log.wait(lambda _: None, RESTART_AFTER_S)
            self.start(**self._variables)
        else:
            self.agent.check_running()

    def _check_served(self) -> None:
        refusals = self.refusals
        if len(refusals) >= MAX_REFUSALS and not self.served:
            raise AgentFailed(f"{len(refusals)} polls were refused, the last with {refusals[-1].status}")

    def first_poll(self) -> LoggedRequest:
        return self.until(
            lambda: next((each for each in self.polls if each.incarnation is not None), None),
            "the agent gets a document",
        )

    def wait_seen(self, event: Scheduled, status: str = "", *, but: Container[int] = ()) -> LoggedRequest:
        in_status = f" as {status}" if status else ""
        return self.until(lambda: self.seen(event, status, but), f"the agent sees the event{in_status}")

    def wait_next_poll(self, event: Scheduled, status: str = "", *, but: Container[int] = ()) -> None:
        """Wait until the agent has seen the event and polled again, and then for the time that it took to act in the probe."""
        seen = self.wait_seen(event, status, but=but)
        self.until(lambda: any(each.number > seen.number for each in self.polls), "the agent polls again after that")
        self.quiet(QUIET_S + max((each.took_s for each in self.usable), default=0.0))

    def quiet(self, for_s: float = QUIET_S, *, until: Callable[[], object] = lambda: None) -> None:
        """Wait for this time, or less if `until` becomes true, and check that the agent keeps running."""
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s and not until():
            self._check_going()
            self._pause()

    def wait_approved(self, event: Scheduled) -> LoggedRequest:
        return self.until(lambda: next(iter(self.approvals(event)), None), "the agent approves the event")

    def wait_prepared(self, before: int = 0) -> None:
        """Wait until the agent has prepared more often than `before`."""
        self.until(lambda: self.prepared > before, "the prepare hook writes a line")

    def wait_handled(self, event: Scheduled, prepared_before: int = 0) -> None:
        """Wait for what the agent did in the probe: approve, or prepare, or else see the event and poll again."""
        if self.usable[0].approved:
            self.wait_approved(event)
        elif self.usable[0].prepared:
            self.wait_prepared(prepared_before)
        else:
            self.wait_next_poll(event)

    def expect(self, condition: bool, otherwise: str) -> None:
        if not condition:
            raise AgentFailed(otherwise)


def placeholders(endpoint: str, machine: str, folder: Path) -> dict[str, str]:
    """Return the names that a command may have in braces, with their values. The agent's environment has them too."""
    return {
        "endpoint": endpoint,
        "machine": machine,
        "folder": str(folder),
        "prepared": str(folder / "hooks" / "prepared"),
        "recovered": str(folder / "hooks" / "recovered"),
    }


def _fill_in(argument: str, values: Mapping[str, str]) -> str:
    """Replace only the known names in braces, because an argument may be JSON."""
    for name, value in values.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return file.read(MAX_HOOK_BYTES).count(b"\n")
    except OSError:
        return 0
