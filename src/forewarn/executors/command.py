"""Runs an operator's command for each order: the event as JSON on standard input and as FOREWARN_* variables.

Exit code 0 means done, any other code failed; the end of the output is kept. The command runs under `runner`, which outlives
this process. Each order has a folder: a lock that the runner holds while it lives, the file `begun` once the command may have
run, and the file `result.json` once it has ended. So after a crash `status` knows whether the command still runs, has ended or
has not begun. Without a result, a command that may have run is not run again, unless the operator allows it: `repeatable`.
A missing folder proves nothing: the order may have been taken in another state folder, or long ago.
"""

import fcntl
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from forewarn.core.change import Change
from forewarn.core.errors import InvalidSettings
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.order_verbs import OrderReport, Outcome, Unknown
from forewarn.executors.base import Executor, HostWork, Progress, Work
from forewarn.executors.command_environment import command_environment, read_names
from forewarn.executors.command_user import CommandUser, find_user, program_problem
from forewarn.executors.private_folder import make_private_folder
from forewarn.executors.runner import boot_id, save
from forewarn.executors.settings import read_arguments, read_flag, read_text, read_time_limit, setting, whole_number

AnyWork = Work | HostWork

_KILLED = "its runner was killed, and the command may still run"
_RESTARTED = "the machine restarted while the command ran"
_NO_TRACE = "the state folder has no trace of it"
# A probe of another node holds the lock for a moment.
LOCK_TRIES = 500
LOCK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    command: tuple[str, ...] = setting(
        (), read_arguments, "the program that the `command` executor runs, with its arguments"
    )
    time_limit_s: int = setting(1_800, read_time_limit, "a command that runs longer than this is stopped")
    parallel: int = setting(32, whole_number(1, 1_000), "how many commands run at once")
    repeatable: bool = setting(
        False,
        read_flag,
        "run a command again if its result is not known, on another node or after a restart of the machine. Otherwise its order"
        " is in doubt until an operator decides",
    )
    user: str = setting(
        "",
        read_text,
        "the user that commands run as, with the groups of that user. By default it is the user of the service. The service must"
        " run as root, or with the capabilities in `packaging/forewarn-command-user.conf`",
    )
    environment: tuple[str, ...] = setting(
        (),
        read_names,
        "names of environment variables that commands receive from the service, besides `PATH`, `HOME`, `LANG`, `LC_*`, `TZ`,"
        " `TMPDIR`, `USER` and `LOGNAME`",
    )


