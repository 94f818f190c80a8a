"""`http`: takes this machine out of any pool whose registrar has an HTTP API, and puts it back; confirms each by a GET.

The response to the changing request is not enough: `verify` must be met. What was out before stays out.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypeVar

from forewarn.guest.config_values import check_keys, text
from forewarn.guest.errors import OutOfTime, StepFailed, Unanswered
from forewarn.guest.handlers.http_registrar import (
    Change,
    Expectation,
    parse_change,
    parse_expectation,
    read_headers,
    without_query,
)
from forewarn.guest.steps import Condition, Run

# An interrupted recover runs again: it leaves what is undone already.
UNDOES_AGAIN = True
# For one request; less when the step has less time.
RESPONSE_WITHIN_S = 10.0
POLL_S = 0.2
# The pause before a request that was not answered, or answered with "try later", is repeated.
RETRY_S = 1.0
IN, OUT = "in", "out"

T = TypeVar("T")


class Spec(NamedTuple):
    prepare: Change
    verify: Expectation
    recover: Change
    # How the registrar shows that the machine is in again; without it: `verify` is no longer met.
    recovered: Optional[Expectation] = None
    headers_file: str = ""


def parse(table: Mapping[str, Any], where: str) -> Spec:
    what = "write `prepare`, `recover` and `verify`"
    check_keys(table, Spec._fields, where, prepare=what, verify=what, recover=what)
    return Spec(
        parse_change(table["prepare"], f"{where}.prepare"),
        parse_expectation(table["verify"], f"{where}.verify"),
        parse_change(table["recover"], f"{where}.recover"),
        parse_expectation(table["recovered"], f"{where}.recovered") if "recovered" in table else None,
        text(table["headers_file"], f"{where}.headers_file") if "headers_file" in table else "",
    )


def check(spec: Spec) -> List[str]:
    """Ask the registrar by the GET, which changes nothing."""
    try:
        met, difference = spec.verify.check(_headers(spec), RESPONSE_WITHIN_S)
    except StepFailed as error:
        return [str(error)]
    return [f"{without_query(spec.verify.url)} {difference}: this says neither in nor out"] if met is None else []


def prepare(spec: Spec, run: Run) -> None:
    """Take the machine out, once it is known whether it was in: otherwise it could not be put back."""
    if "before" not in run.kept:
        out = _is_out(spec, run)
        run.keep(before=OUT if out else IN)
    _change_until(spec, spec.prepare, lambda: _check_expectation(spec, spec.verify, run), run)


def verify(spec: Spec, run: Run) -> bool:
    return spec.verify.check(_headers(spec), run.time_for(RESPONSE_WITHIN_S))[0] is True


def recover(spec: Spec, run: Run) -> None:
    run.wait_until_healthy()
    before = run.kept.get("before")
    if before == IN:
        _change_until(spec, spec.recover, lambda: _is_in(spec, run), run)
    elif before != OUT and _is_out(spec, run):
        raise StepFailed(
            f"{without_query(spec.verify.url)} says that it is out, and this agent did not do it: put it in if it should be"
        )


def _is_out(spec: Spec, run: Run) -> bool:
    """Return whether the machine is out; ask until the registrar gives a conclusive response."""
    results: List[bool] = []

    def is_known() -> Tuple[bool, str]:
        try:
            met, difference = _check_expectation(spec, spec.verify, run)
        except OutOfTime:
            raise
        except StepFailed as error:
            return False, str(error)
        results.extend([] if met is None else [met])
        return bool(results), difference

    _require(is_known, RETRY_S, run)
    return results[0]


def _is_in(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """Return whether the machine is in: `recovered` is met, or without that, `verify` conclusively is not."""
    if spec.recovered is not None:
        return _check_expectation(spec, spec.recovered, run)
    met, difference = _check_expectation(spec, spec.verify, run)
    return met is False, difference or f"{without_query(spec.verify.url)} still says that it is out"


def _change_until(spec: Spec, request: Change, is_done: Condition, run: Run) -> None:
    """Check until it is done; send the request until it succeeds once; try again without a response."""
    accepted = False

    def not_yet(why: str) -> Tuple[bool, str]:
        if run.left_s() > 2 * RETRY_S:
            run.pause(RETRY_S)
        return False, why

    def act() -> Tuple[bool, str]:
        nonlocal accepted
        try:
            met, difference = is_done()
        except OutOfTime:
            raise
        except StepFailed as error:
            return not_yet(str(error))
        if met or accepted:
            return bool(met), f"the request succeeded, but {difference}"
        try:
            why = _response(lambda within_s: request.send(_headers(spec), within_s), run)
        except Unanswered as error:
            why = str(error)
        accepted = not why
        return act() if accepted else not_yet(why)

    _require(act, POLL_S, run)


def _require(condition: Condition, every_s: float, run: Run) -> None:
    """Check until the condition holds. Out of time in a check, the step fails with what was seen in the check before."""
    seen = ""

    def checked() -> Tuple[Optional[bool], str]:
        nonlocal seen
        try:
            holds, seen = condition()
        except OutOfTime as error:
            raise OutOfTime(seen or str(error)) from None
        return holds, seen

    run.require(checked, every_s)


def _response(request: Callable[[float], T], run: Run) -> T:
    """Make a request and return its result; raise OutOfTime when the end of the step, and not the registrar, is to blame."""
    within_s = run.time_for(RESPONSE_WITHIN_S)
    try:
        return request(within_s)
    except Unanswered as error:
        if within_s < RESPONSE_WITHIN_S:
            raise OutOfTime(str(error)) from None
        raise


def _check_expectation(spec: Spec, expected: Expectation, run: Run) -> Tuple[Optional[bool], str]:
    met, difference = _response(lambda within_s: expected.check(_headers(spec), within_s), run)
    return met, f"{without_query(expected.url)} {difference}" if difference else ""


def _headers(spec: Spec) -> Dict[str, str]:
    """Read the headers each time: a token may have been renewed."""
    return read_headers(spec.headers_file) if spec.headers_file else {}
