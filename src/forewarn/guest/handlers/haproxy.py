"""`haproxy`: takes this machine out of the pools of one or several HAProxies, and puts it back.

Taking out means: drain, wait until there are no sessions, set maintenance. Every proxy must confirm it. A proxy that does not
answer until the time is over fails the step, because it may send requests to a machine that is down. The agent first changes the
proxies that answer. It records the state of each server before, and restores that: a server that was in maintenance stays there.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

from forewarn.guest.config_values import address, check_keys, count, seconds, strings
from forewarn.guest.errors import ConfigError, NoAnswerInTime, OutOfTime, StepFailed, Unanswered
from forewarn.guest.handlers.haproxy_runtime import PoolServer, ServerState, send_command, server_states
from forewarn.guest.sockets import Deadline
from forewarn.guest.steps import Run, drain_end_s

# An interrupted recover runs again: it leaves what is undone already.
UNDOES_AGAIN = True
# For one server at one proxy; less when the step has less time, or when the proxy did not answer before.
ANSWER_WITHIN_S = 5.0
ANSWER_AGAIN_WITHIN_S = 1.0
CHECK_WITHIN_S = 2.0
POLL_S = 0.2
MAX_SERVERS = 64
NOT_REACHED = "it ran out of time"
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")

log = logging.getLogger("forewarn.guest.haproxy")


class Spec(NamedTuple):
    proxies: Tuple[str, ...]
    servers: Tuple[str, ...]
    # Sessions still open after so long, or shortly before the time is over, are left behind. 0: never; the step fails then.
    drain_for: float = 0.0
    # How many other servers of the backend must be up before ours is taken out.
    keep: int = 1


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, Spec._fields, where)
    proxies, names = (strings(table.get(key), f"{where}.{key}") for key in ("proxies", "servers"))
    for proxy in proxies:
        if not proxy.startswith("/"):
            address(proxy, f"{where}.proxies")
    for name in names:
        if not _SERVER.fullmatch(name):
            raise ConfigError(f"{where}.servers: {name!r}: write it like backend/server")
    if len(proxies) * len(names) > MAX_SERVERS:
        raise ConfigError(f"{where}: more than {MAX_SERVERS} servers at all proxies together")
    drain_for = seconds(table.get("drain_for", 0), f"{where}.drain_for")
    return Spec(proxies, names, drain_for, count(table.get("keep", 1), f"{where}.keep"))


def check(spec: Spec) -> List[str]:
    problems: List[str] = []
    for proxy in spec.proxies:
        try:
            if send_command(proxy, "show cli level", Deadline(CHECK_WITHIN_S)) != "admin":
                problems.append(f"the proxy {proxy} does not allow changes: its socket needs `level admin`")
        except StepFailed as error:
            problems.append(str(error))
            continue
        for server in _pool_servers(spec):
            try:
                if server.proxy == proxy:
                    server.read_state(Deadline(CHECK_WITHIN_S))
            except StepFailed as error:
                problems.append(str(error))
    return problems


def prepare(spec: Spec, run: Run) -> None:
    run.keep(left={})
    drain_begun: Dict[PoolServer, float] = {}
    _repeat_until_done(
        _pool_servers(spec), lambda server, deadline: _take_out(spec, server, drain_begun, run, deadline), run
    )


def verify(spec: Spec, run: Run) -> bool:
    return all(_is_out(server, _state_with_retry(server, run), run) for server in _pool_servers(spec))


def recover(spec: Spec, run: Run) -> None:
    run.wait_until_healthy()
    _repeat_until_done(_pool_servers(spec), lambda server, deadline: _put_back(server, run, deadline), run)


def _pool_servers(spec: Spec) -> List[PoolServer]:
    return [PoolServer(proxy, *name.split("/")) for proxy in spec.proxies for name in spec.servers]


def _state_with_retry(server: PoolServer, run: Run) -> ServerState:
    """Return the state; try a second time if the proxy does not answer."""
    try:
        return server.read_state(Deadline(run.time_for(ANSWER_WITHIN_S)))
    except Unanswered:
        run.pause(POLL_S)
        return server.read_state(Deadline(run.time_for(ANSWER_WITHIN_S)))


def _repeat_until_done(servers: List[PoolServer], act: Callable[[PoolServer, Deadline], str], run: Run) -> None:
    """Call `act` for each server until it returns "" for all, first for those whose proxy answers.

    A proxy that does not answer is tried again. Raises StepFailed when only refused servers are left, and OutOfTime at the end
    of the time.
    """
    waiting = dict.fromkeys(servers, NOT_REACHED)
    silent: Dict[str, str] = {}
    refused: List[str] = []

    def act_on_waiting() -> Tuple[bool, str]:
        silent_before = dict(silent)
        silent.clear()
        for server in sorted(waiting, key=lambda each: each.proxy in silent_before):
            if server.proxy in silent:
                continue
            most_s = given_s = ANSWER_AGAIN_WITHIN_S if server.proxy in silent_before else ANSWER_WITHIN_S
            try:
                given_s = run.time_for(most_s)
                waiting[server] = act(server, Deadline(given_s))
            except OutOfTime:  # keep the reason from before
                if server.proxy in silent_before:
                    silent[server.proxy] = silent_before[server.proxy]
            except NoAnswerInTime as error:
                # What the end of the step cuts off explains less than a reason from before.
                before = silent_before.get(server.proxy, "") if given_s < most_s else ""
                if before or given_s == most_s or waiting[server] == NOT_REACHED:
                    silent[server.proxy] = before or str(error)
            except Unanswered as error:
                silent[server.proxy] = str(error)
            except StepFailed as error:
                refused.append(str(error))
                waiting[server] = ""
            silent_before.pop(server.proxy, None)  # it answers again, or `silent` has it
            if not waiting[server]:
                del waiting[server]
        return not waiting, "; ".join(_describe_waiting(waiting, silent))

    why = run.wait_until(act_on_waiting, POLL_S)
    if why:
        raise OutOfTime("; ".join([*dict.fromkeys(refused), why]))
    if refused:
        raise StepFailed("; ".join(dict.fromkeys(refused)))


def _describe_waiting(waiting: Mapping[PoolServer, str], silent: Mapping[str, str]) -> List[str]:
    """Return what the servers wait for, grouped by reason; for a proxy that does not answer only that."""
    by_reason: Dict[str, List[str]] = {}
    for server, reason in waiting.items():
        if server.proxy not in silent:
            by_reason.setdefault(reason, []).append(str(server))
    return [f"{reason}: {', '.join(names)}" for reason, names in by_reason.items()] + list(silent.values())


def _take_out(
    spec: Spec, server: PoolServer, drain_begun: Dict[PoolServer, float], run: Run, deadline: Deadline
) -> str:
    """Go as far as possible now: return "" when the server is out, else what it waits for."""
    states = server_states(server.proxy, server.backend, deadline)
    state, name = server.find_in(states), str(server)
    if name not in run.kept.get("before", {}):
        before = {**run.kept.get("before", {}), name: state.admin}
        run.keep(before=before, unused=[*run.kept.get("unused", ()), *([name] if state.zero_weight else [])])
    if state.admin == "ready":
        others = [each for each in states if states[each].usable and f"{server.backend}/{each}" not in spec.servers]
        if state.usable and len(others) < spec.keep:
            return "too few others of its backend are up"
        state = server.set_state("drain", deadline)
    left_s = run.left_s()
    begun_s = drain_begun.setdefault(server, left_s)
    if state.sessions and name not in run.kept["left"]:
        if not spec.drain_for or left_s > drain_end_s(begun_s, spec.drain_for):
            return "sessions are still open"
        log.warning("%s: %d session(s) are left behind after %.0f s", server, state.sessions, begun_s - left_s)
        run.keep(left={**run.kept["left"], name: state.sessions})
    if state.admin != "maint":
        state = server.set_state("maint", deadline)
    return "" if _is_out(server, state, run) else "not in maintenance, or not without sessions"


def _is_out(server: PoolServer, state: ServerState, run: Run) -> bool:
    return state.admin == "maint" and (not state.sessions or str(server) in run.kept.get("left", {}))


def _put_back(server: PoolServer, run: Run, deadline: Deadline) -> str:
    state, before = server.read_state(deadline), str(run.kept.get("before", {}).get(str(server), ""))
    if not before and state.admin != "ready":
        raise StepFailed(f"{server} is not ready, and this agent did not change it: set it to ready if it should be")
    if before and state.admin != before:
        state = server.set_state(before, deadline)
    # A server that had the weight 0 need not get requests now. A server that was down must be up: its check may have failed just
    # then, and the next machine must not leave before this one is back.
    must_be_up = before in ("", "ready") and str(server) not in run.kept.get("unused", ())
    return "not up again" if must_be_up and not state.usable else ""
