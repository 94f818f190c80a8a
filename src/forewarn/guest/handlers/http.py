"""`http`: out of any pool whose registrar has an HTTP API, and back; each time confirmed by a GET of its own.

What the changing request was answered is not enough: `verify` must hold. What was out before stays out.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import keys_of, text
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.handlers.http_registrar import Change, Look, change, headers_of, look, named
from forewarn.guest.steps import Run

# An interrupted undoing is done again: what is undone already it leaves as it is.
UNDOES_AGAIN = True
# One request; less when the step has less.
ASK_S = 10.0
POLL_S = 0.2
# Between two tries at a registrar that does not answer, or not now.
RETRY_S = 1.0
IN, OUT = "in", "out"


class Spec(NamedTuple):
    prepare: Change
    verify: Look
    recover: Change
    # How the registrar shows that it is in again; left out: `verify` no longer holds.
    recovered: Optional[Look] = None
    headers_file: str = ""


def parse(table: Mapping[str, Any], where: str) -> Spec:
    keys_of(table, Spec._fields, where)
    for key in ("prepare", "verify", "recover"):
        if key not in table:
            raise ConfigError(f"{where}: {key} is missing: write `prepare` and `recover`, and a `verify` that tells")
    return Spec(
        change(table["prepare"], f"{where}.prepare"),
        look(table["verify"], f"{where}.verify"),
        change(table["recover"], f"{where}.recover"),
        look(table["recovered"], f"{where}.recovered") if "recovered" in table else None,
        text(table["headers_file"], f"{where}.headers_file") if "headers_file" in table else "",
    )


def check(spec: Spec) -> List[str]:
    """The registrar is asked where it is no trouble to anybody: by the GET."""
    try:
        good, seen = spec.verify.see(_headers(spec), ASK_S)
    except StepFailed as error:
        return [str(error)]
    return [f"{named(spec.verify.url)} {seen}: that tells neither in nor out"] if good is None else []


def prepare(spec: Spec, run: Run) -> None:
    """What is not known to be in or out is not touched: it could not be put back."""
    if "before" not in run.kept:
        out = _known(spec, run)
        run.keep(before=OUT if out else IN)
    _achieve(spec, spec.prepare, lambda: _see(spec, spec.verify, run), run)


def verify(spec: Spec, run: Run) -> bool:
    return spec.verify.see(_headers(spec), run.time_for(ASK_S))[0] is True


def recover(spec: Spec, run: Run) -> None:
    run.until_healthy()
    before = run.kept.get("before")
    if before == IN:
        _achieve(spec, spec.recover, lambda: _is_in(spec, run), run)
    elif before != OUT and _known(spec, run):
        raise StepFailed(
            f"{named(spec.verify.url)} says that it is out, and not by this agent: put it in if it should be"
        )


def _known(spec: Spec, run: Run) -> bool:
    """Whether it is out; asked until that is told."""
    said: List[bool] = []

    def look_() -> Tuple[bool, str]:
        try:
            good, seen = _see(spec, spec.verify, run)
        except StepFailed as error:
            return False, str(error)
        said.extend([] if good is None else [good])
        return bool(said), seen

    run.must(look_, RETRY_S)
    return said[0]


def _is_in(spec: Spec, run: Run) -> Tuple[Optional[bool], str]:
    """As `recovered` shows it; without that, `verify` tells otherwise: an answer that tells neither is not being in."""
    if spec.recovered is not None:
        return _see(spec, spec.recovered, run)
    good, seen = _see(spec, spec.verify, run)
    return good is False, seen or f"{named(spec.verify.url)} still says that it is out"


def _achieve(spec: Spec, asked: Change, look_: Callable[[], Tuple[Optional[bool], str]], run: Run) -> None:
    """Look until it is so; where it is not it is asked for, until that was answered well. No answer means: not yet."""
    accepted = False

    def not_yet(why: str) -> Tuple[bool, str]:
        if run.left_s() > 2 * RETRY_S:
            run.pause(RETRY_S)
        return False, why

    def act() -> Tuple[bool, str]:
        nonlocal accepted
        try:
            good, seen = look_()
        except StepFailed as error:
            return not_yet(str(error))
        if good or accepted:
            return bool(good), f"the request was answered well, but {seen}"
        why = asked.make(_headers(spec), run.time_for(ASK_S))
        accepted = not why
        return act() if accepted else not_yet(why)

    run.must(act, POLL_S)


def _see(spec: Spec, wanted: Look, run: Run) -> Tuple[Optional[bool], str]:
    good, seen = wanted.see(_headers(spec), run.time_for(ASK_S))
    return good, f"{named(wanted.url)} {seen}" if seen else ""


def _headers(spec: Spec) -> Dict[str, str]:
    """Read each time: a token may have been renewed."""
    return headers_of(spec.headers_file) if spec.headers_file else {}
