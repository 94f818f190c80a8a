"""`command`: runs your own programs, with the event as JSON on stdin and in FOREWARN_* variables; exit code 0 is success."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import check_keys, strings
from forewarn.guest.errors import ConfigError
from forewarn.guest.programs import program_problems
from forewarn.guest.steps import Run

PROGRAMS = ("prepare", "verify", "recover")


class Spec(NamedTuple):
    prepare: Tuple[str, ...] = ()
    verify: Tuple[str, ...] = ()
    recover: Tuple[str, ...] = ()


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, Spec._fields, where)
    spec = Spec(**{key: strings(value, f"{where}.{key}") for key, value in table.items()})
    if not spec.prepare and not spec.recover:
        raise ConfigError(f"{where}: it does nothing: write `prepare`, `recover`, or both")
    return spec


def check(spec: Spec) -> List[str]:
    return [problem for argv in spec if argv for problem in program_problems(argv)]


def prepare(spec: Spec, run: Run) -> None:
    if spec.prepare:
        run.command(spec.prepare)


def verify(spec: Spec, run: Run) -> Optional[bool]:
    return run.command(spec.verify, checked=False) == 0 if spec.verify else None


def recover(spec: Spec, run: Run) -> None:
    if spec.recover:
        run.command(spec.recover)
