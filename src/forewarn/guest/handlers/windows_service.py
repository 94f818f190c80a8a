"""`windows_service`: stops services of Windows and confirms that they are stopped, starts them and confirms that they run.

sc.exe stops and starts them, because the step can end a program that does not return. The state comes from the service manager.
"""

from __future__ import annotations

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from forewarn.guest.config_values import check_keys, strings
from forewarn.guest.errors import ConfigError, StepFailed
from forewarn.guest.processes import POLL_S
from forewarn.guest.steps import Run
from forewarn.guest.system import system

UNDOES_AGAIN = True
_SERVICE = re.compile(r'[^\s/\\"][^/\\"]{0,255}')


class Spec(NamedTuple):
    services: Tuple[str, ...]


def parse(table: Mapping[str, Any], where: str) -> Spec:
    check_keys(table, ("service", "services"), where)
    services = strings(table.get("services", [table.get("service", "")]), f"{where}.service")
    for service in services:
        if not _SERVICE.fullmatch(service):
            raise ConfigError(f"{where}.service: {service!r} is not the name of a service: write it like W3SVC")
    return Spec(services)


def check(spec: Spec) -> List[str]:
    problems = []
    for service in spec.services:
        try:
            system.service_state(service)
        except OSError as error:
            problems.append(f"service {service}: {error.strerror}")
    return problems


def prepare(spec: Spec, run: Run) -> None:
    for service in spec.services:
        if system.service_state(service) == "STOPPED":
            continue
        code = run.command(("sc.exe", "stop", service), checked=False)
        while (state := system.service_state(service)) != "STOPPED":
            # Another code means that the service is already stopping.
            if code and state == "RUNNING":
                raise StepFailed(f"{service} cannot be stopped: sc.exe ended with {code}")
            run.pause(POLL_S)


def verify(spec: Spec, _: Run) -> Optional[bool]:
    return all(system.service_state(service) == "STOPPED" for service in spec.services)


def recover(spec: Spec, run: Run) -> None:
    for service in reversed(spec.services):
        while system.service_state(service) == "STOP_PENDING":
            run.pause(POLL_S)
        if system.service_state(service) == "STOPPED":
            run.command(("sc.exe", "start", service))
        while (state := system.service_state(service)) != "RUNNING":
            if state == "STOPPED":
                raise StepFailed(f"{service} has stopped again")
            run.pause(POLL_S)
