"""`haproxy`: out of the pools of one or several HAProxies: drained, seen without sessions, in maintenance; and back.

Every proxy must say itself that it is so. One that cannot be asked until the time is over fails the step, for it may send
requests to a machine that is down; what the others can be told they are told all the same, and first. How each had the server
before is kept, and put back: what was in maintenance stays there.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

from forewarn.guest.config_values import address, count, keys_of, seconds, words
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed, Unanswered
from forewarn.guest.handlers.haproxy_runtime import Place, Seen, asked, servers
from forewarn.guest.sockets import Deadline
from forewarn.guest.steps import Run, drain_end_s

# An interrupted undoing is done again: what is undone already it leaves as it is.
UNDOES_AGAIN = True
# One server at one proxy; less when the step has less, or when the proxy did not answer before.
ASK_S = 5.0
AGAIN_S = 1.0
CHECK_S = 2.0
POLL_S = 0.2
MAX_PLACES = 64
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")

log = logging.getLogger("forewarn.guest.haproxy")


class Spec(NamedTuple):
    proxies: Tuple[str, ...]
    servers: Tuple[str, ...]
    # Sessions still open after so long, or shortly before the time is over, are left behind. 0: never; the step fails then.
    drain_for: float = 0.0
    # How many others of the backend must be up before ours goes.
    keep: int = 1


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    proxies, names = (words(table.get(key), f"{where}.{key}") for key in ("proxies", "servers"))
    for proxy in proxies:
        if not proxy.startswith("/"):
            address(proxy, f"{where}.proxies")
    for name in names:
        if not _SERVER.fullmatch(name):
            raise ConfigError(f"{where}.servers: {name!r}: write it like backend/server")
    if len(proxies) * len(names) > MAX_PLACES:
        raise ConfigError(f"{where}: more than {MAX_PLACES} servers at all proxies together")
    drain_for = seconds(table.get("drain_for", 0), f"{where}.drain_for")
    return Spec(proxies, names, drain_for, count(table.get("keep", 1), f"{where}.keep"))


def check(spec: Spec) -> List[str]:
    wrong: List[str] = []
    for proxy in spec.proxies:
        try:
            if asked(proxy, "show cli level", Deadline(CHECK_S)) != "admin":
                wrong.append(f"the proxy {proxy} does not let us change it: its socket needs `level admin`")
        except StepFailed as error:
            wrong.append(str(error))
            continue
        for place in _places(spec):
            try:
                if place.proxy == proxy:
                    place.look(Deadline(CHECK_S))
            except StepFailed as error:
                wrong.append(str(error))
    return wrong


def prepare(spec: Spec, run: Run) -> None:
    run.keep(left={})
    begun: Dict[Place, float] = {}
    _each(_places(spec), lambda place, deadline: _leave(spec, place, begun, run, deadline), run)


def verify(spec: Spec, run: Run) -> bool:
    return all(_is_out(place, _see(place, run), run) for place in _places(spec))


def recover(spec: Spec, run: Run) -> None:
    run.until_healthy()
    _each(_places(spec), lambda place, deadline: _return(place, run, deadline), run)


def _places(spec: Spec) -> List[Place]:
    return [Place(proxy, *name.split("/")) for proxy in spec.proxies for name in spec.servers]


def _see(place: Place, run: Run) -> Seen:
    """Asked twice, if need be."""
    try:
        return place.look(Deadline(run.time_for(ASK_S)))
    except Unanswered:
        run.pause(POLL_S)
        return place.look(Deadline(run.time_for(ASK_S)))


def _each(places: List[Place], act: Callable[[Place, Deadline], str], run: Run) -> None:
    """Act on each, again and again until it says "" of all: those first whose proxy answers. No answer means: not yet.

    StepFailed with all that is wrong, when only what is refused is left; OutOfTime at the end of the time.
    """
    waiting = dict.fromkeys(places, "its time was over")
    silent: Dict[str, str] = {}
    refused: List[str] = []

    def round_() -> Tuple[bool, str]:
        answered_not = dict(silent)
        silent.clear()
        for place in sorted(waiting, key=lambda each: each.proxy in answered_not):
            if place.proxy in silent:
                continue
            try:
                most_s = AGAIN_S if place.proxy in answered_not else ASK_S
                waiting[place] = act(place, Deadline(run.time_for(most_s)))
            except OutOfTime:
                pass  # what it waited for before is still so
            except Unanswered as error:
                silent[place.proxy] = str(error)
            except StepFailed as error:
                refused.append(str(error))
                waiting[place] = ""
            if not waiting[place]:
                del waiting[place]
        return not waiting, "; ".join(_told(waiting, silent))

    seen = run.until(round_, POLL_S)
    if seen:
        raise OutOfTime("; ".join([*dict.fromkeys(refused), seen]))
    if refused:
        raise StepFailed("; ".join(dict.fromkeys(refused)))


def _told(waiting: Mapping[Place, str], silent: Mapping[str, str]) -> List[str]:
    """What each waits for, those with the same together; of a proxy that does not answer that alone."""
    told: Dict[str, List[str]] = {}
    for place, what in waiting.items():
        if place.proxy not in silent:
            told.setdefault(what, []).append(str(place))
    return [f"{what}: {', '.join(those)}" for what, those in told.items()] + list(silent.values())


def _leave(spec: Spec, place: Place, begun: Dict[Place, float], run: Run, deadline: Deadline) -> str:
    """As far as it goes now: "" when it is out, else what it waits for."""
    found = servers(place.proxy, place.backend, deadline)
    seen, name = place.among(found), str(place)
    if name not in run.kept.get("before", {}):
        before = {**run.kept.get("before", {}), name: seen.admin}
        run.keep(before=before, unused=[*run.kept.get("unused", ()), *([name] if seen.unwanted else [])])
    if seen.admin == "ready":
        others = [each for each in found if found[each].usable and f"{place.backend}/{each}" not in spec.servers]
        if seen.usable and len(others) < spec.keep:
            return "too few others of its backend are up"
        seen = place.change("drain", deadline)
    left_s = run.left_s()
    begun_s = begun.setdefault(place, left_s)
    if seen.sessions and name not in run.kept["left"]:
        if not spec.drain_for or left_s > drain_end_s(begun_s, spec.drain_for):
            return "sessions are still open"
        log.warning("%s: %d session(s) are left behind after %.0f s", place, seen.sessions, begun_s - left_s)
        run.keep(left={**run.kept["left"], name: seen.sessions})
    if seen.admin != "maint":
        seen = place.change("maint", deadline)
    return "" if _is_out(place, seen, run) else "not in maintenance, or not without sessions"


def _is_out(place: Place, seen: Seen, run: Run) -> bool:
    return seen.admin == "maint" and (not seen.sessions or str(place) in run.kept.get("left", {}))


def _return(place: Place, run: Run, deadline: Deadline) -> str:
    seen, before = place.look(deadline), str(run.kept.get("before", {}).get(str(place), ""))
    if not before and seen.admin != "ready":
        raise StepFailed(f"{place} is not ready, and not by this agent: set it to ready if it should be")
    if before and seen.admin != before:
        seen = place.change(before, deadline)
    # What was to get no requests before, by its weight, need not get any now. What was down must be up: a check that failed
    # in that moment would else let the next machine leave before this one is back.
    asks_more = before in ("", "ready") and str(place) not in run.kept.get("unused", ())
    return "not up again" if asks_more and not seen.usable else ""
