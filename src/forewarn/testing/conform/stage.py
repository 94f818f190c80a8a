"""One behaviour's stage: an emulator of its own, the agent as a process group of its own, and what both show.

On a busy machine an agent gets to do little in a second. It has failed to do something when it had the time *and* asked for the
document several times since without doing it, or when it no longer asks for it: seconds alone decide nothing.

What an agent does inside is seen by two files its hooks write: a line appended to `{prepared}` each time it has prepared, one to
`{recovered}` each time it has undone that. How many there were when an approval came is noted before it is answered.
"""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine, Scope, ScopeKind
from forewarn.testing.default_machines import SCOPE
from forewarn.testing.emulator import Emulator, Scheduled
from forewarn.testing.faults import Fault
from forewarn.testing.request_log import Asked

if TYPE_CHECKING:
    from forewarn.testing.conform.behaviours import Behaviour

CLAIMS = {
    "approval": "it approves events by itself",
    "prepare": "its prepare hook appends a line to {prepared}",
    "recover": "its recover hook appends a line to {recovered}",
    "restart": "it remembers across a kill what it did",
    "preempt": "it asks for version 2017-11-01 or later",
}
MACHINE = "vm-0"
SEED = 1
RATE_LIMIT = 5
# An event is to be seen within this: of a Preempt's 30 s enough must be left.
SEEN_WITHIN_S = 5.0
# For whatever else is expected of it, pauses after failures included; and in that time it must have asked so often.
PATIENCE_S = 10.0
TURNS = 5
# How long something must not happen after the agent has gone on to its next request.
QUIET_S = 0.4
LOOK_EVERY_S = 0.05
# So many requests for the document refused, and none answered with one: it will not get any further.
MAX_REFUSALS = 5
MAX_OUTPUT_BYTES = 4_096
MAX_READ_BYTES = 65_536
MAX_READS = 64
MAX_OUTPUT_LINES = 15
MAX_HOOK_BYTES = 65_536
MAX_PROXIED = 16
PROXIED_HEAD_BYTES = 4_096
HEAR_WITHIN_S = 1.0
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long, on the agent's own clock, the first answer takes and an endpoint that is moved answers nothing else."""

    first_answer_s: int
    trouble_s: float


class AgentFailed(Exception):
    """The agent did not do what the behaviour asks for; the message says what was seen instead."""


class Interrupted(Exception):
    """Whoever asked for the run wants it ended."""


