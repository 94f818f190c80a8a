"""`haproxy`: out of the pools of one or several HAProxies: drained, seen without sessions, in maintenance; and back.

Every proxy must say itself that it is so. One that cannot be asked until the time is over fails the step, for it may send
requests to a machine that is down; what the others can be told they are told all the same. How each had the server before is
kept, and put back: what was in maintenance stays there.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Callable, List, Mapping, NamedTuple, Tuple

from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.handlers.haproxy_runtime import Place, Seen, asked, servers
from forewarn.guest.reading import address, count, keys_of, seconds, words
from forewarn.guest.sockets import Deadline
from forewarn.guest.steps import Run

# An interrupted undoing is done again: what is undone already it leaves as it is.
UNDOES_AGAIN = True
# One look or change at one proxy; less when the step has less.
ASK_S = 5.0
CHECK_S = 2.0
POLL_S = 0.2
# Between two tries at a proxy that does not answer.
RETRY_S = 1.0
MAX_PLACES = 64
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")

log = logging.getLogger("forewarn.guest.haproxy")


class Spec(NamedTuple):
    proxies: Tuple[str, ...]
    servers: Tuple[str, ...]
    # Sessions still open after so long are left behind. 0: never; then the step fails at the end of its time.
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
    _those_of(_places(spec), wrong, lambda place: place.look(Deadline(CHECK_S)))
    return wrong


def prepare(spec: Spec, run: Run) -> None:
    """At the proxies that answer first; one that does not just now is waited for: a failed step is never tried again."""
    run.keep(left=0)
    missing = _places(spec)

    def look() -> Tuple[bool, str]:
        troubles: List[str] = []
        there = _those_of(missing, troubles, lambda place: _remember(place, run))
        _leave(spec, there, run)
        missing[:] = [place for place in missing if place not in there]
        return not missing, "; ".join(troubles)

    run.must(look, RETRY_S)


def _leave(spec: Spec, there: List[Place], run: Run) -> None:
    troubles: List[str] = []
    _await(there, lambda place: _others_suffice(spec, place, run), run, "too few others of its backend are up: {}")
    there = _those_of(there, troubles, lambda place: _change(place, "drain", run, unless=("drain", "maint")))
    _drain(spec, there, run)
    there = _those_of(there, troubles, lambda place: _change(place, "maint", run, unless=("maint",)))
    _await(there, lambda place: _is_out(place, run), run, "not in maintenance, or not without sessions: {}")
    if troubles:
        raise StepFailed("; ".join(troubles))


def verify(spec: Spec, run: Run) -> bool:
    return all(_is_out(place, run) for place in _places(spec))


def recover(spec: Spec, run: Run) -> None:
    run.until_healthy()
    troubles: List[str] = []
    there = _those_of(_places(spec), troubles, lambda place: _put_back(place, run))
    _await(there, lambda place: _is_back(place, run), run, "not up again: {}")
    if troubles:
        raise StepFailed("; ".join(troubles))


def _places(spec: Spec) -> List[Place]:
    return [Place(proxy, *name.split("/")) for proxy in spec.proxies for name in spec.servers]


def _deadline(run: Run) -> Deadline:
    """For one look at one proxy, or one change there."""
    return Deadline(run.time_for(ASK_S))


def _see(place: Place, run: Run) -> Seen:
    return place.look(_deadline(run))


def _change(place: Place, state: str, run: Run, *, unless: Tuple[str, ...]) -> None:
    if _see(place, run).admin not in unless:
        place.change(state, _deadline(run))


def _those_of(places: List[Place], troubles: List[str], act: Callable[[Place], object]) -> List[Place]:
    """Act on each; those with which it went well. What went wrong with the others is added to the troubles, once."""
    good = []
    for place in places:
        try:
            act(place)
            good.append(place)
        except StepFailed as error:
            troubles += [] if str(error) in troubles else [str(error)]
    return good


def _await(places: List[Place], true: Callable[[Place], bool], run: Run, complaint: str) -> None:
    """Until it is true of each; OutOfTime naming those of which it is not."""

    def look() -> Tuple[bool, str]:
        places[:] = [place for place in places if not true(place)]
        return not places, complaint.format(", ".join(map(str, places)))

    places = list(places)
    run.must(look, POLL_S)


def _others_suffice(spec: Spec, place: Place, run: Run) -> bool:
    found = servers(place.proxy, place.backend, _deadline(run))
    others = [name for name, seen in found.items() if seen.usable and f"{place.backend}/{name}" not in spec.servers]
    return len(others) >= spec.keep or not (place.name in found and found[place.name].usable)


def _drain(spec: Spec, places: List[Place], run: Run) -> None:
    """Until nobody has a session; after `drain_for` those left are counted, said and left behind."""
    end_s = run.left_s() - spec.drain_for

    def over(place: Place) -> bool:
        sessions = _see(place, run).sessions
        if sessions and spec.drain_for and run.left_s() <= end_s:
            log.warning("%s: %d session(s) are left behind after %.0f s", place, sessions, spec.drain_for)
            run.keep(left=int(run.kept["left"]) + sessions)
            return True
        return not sessions

    _await(places, over, run, "sessions are still open: {}")


def _is_out(place: Place, run: Run) -> bool:
    seen = _see(place, run)
    return seen.admin == "maint" and (not seen.sessions or bool(run.kept.get("left")))


def _remember(place: Place, run: Run) -> None:
    """How it is, before anything is changed; once."""
    admin = _see(place, run).admin
    if not _before(place, run):
        run.keep(before={**run.kept.get("before", {}), str(place): admin})


def _before(place: Place, run: Run) -> str:
    return str(run.kept.get("before", {}).get(str(place), ""))


def _put_back(place: Place, run: Run) -> None:
    before = _before(place, run)
    if before:
        _change(place, before, run, unless=(before,))
    elif _see(place, run).admin != "ready":
        raise StepFailed(f"{place} is not ready, and not by this agent: set it to ready if it should be")


def _is_back(place: Place, run: Run) -> bool:
    seen, before = _see(place, run), _before(place, run)
    return seen.usable if before in ("", "ready") else seen.admin == before
