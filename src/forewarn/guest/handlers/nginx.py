"""`nginx`: marks this machine's `server` lines in an upstream of the local nginx as `down`, tests, reloads, and confirms it.

A reload command returns before the reload happens, and the reload may fail. It is in force when there are workers of a new
generation and no old worker accepts connections. It is complete when the old workers are gone, which end with their last
connection. Undoing restores the exact bytes of the include file.
"""

from __future__ import annotations

import logging
from typing import Any, List, Mapping, NamedTuple, Tuple

from forewarn.guest.config_values import check_keys, count, read_values, seconds, strings
from forewarn.guest.errors import StepFailed
from forewarn.guest.handlers.nginx_include import Upstream, read, write
from forewarn.guest.handlers.pid_files import running_pid
from forewarn.guest.processes import POLL_S, children, command_line, start_ticks
from forewarn.guest.programs import program_problems
from forewarn.guest.steps import Run, drain_end_s

# An interrupted recover runs again: it leaves what is undone already.
UNDOES_AGAIN = True
PROGRAMS = ("test", "reload")

log = logging.getLogger("forewarn.guest.nginx")

# The pid of a worker and when it began.
Worker = Tuple[int, int]
# Process titles of nginx. A process that the master has just forked still has the master's title.
TITLE, WORKER, LEAVING = "nginx: ", "worker process", "shutting down"
OTHERS = ("cache manager process", "cache loader process", "privileged agent process")


class Spec(NamedTuple):
    file: str
    servers: Tuple[str, ...]
    pid_file: str = "/run/nginx.pid"
    test: Tuple[str, ...] = ("nginx", "-t", "-q")
    reload: Tuple[str, ...] = ("nginx", "-s", "reload")
    # Connections still open after so long, or shortly before the time is over, are left behind. 0: never; the step fails then.
    drain_for: float = 0.0
    # How many other servers of the file must be up.
    keep: int = 1


def parse(table: Mapping[str, Any], where: str) -> Spec:
    what = "write the include file, and which of its servers this machine is"
    check_keys(table, Spec._fields, where, file=what, servers=what)
    return Spec(
        **read_values(table, where, servers=strings, test=strings, reload=strings, drain_for=seconds, keep=count)
    )


def check(spec: Spec) -> List[str]:
    problems = program_problems(spec.test) + program_problems(spec.reload)
    try:
        read(spec.file).with_down(spec.servers)
        if not _workers(spec):
            problems.append(_not_running(spec))
    except StepFailed as error:
        problems.append(str(error))
    return problems


def prepare(spec: Spec, run: Run) -> None:
    now = read(spec.file)
    down = now.with_down(spec.servers)
    if not now.is_down(spec.servers) and now.count_others_up(spec.servers) < spec.keep:
        raise StepFailed(f"fewer than {spec.keep} other servers of {spec.file} are up: it would leave too few")
    # Down already, with the text before it recorded: an earlier attempt was interrupted.
    before = str(run.kept["before"]) if "before" in run.kept and now.is_down(spec.servers) else now.text
    run.keep(before=before, left=0)
    if now != down:
        write(spec.file, down)
    old = _reload(spec, run, Upstream(before))
    _drain(spec, run, old)


def verify(spec: Spec, run: Run) -> bool:
    old = _recorded_workers(run)
    if not old or not read(spec.file).is_down(spec.servers) or not _in_force(spec, old):
        return False
    return bool(run.kept.get("left")) or not _still_alive(old)


def recover(spec: Spec, run: Run) -> None:
    run.wait_until_healthy()
    now = read(spec.file)
    if "before" not in run.kept:
        if now.is_down(spec.servers):
            raise StepFailed(
                f"{', '.join(spec.servers)} is down in {spec.file}, and this agent did not do it: check whether it should be"
            )
        return
    before = Upstream(str(run.kept["before"]))
    if before.is_down(spec.servers):
        return  # it was down before and stays down
    if now == before.with_down(spec.servers):
        write(spec.file, before)
    elif now.is_down(spec.servers):
        raise StepFailed(
            f"{spec.file} was changed since by another person or program: remove `down` from it, and the agent goes on"
        )
    _reload(spec, run, now)


def _reload(spec: Spec, run: Run, fallback: Upstream) -> List[Worker]:
    """Test, reload, wait until it is in force, and return the old workers. Write `fallback` back if the test fails."""
    try:
        run.command(spec.test)
    except StepFailed as error:
        write(spec.file, fallback)
        raise StepFailed(f"{error}; {spec.file} is as before") from None
    old: List[Worker] = []

    def has_workers() -> Tuple[bool, str]:
        old[:] = _workers(spec)
        return bool(old), _not_running(spec)

    run.require(has_workers, POLL_S)
    run.keep(workers=old)
    run.command(spec.reload)
    run.require(lambda: (_in_force(spec, old), "nginx did not reload after the reload command"), POLL_S)
    return old


def _drain(spec: Spec, run: Run, old: List[Worker]) -> None:
    """Wait until the old workers are gone. After `drain_for`, or shortly before the time is over, leave the rest behind."""
    begun_s = run.left_s()
    end_s = drain_end_s(begun_s, spec.drain_for)

    def drained() -> Tuple[bool, str]:
        left = _still_alive(old)
        if left and spec.drain_for and run.left_s() <= end_s:
            after_s = begun_s - run.left_s()
            log.warning("connections of %d old worker(s) are left behind after %.0f s", len(left), after_s)
            run.keep(left=len(left))
            return True, ""
        return not left, f"connections of {len(left)} old worker(s) of nginx are still open"

    run.require(drained, POLL_S)


def _workers(spec: Spec) -> List[Worker]:
    """Return all live workers, with those that finish their last connections and those that were just forked.

    Processes are listed one after another. A reload meanwhile may end every old worker before it is listed, and fork the new
    ones afterwards: an empty list does not mean that nginx is down while its master lives.
    """
    master = running_pid(spec.pid_file, "")
    if not master:
        raise StepFailed(_not_running(spec))
    return [each for each in children(master) if _is_worker(each)]


def _not_running(spec: Spec) -> str:
    return f"nginx is not running: {spec.pid_file} names no process with workers"


def _is_worker(child: Worker) -> bool:
    """Return whether this child of the master is a worker, or becomes one when it gets its own title.

    A child that has children of its own is the new master of an upgrade.
    """
    title = command_line(child[0])
    if WORKER in title:
        return True
    return title.startswith(TITLE) and not any(other in title for other in OTHERS) and not children(child[0])


def _in_force(spec: Spec, old: List[Worker]) -> bool:
    """Return whether there are new workers and no old worker accepts connections."""
    titles = {each: command_line(each[0]) for each in _workers(spec)}
    accepting = [each for each, title in titles.items() if LEAVING not in title]
    return any(WORKER in titles[each] for each in accepting) and not any(each in old for each in accepting)


def _still_alive(old: List[Worker]) -> List[Worker]:
    return [(pid, ticks) for pid, ticks in old if start_ticks(pid) == ticks]


def _recorded_workers(run: Run) -> List[Worker]:
    """Return the recorded workers as tuples, which JSON does not have."""
    return [(int(pid), int(ticks)) for pid, ticks in run.kept.get("workers", ())]
