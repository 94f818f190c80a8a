"""`nginx`: out of an upstream of the nginx on this machine: its `server` lines marked `down`, tested, reloaded, seen in force.

A reload is asked for and happens later, or not at all: it is in force when there are workers of a new generation and none of the
old takes connections, and it is over when the old ones are gone, for they end with their last connection. Undone, the include
file has the bytes it had.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, List, Mapping, NamedTuple, Tuple

from forewarn.guest.config_values import count, keys_of, seconds, text, words
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.handlers.command import missing_program
from forewarn.guest.handlers.nginx_include import Upstream, read, write
from forewarn.guest.handlers.process import command_line, pid_of
from forewarn.guest.steps import POLL_S, Run, alive, children, drain_end_s, start_ticks

# An interrupted undoing is done again: what is undone already it leaves as it is.
UNDOES_AGAIN = True

log = logging.getLogger("forewarn.guest.nginx")

# A worker: its pid and when it began.
Worker = Tuple[int, int]
# How nginx names its processes. A process that the master has just forked still bears the master's title.
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
    # How many others of the file must be up.
    keep: int = 1


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    for key in ("file", "servers"):
        if key not in table:
            raise ConfigError(
                f"{where}: {key} is missing: write the include file, and which of its servers this machine is"
            )
    readers: Mapping[str, Callable[[Any, str], Any]] = {
        "file": text,
        "servers": words,
        "pid_file": text,
        "test": words,
        "reload": words,
        "drain_for": seconds,
        "keep": count,
    }
    return Spec(**{key: readers[key](value, f"{where}.{key}") for key, value in table.items()})


def check(spec: Spec) -> List[str]:
    wrong = missing_program(spec.test) + missing_program(spec.reload)
    try:
        read(spec.file).marked(spec.servers)
        if not _workers(spec):
            wrong.append(_not_running(spec))
    except StepFailed as error:
        wrong.append(str(error))
    return wrong


def prepare(spec: Spec, run: Run) -> None:
    now = read(spec.file)
    wanted = now.marked(spec.servers)
    if not now.is_down(spec.servers) and now.others_up(spec.servers) < spec.keep:
        raise StepFailed(f"fewer than {spec.keep} other servers of {spec.file} are up: it would leave too few")
    # Down already and known from before: an earlier try was interrupted.
    before = str(run.kept["before"]) if "before" in run.kept and now.is_down(spec.servers) else now.text
    run.keep(before=before, left=0)
    if now != wanted:
        write(spec.file, wanted)
    old = _reload(spec, run, Upstream(before))
    _drain(spec, run, old)


def verify(spec: Spec, run: Run) -> bool:
    old = _kept_workers(run)
    if not old or not read(spec.file).is_down(spec.servers) or not _in_force(spec, old):
        return False
    return bool(run.kept.get("left")) or not _left(old)


def recover(spec: Spec, run: Run) -> None:
    run.until_healthy()
    now = read(spec.file)
    if "before" not in run.kept:
        if now.is_down(spec.servers):
            raise StepFailed(
                f"{', '.join(spec.servers)} is down in {spec.file}, and not by this agent: see whether it should be"
            )
        return
    before = Upstream(str(run.kept["before"]))
    if before.is_down(spec.servers):
        return  # and so it stays
    if now == before.marked(spec.servers):
        write(spec.file, before)
    elif now.is_down(spec.servers):
        raise StepFailed(f"{spec.file} was changed by somebody since: take `down` out of it, and the rest follows")
    _reload(spec, run, now)


def _reload(spec: Spec, run: Run, otherwise: Upstream) -> List[Worker]:
    """Test, reload, see it in force; the workers from before. What nginx will not have is not left standing there."""
    try:
        run.command(spec.test)
    except StepFailed as error:
        write(spec.file, otherwise)
        raise StepFailed(f"{error}; {spec.file} is as before") from None
    old: List[Worker] = []

    def look() -> Tuple[bool, str]:
        old[:] = _workers(spec)
        return bool(old), _not_running(spec)

    run.must(look, POLL_S)
    run.keep(workers=old)
    run.command(spec.reload)
    run.must(lambda: (_in_force(spec, old), "nginx was told to reload, and goes on as before"), POLL_S)
    return old


def _drain(spec: Spec, run: Run, old: List[Worker]) -> None:
    """Until the old workers are gone; after `drain_for`, or shortly before the time is over, those left are left behind."""
    begun_s = run.left_s()
    end_s = drain_end_s(begun_s, spec.drain_for)

    def look() -> Tuple[bool, str]:
        left = _left(old)
        if left and spec.drain_for and run.left_s() <= end_s:
            after_s = begun_s - run.left_s()
            log.warning("connections of %d old worker(s) are left behind after %.0f s", len(left), after_s)
            run.keep(left=len(left))
            return True, ""
        return not left, f"connections of {len(left)} old worker(s) of nginx are still open"

    run.must(look, POLL_S)


def _workers(spec: Spec) -> List[Worker]:
    """The workers that live: also those that only end their last connections, and those that the master has just forked.

    Processes are seen one after another. A reload meanwhile may end every old worker before it is looked at, and fork the
    new ones after the list was made: none seen does not mean that nginx is down while its master lives.
    """
    master = pid_of(spec.pid_file)
    if not master or not alive(master):
        raise StepFailed(_not_running(spec))
    return [each for each in children(master) if _is_worker(each)]


def _not_running(spec: Spec) -> str:
    return f"nginx is not running: {spec.pid_file} leads to no worker of it"


def _is_worker(child: Worker) -> bool:
    """Whether this child of the master is a worker, or will be one as soon as it has its own title.

    A child of the master with children of its own is the new master of an upgrade.
    """
    title = command_line(child[0])
    if WORKER in title:
        return True
    return title.startswith(TITLE) and not any(other in title for other in OTHERS) and not children(child[0])


def _in_force(spec: Spec, old: List[Worker]) -> bool:
    """A new generation is there, and the old one takes no connections any more."""
    titles = {each: command_line(each[0]) for each in _workers(spec)}
    taking = [each for each, title in titles.items() if LEAVING not in title]
    return any(WORKER in titles[each] for each in taking) and not any(each in old for each in taking)


def _left(old: List[Worker]) -> List[Worker]:
    return [(pid, ticks) for pid, ticks in old if start_ticks(pid) == ticks]


def _kept_workers(run: Run) -> List[Worker]:
    """JSON has no tuples."""
    return [(int(pid), int(ticks)) for pid, ticks in run.kept.get("workers", ())]