class CommandExecutor(Executor):
    name = "command"
    settings_class = CommandSettings
    reports_moves = False
    runner = Path(__file__).with_name("runner.py")
    variables = frozenset(
        f"FOREWARN_{name}"
        for name in (
            "ORDER_ID", "ATTEMPT", "EVENT_ID", "MAINTENANCE_ID", "EVENT_TYPE", "EVENT_SOURCE", "SCOPE", "UPDATE_DOMAIN",
            "RESOURCES", "HOSTS", "DURATION_S", "PHASE", "TO_HOST", "EVACUATES", "HOST", "HOST_MODE",
            "HOST_CONNECTION", "DESCRIPTION",
        )
    )  # fmt: skip

    def __init__(
        self,
        command: tuple[str, ...],
        *,
        folder: Path,
        time_limit_s: int,
        parallel: int,
        repeatable: bool = False,
        environment: Mapping[str, str],
        also_passed: Collection[str] = (),
        user: CommandUser | None = None,
    ) -> None:
        self._command = command
        self._folder = folder
        self._time_limit_s = time_limit_s
        self._environment = command_environment(environment, also_passed, user)
        self._user = user
        self._parallel = parallel
        self.repeatable = repeatable
        self._watched: set[tuple[str, int]] = set()
        self._ended: queue.SimpleQueue[OrderReport] = queue.SimpleQueue()
        self._nudge: Callable[[], None] = lambda: None
        make_private_folder(folder.parent)
        make_private_folder(folder)
        # Another node of this machine may share the folder: `tidy` must not remove the orders it takes from here on.
        self._found_at_start = [each for each in folder.iterdir() if each.is_dir()]

    @classmethod
    def check(cls, settings: CommandSettings, *, order_timeout_s: int) -> None:
        if not settings.command:
            raise InvalidSettings(
                "executor: the command executor needs a command: set `command` to a program and arguments"
            )
        if 0 < order_timeout_s <= settings.time_limit_s:
            raise InvalidSettings(
                "order_timeout: it must be longer than command_time_limit, or an order would fail while its command runs"
            )

    @classmethod
    def from_settings(
        cls, settings: CommandSettings, state_dir: Path, *, folder: str = "orders", command_setting: str = "command"
    ) -> "CommandExecutor":
        """`folder` in the state folder holds the orders; `command_setting` is the setting that names the command."""
        executor = cls(
            settings.command,
            folder=state_dir / folder,
            time_limit_s=settings.time_limit_s,
            parallel=settings.parallel,
            repeatable=settings.repeatable,
            environment=os.environ,
            also_passed=settings.environment,
            user=find_user(settings.user),
        )
        if problem := executor.problem():
            raise InvalidSettings(f"{command_setting}: {problem}")
        return executor

    def connect(self, nudge: Callable[[], None], _: Callable[[Callable[[Change], None]], None]) -> None:
        self._nudge = nudge

    def status(self, work: AnyWork) -> Progress | Outcome | Unknown:
        folder = self._folder_of(work)
        if _locked(folder):
            return Progress.RUNNING
        if not folder.is_dir():
            return Unknown(_NO_TRACE)
        try:
            return _result(folder) or self._status_without_result(folder)
        except (OSError, ValueError) as error:
            return self._unreadable(error)

    def _status_without_result(self, folder: Path) -> Progress | Outcome | Unknown:
        """Return what is known of a command without a runner and without a result."""
        if not (folder / "begun").exists():
            return Progress.NOT_BEGUN
        if not _begun_since_boot(folder):
            return Unknown(_RESTARTED)
        # A command that still runs must not run twice at once, even if it may be repeated.
        return Outcome(ok=False, reason=f"{_KILLED}; check before you retry") if self.repeatable else Unknown(_KILLED)

    def free_slots(self) -> int:
        return self._parallel - len(self._watched)

    def at_work(self) -> int:
        return len(self._watched)

    def take(self, work: AnyWork) -> None:
        folder = self._folder_of(work)
        if self.repeatable and not _locked(folder):
            _remove(folder)
        key = (work.order.id, work.order.attempt)
        self._watched.add(key)  # before the command can begin: a node that stops now waits for it
        try:
            runner = self._spawn(work)
        except BaseException:
            self._watched.discard(key)
            raise
        self._await_in_thread(work, runner)

    def watch(self, work: AnyWork) -> None:
        key = (work.order.id, work.order.attempt)
        if key not in self._watched:
            self._watched.add(key)
            self._await_in_thread(work, None)

    def reports(self, _: datetime) -> list[OrderReport]:
        ended = []
        while not self._ended.empty():
            ended.append(self._ended.get())
        self._watched -= {(report.order_id, report.attempt or 0) for report in ended}
        return ended

    def report_saved(self, report: OrderReport) -> None:
        _remove(self._folder / f"{report.order_id}-{report.attempt}")

    def problem(self) -> str:
        return program_problem(self._command[0], self._environment, self._user)

    def tidy(self, unfinished: Collection[AnyWork]) -> None:
        known = {self._folder_of(work) for work in unfinished}
        for folder in self._found_at_start:
            if folder not in known and not _locked(folder):
                _remove(folder)

    def _folder_of(self, work: AnyWork) -> Path:
        return self._folder / f"{work.order.id}-{work.order.attempt}"

    def _spawn(self, work: AnyWork) -> "subprocess.Popen[bytes] | None":
        """Start the runner. Return None if another node of this machine took over the order and began the command."""
        folder = self._folder_of(work)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        environment = _in_memory(json.dumps({**self._environment, **_variables(work)}))
        try:
            if not _lock_for_runner(folder, lock) or (folder / "begun").exists():
                return None
            save(folder / "request.json", json.dumps(self._request(work)))
            # The lock belongs to the open file, which the runner inherits: the runner holds it for as long as it lives.
            return subprocess.Popen(  # noqa: S603 - our own runner
                [sys.executable, "-I", str(self.runner), str(folder)],
                pass_fds=(lock,),
                env=self._environment,
                stdin=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(lock)
            os.close(environment)

    def _request(self, work: AnyWork) -> dict[str, object]:
        return {
            "command": self._command,
            "user": self._user and {"uid": self._user.uid, "gid": self._user.gid, "groups": self._user.groups},
            "stdin": json.dumps(_document(work)) + "\n",
            "time_limit_s": self._time_limit_s,
        }

    def _await_in_thread(self, work: AnyWork, runner: "subprocess.Popen[bytes] | None") -> None:
        name = f"order-{work.order.id}"
        threading.Thread(target=self._await, args=(work, runner), daemon=True, name=name).start()

    def _await(self, work: AnyWork, runner: "subprocess.Popen[bytes] | None") -> None:
        """Wait until the runner has ended, in whichever process it was started; reap it if it is a child of this one."""
        folder = self._folder_of(work)
        outcome: Outcome | Unknown
        try:
            lock = os.open(folder / "lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
            finally:
                os.close(lock)
            if runner is not None:
                runner.wait()
            outcome = _result(folder) or self._lost(folder)
        except (OSError, ValueError) as error:
            outcome = self._unreadable(error)
        self._ended.put(OrderReport(work.order.id, work.order.attempt, outcome))
        self._nudge()

    def _unreadable(self, error: Exception) -> Outcome | Unknown:
        reason = f"its result cannot be read: {error}"
        return Outcome(ok=False, reason=reason) if self.repeatable else Unknown(reason)

    def _lost(self, folder: Path) -> Outcome | Unknown:
        """Return what to report of a command whose runner ended without a result."""
        known = self._status_without_result(folder)
        if isinstance(known, Progress):
            return Outcome(ok=False, reason="its runner ended before the command began")
        return known


def _lock_for_runner(folder: Path, lock: int) -> bool:
    """Lock the folder of an order; return False if a runner holds the lock."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if _locked(folder):
                return False
        time.sleep(LOCK_AGAIN_S)
    raise BlockingIOError(f"{folder / 'lock'} stays locked")


def _remove(folder: Path) -> None:
    """Remove the folder of an order. Rename it first: half a folder would be read as a command that has not begun."""
    with suppress(OSError):
        removed = folder.with_name(f"{folder.name}.removed")
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def _in_memory(text: str) -> int:
    """Return a file with this text that is never on disk: a variable that an operator passes on may be a secret."""
    file = os.memfd_create("environment")
    os.write(file, text.encode("ascii"))
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _begun_since_boot(folder: Path) -> bool:
    """Return whether the command may have run since the machine last started."""
    try:
        return (folder / "begun").read_text("utf-8") == boot_id()
    except OSError:
        return False


def _locked(folder: Path) -> bool:
    """Return whether the runner lives. Try a shared lock: another node that checks at the same time is no runner."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _result(folder: Path) -> Outcome | None:
    try:
        result = json.loads((folder / "result.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    return Outcome(ok=result["ok"], reason=result["reason"], output=result["output"])


def _variables(work: AnyWork) -> dict[str, str]:
    if isinstance(work, HostWork):
        return _host_variables(work)
    order, event = work.order, work.event
    return {
        "FOREWARN_ORDER_ID": order.id,
        "FOREWARN_ATTEMPT": str(order.attempt),
        "FOREWARN_EVENT_ID": event.id,
        "FOREWARN_MAINTENANCE_ID": event.maintenance_id,
        "FOREWARN_EVENT_TYPE": event.type,
        "FOREWARN_EVENT_SOURCE": event.source,
        "FOREWARN_SCOPE": event.scope,
        "FOREWARN_UPDATE_DOMAIN": str(event.update_domain),
        "FOREWARN_RESOURCES": " ".join(event.resources),
        "FOREWARN_HOSTS": " ".join(sorted({host for host in work.hosts.values() if host})),
        "FOREWARN_DURATION_S": str(event.duration_s),
        "FOREWARN_PHASE": order.phase,
        "FOREWARN_TO_HOST": event.to_host,
        "FOREWARN_EVACUATES": _evacuated(work),
    }


def _evacuated(work: Work) -> str:
    """Return the host that the machines must leave, or "" if they go back to their host, or stay on it for work in phases."""
    return "" if work.event.returns or work.order.phase else work.event.host


def _host_variables(work: HostWork) -> dict[str, str]:
    order, maintenance = work.order, work.maintenance
    return {
        "FOREWARN_ORDER_ID": order.id,
        "FOREWARN_ATTEMPT": str(order.attempt),
        "FOREWARN_MAINTENANCE_ID": maintenance.id,
        "FOREWARN_HOST": order.host,
        "FOREWARN_HOST_MODE": maintenance.host_mode or "",
        "FOREWARN_HOST_CONNECTION": work.connection,
        "FOREWARN_DURATION_S": str(maintenance.duration_s),
        "FOREWARN_DESCRIPTION": maintenance.description,
    }


def _document(work: AnyWork) -> dict[str, object]:
    order = work.order
    if isinstance(work, HostWork):
        return {
            "order": {"id": order.id, "attempt": order.attempt},
            "host": {"name": order.host, "mode": work.maintenance.host_mode, "connection": work.connection},
            "maintenance": {
                "id": work.maintenance.id,
                "description": work.maintenance.description,
                "duration_s": work.maintenance.duration_s,
            },
        }
    event = work.event
    return {
        "order": {"id": order.id, "attempt": order.attempt},
        "event": {
            "id": event.id,
            "maintenance_id": event.maintenance_id,
            "type": event.type,
            "source": event.source,
            "scope": event.scope,
            "update_domain": event.update_domain,
            "description": event.description,
            "duration_s": event.duration_s,
            "phase": order.phase,
            "to_host": event.to_host,
            "evacuates": _evacuated(work),
        },
        "machines": [
            {"name": name, "host": work.hosts.get(name, ""), "targets": work.targets.get(name, ())}
            for name in event.resources
        ],
    }
