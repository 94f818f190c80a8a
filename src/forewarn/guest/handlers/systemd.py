"""`systemd`: stops units and confirms that they are inactive, starts them and confirms that they are active."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import check_keys, flag, strings
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.processes import POLL_S
from forewarn.guest.steps import Run
from forewarn.guest.system import system

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.[a-z]+")
# Exit codes of `systemctl is-active`: 0 active, 3 inactive or failed, 4 no such unit.
_ACTIVE, _INACTIVE = 0, 3


class Spec(NamedTuple):
    units: Tuple[str, ...]
    user: bool = False


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, ("unit", "units", "user"), where)
    units = strings(table.get("units", [table.get("unit", "")]), f"{where}.unit")
    for unit in units:
        if not _UNIT.fullmatch(unit) or unit.startswith("-"):
            raise ConfigError(f"{where}.unit: {unit!r} is not a unit: write it like worker.service")
    return Spec(units, flag(table.get("user", False), f"{where}.user"))


def check(_: Spec) -> List[str]:
    return [] if system.find_program("systemctl") else ["this machine has no systemctl"]


def prepare(spec: Spec, run: Run) -> None:
    run.command(_systemctl(spec, "stop", *spec.units))


def verify(spec: Spec, run: Run) -> Optional[bool]:
    codes = [run.command(_systemctl(spec, "is-active", "--quiet", unit), checked=False) for unit in spec.units]
    if any(code == _ACTIVE for code in codes):
        return False
    return True if all(code == _INACTIVE for code in codes) else None


def recover(spec: Spec, run: Run) -> None:
    units = tuple(reversed(spec.units))
    run.command(_systemctl(spec, "start", *units))
    for unit in units:
        while run.command(_systemctl(spec, "is-active", "--quiet", unit), checked=False) != _ACTIVE:
            if run.command(_systemctl(spec, "is-failed", "--quiet", unit), checked=False) == 0:
                raise StepFailed(f"{unit} has failed")
            run.pause(POLL_S)


def _systemctl(spec: Spec, *arguments: str) -> Tuple[str, ...]:
    return ("systemctl", *(("--user",) if spec.user else ()), *arguments)