class DeadProxy:
    """A proxy that answers nobody, and counts how often it was asked for the endpoint."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.removeprefix("http://").encode()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._asked = 0

    @property
    def asked(self) -> int:
        """How often so far; whoever asked since the last look is heard and hung up on."""
        for _ in range(MAX_PROXIED):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                break
            with connection, suppress(OSError):
                connection.settimeout(HEAR_WITHIN_S)
                self._asked += self._endpoint in connection.recv(PROXIED_HEAD_BYTES)
        return self._asked

    def close(self) -> None:
        self._socket.close()


class Watched(Emulator):
    """Notes how often the agent had prepared when an approval came, before it is answered: afterwards nobody could tell."""

    def __init__(self, prepared: Callable[[], int], **options: Any) -> None:
        self._prepared = prepared
        self.prepared_by: dict[int, int] = {}
        super().__init__(**options)

    def _choose_fault(self, machine: str, method: str) -> Fault | None:
        if method == "POST":
            self.prepared_by[self.log.last_number] = self._prepared()
        return super()._choose_fault(machine, method)


class Stage:
    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        claims: set[str],
        environment: Mapping[str, str],
        stopping: threading.Event,
        pace: Pace,
        patience_s: float = PATIENCE_S,
        silence_s: float | None = None,
    ) -> None:
        """`silence_s` is how long the agent may not ask for the document while something is expected of it."""
        self._command, self._folder, self._stopping = command, folder, stopping
        self._environment, self._patience_s = environment, patience_s
        self._silence_s = patience_s if silence_s is None else silence_s
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._hooks = folder / "hooks"
        self._hooks.mkdir()
        (folder / "state").mkdir(mode=0o700)
        self.claims, self.pace = claims, pace

    @contextmanager
    def emulator(self, behaviour: "Behaviour") -> Iterator[None]:
        """Manual clock: notice does not run out while an agent takes its time; an event stays Started until it is finished."""
        self.emulated = Watched(
            lambda: self.prepared,
            fleet=_fleet(behaviour.machines),
            clock="manual",
            seed=SEED,
            faults=behaviour.faults,
            executor="external",
            rate_limit=RATE_LIMIT,
        )
        with self.emulated:
            try:
                yield
            finally:
                # Before its endpoint goes: what it says about that is not worth a line.
                self.kill()

    # -- the agent

    def start(self, **more: str) -> None:
        """As often as wanted, one at a time; what it keeps in its folder is there again."""
        words = {
            "endpoint": self.emulated.endpoint,
            "machine": MACHINE,
            "folder": str(self._folder),
            "prepared": str(self._hooks / "prepared"),
            "recovered": str(self._hooks / "recovered"),
        }
        inherited = {key: value for key, value in self._environment.items() if key.lower() not in PROXIES}
        environment = {
            **inherited,
            "FOREWARN_ENDPOINT": words["endpoint"],
            "STATE_DIRECTORY": str(self._folder / "state"),
            **{f"CONFORM_{name.upper()}": value for name, value in words.items()},
            **more,
        }
        command = [_filled(word, words) for word in self._command]
        if shutil.which(command[0]) is None:
            raise AgentFailed(f"{command[0]} cannot be started: there is no such program, or it may not be run")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what we are asked for
                [*_ending_with_us(), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise AgentFailed(f"{command[0]} cannot be started: {error.strerror}") from None
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def kill(self) -> None:
        """With all that it started, as far as that stayed in its process group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._listen()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def ends_on_sigterm(self, within_s: float) -> bool:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + within_s
        while self._exit_code() is None and not self._stopping.is_set():
            if time.monotonic() > deadline_s:
                return False
            self._pause()
        return True

    def _exit_code(self) -> int | None:
        """None while it runs; below 0 the signal. It is not reaped: until `kill` its number, and its group's, is its own."""
        if self._process is None:
            return 0
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def output(self) -> str:
        """The last lines it said."""
        return "\n".join(self._said.decode("utf-8", "replace").splitlines()[-MAX_OUTPUT_LINES:])

    def _pause(self) -> None:
        """Between two looks; what it says meanwhile does not keep it waiting for long."""
        self._listen()
        self.emulated.log.wait(lambda _: None, LOOK_EVERY_S)

    def _listen(self) -> None:
        """To what it has said since; the end of it is kept, however much it was."""
        if self._process is None or self._process.stdout is None:
            return
        for _ in range(MAX_READS):
            try:
                said = os.read(self._process.stdout.fileno(), MAX_READ_BYTES)
            except BlockingIOError:
                return
            if not said:
                return
            self._said = (self._said + said)[-MAX_OUTPUT_BYTES:]

    def break_preparation(self) -> None:
        """From now on its prepare hook fails: there is no folder for its line."""
        self._hooks.rmdir()

    # -- what it did

    @property
    def prepared(self) -> int:
        return _lines(self._hooks / "prepared")

    @property
    def recovered(self) -> int:
        return _lines(self._hooks / "recovered")

    @property
    def requests(self) -> list[Asked]:
        return self.emulated.requests()

    @property
    def polls(self) -> list[Asked]:
        return [each for each in self.requests if each.polls]

    @property
    def refusals(self) -> list[Asked]:
        """Polls that the service itself, not a fault, would not answer: something about them is wrong."""
        return [
            each for each in self.polls if (each.status or 0) >= 400 and str(each.status) not in ("429", each.fault)
        ]

    @property
    def served(self) -> bool:
        """Whether it got a document, or would have but for the faults that befell it."""
        polls = self.polls
        return any(each.incarnation is not None for each in polls) or (bool(polls) and not self.refusals)

    def approvals(self, event: Scheduled) -> list[Asked]:
        """Those that it has an answer to; one that failed may be repeated."""
        return [each for each in self.requests if event.id in each.approves and each.status == 200 and not each.lost]

    @property
    def answered(self) -> frozenset[int]:
        """The numbers of those that have their answer; a long poll that is under way has none yet."""
        return frozenset(each.number for each in self.requests if each.answered_s is not None)

    def seen(self, event: Scheduled, status: str = "", but: Container[int] = ()) -> Asked | None:
        """The first answer with the event in it, in that status, that is none of `but`."""
        for each in self.requests:
            if each.number not in but and any(i == event.id and status in ("", told) for i, told in each.events):
                return each
        return None

    # -- waiting for it

    def until(self, true: Callable[[], T | None], what: str) -> T:
        """What it returns once it is something; AgentFailed when the agent had its chance or is no longer there."""
        begun_s = turned_s = time.monotonic()
        before, turns = self.emulated.log.last_number, 0
        while not (result := true()):
            self._check_going()
            self._check_served()
            now_s, turns_before, turns = time.monotonic(), turns, self._turns_since(before)
            if turns != turns_before:
                turned_s = now_s
            if now_s - begun_s > self._patience_s and turns >= TURNS:
                raise AgentFailed(f"{what}: not within {self._patience_s:g} s and {turns} requests for the document")
            if now_s - turned_s > self._silence_s:
                raise AgentFailed(f"{what}: it has not got to ask for the document for {self._silence_s:g} s")
            self._pause()
        return result

    def _turns_since(self, number: int) -> int:
        """How often it asked for the document after request `number`; whoever is turned away for its rate gets no further."""
        return sum(
            each.number > number and each.answered_s is not None and (each.status != 429 or bool(each.fault))
            for each in self.polls
        )

    def _check_going(self) -> None:
        if self._stopping.is_set():
            raise Interrupted
        self.check_alive()

    def check_alive(self) -> None:
        if self._process is not None and (code := self._exit_code()) is not None:
            told = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise AgentFailed(f"the agent ended, {told}")

    def _check_served(self) -> None:
        refusals = self.refusals
        if len(refusals) >= MAX_REFUSALS and not self.served:
            raise AgentFailed(f"{len(refusals)} requests for it were refused, the last with {refusals[-1].status}")

    def first_poll(self) -> Asked:
        return self.until(
            lambda: next((each for each in self.polls if each.incarnation is not None), None), "it got a document"
        )

    def wait_seen(self, event: Scheduled, status: str = "", *, but: Container[int] = ()) -> Asked:
        told = f" as {status}" if status else ""
        return self.until(lambda: self.seen(event, status, but), f"it saw the event{told}")

    def has_gone_on(self, event: Scheduled, status: str = "", *, but: Container[int] = ()) -> None:
        """It has seen the event and then asked for the next document: what it wanted to do about it, it did or began."""
        seen = self.wait_seen(event, status, but=but)
        self.until(lambda: any(each.number > seen.number for each in self.polls), "it asked again after that")
        self.quiet()

    def quiet(self, for_s: float = QUIET_S) -> None:
        """Nothing is to happen now; it must stay alive."""
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            self._check_going()
            self._pause()

    def wait_approved(self, event: Scheduled) -> Asked:
        return self.until(lambda: next(iter(self.approvals(event)), None), "it approved the event")

    def wait_prepared(self) -> None:
        self.until(lambda: self.prepared, "its prepare hook wrote a line")

    def wait_handled(self, event: Scheduled) -> None:
        """As much as it claims: it approved, or prepared, or at least saw the event and was not the worse for it."""
        if "approval" in self.claims:
            self.wait_approved(event)
        elif "prepare" in self.claims:
            self.wait_prepared()
        else:
            self.has_gone_on(event)

    def expect(self, true: bool, otherwise: str) -> None:
        if not true:
            raise AgentFailed(otherwise)


@cache
def _ending_with_us() -> tuple[str, ...]:
    """What to put before a command so that not even our own kill -9 leaves it running, where there is such a thing."""
    words = ("setpriv", "--pdeathsig", "KILL")
    try:
        return words if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0 else ()  # noqa: S603
    except OSError:
        return ()


def _fleet(machines: Sequence[tuple[str, int]]) -> Fleet:
    """Names and update domains; the first is the agent's, from 127.0.0.1, where every program calls from by itself."""
    placed = {
        (SCOPE, name): Machine(scope=SCOPE, name=name, update_domain=domain, addresses=(f"127.0.0.{number}",))
        for number, (name, domain) in enumerate(machines, start=1)
    }
    return Fleet({SCOPE: Scope(name=SCOPE, kind=ScopeKind.PLACEMENT_GROUP)}, placed)


def _filled(word: str, words: Mapping[str, str]) -> str:
    """Our names in braces and nothing else: an argument may well be JSON."""
    for name, value in words.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return file.read(MAX_HOOK_BYTES).count(b"\n")
    except OSError:
        return 0
