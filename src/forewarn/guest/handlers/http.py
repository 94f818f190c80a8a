"""`http`: out of any pool whose registrar has an HTTP API, and back; each time confirmed by a GET of its own.

What the changing request was answered is not enough: `verify` must hold. What was out before stays out.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.handlers.http_registrar import Change, Look, change, headers_of, look, named
from forewarn.guest.reading import keys_of, text
from forewarn.guest.steps import Run

# An interrupted undoing is done again: what is undone already it leaves as it is.
UNDOES_AGAIN = True
# One request; less when the step has less.
ASK_S = 10.0
POLL_S = 0.2
# Between two tries at a registrar that does not answer.
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
        spec.verify.complaint(_headers(spec), ASK_S)
    except StepFailed as error:
        return [str(error)]
    return []


def prepare(spec: Spec, run: Run) -> None:
    out = _first_seen(spec, run)
    run.keep(before=run.kept.get("before") or (OUT if out else IN))
    if not out:
        spec.prepare.make(_headers(spec), run.time_for(ASK_S))
        _until(spec, spec.verify, run)


def _first_seen(spec: Spec, run: Run) -> bool:
    """Whether it is out. A registrar that does not answer just now is waited for: a failed step is never tried again."""
    out: List[bool] = []

    def look_() -> Tuple[bool, str]:
        try:
            out.append(verify(spec, run))
        except StepFailed as error:
            return False, str(error)
        return True, ""

    run.must(look_, RETRY_S)
    return out[0]


def verify(spec: Spec, run: Run) -> bool:
    return not _complaint(spec, spec.verify, run)


def recover(spec: Spec, run: Run) -> None:
    run.until_healthy()
    before = run.kept.get("before")
    if before == OUT or _is_in(spec, run):
        return
    if before != IN:
        raise StepFailed(
            f"{named(spec.verify.url)} says that it is out, and not by this agent: put it in if it should be"
        )
    spec.recover.make(_headers(spec), run.time_for(ASK_S))
    if spec.recovered is not None:
        _until(spec, spec.recovered, run)
    else:
        run.must(lambda: (_is_in(spec, run), f"{named(spec.verify.url)} still says that it is out"), POLL_S)


def _is_in(spec: Spec, run: Run) -> bool:
    return not _complaint(spec, spec.recovered, run) if spec.recovered is not None else not verify(spec, run)


def _until(spec: Spec, wanted: Look, run: Run) -> None:
    def look_() -> Tuple[bool, str]:
        seen = _complaint(spec, wanted, run)
        return not seen, f"the request was answered well, but {named(wanted.url)} {seen}"

    run.must(look_, POLL_S)


def _complaint(spec: Spec, wanted: Look, run: Run) -> str:
    return wanted.complaint(_headers(spec), run.time_for(ASK_S))


def _headers(spec: Spec) -> Dict[str, str]:
    """Read each time: a token may have been renewed."""
    return headers_of(spec.headers_file) if spec.headers_file else {}
