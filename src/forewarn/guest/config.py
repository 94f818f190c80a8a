"""The configuration file: reads agent.toml into a frozen Config, or raises ConfigError with the key that is wrong.

A file that other users may write is refused: it names programs that the agent runs. Secrets are in files of their own (`*_file`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from forewarn.guest.config_values import (
    check_keys,
    flag,
    one_of,
    seconds,
    strings,
    text,
)
from forewarn.guest.discovery import normal_endpoint
from forewarn.guest.errors import ConfigError
from forewarn.guest.handlers import HANDLERS
from forewarn.guest.plan import APPROVE_WHEN, DO, Health, Plan, Rule, Step, When
from forewarn.guest.serving.settings import ServedClient, read_clients
from forewarn.guest.system import system

MAX_BYTES = 1024 * 1024
MAX_STEPS = 100
TOP_LEVEL_KEYS = (
    "approve", "reserve", "prepare_within", "rules", "steps", "health", "endpoint", "api_version", "name", "source_address",
    "poll", "state_dir", "metrics_file", "boot_id_file", "log_level", "serve",
)  # fmt: skip
LOG_LEVELS = ("debug", "info", "warning", "error")
_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class Config:
    plan: Plan
    state_dir: Path
    endpoint: str = ""
    api_version: str = "2020-07-01"
    name: str = ""
    source_address: str = ""
    poll_every_s: float = 1.0
    metrics_file: Optional[Path] = None
    boot_id_file: str = system.BOOT_ID_FILE
    log_level: str = "info"
    clients: Tuple[ServedClient, ...] = ()


def load(path: Path, environment: Mapping[str, str]) -> Config:
    """Read the file; refuse it if another user can write it."""
    try:
        # Check the path before opening it, because the pipe of another user would block; then check the file that was opened.
        problem = system.others_may_write(path)
        if not problem:
            with path.open("rb") as file:
                problem = system.others_may_change(file.fileno(), path)
                data = file.read(MAX_BYTES + 1)
        if problem:
            raise ConfigError(f"{path} is refused: it names programs to run, and {problem}")
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes: this is not a configuration file")
        toml = data.decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; `forewarn-agent init` writes one") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: this is not UTF-8") from None
    try:
        return parse(_toml(toml), environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _toml(data: str) -> Dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # below Python 3.11 the single-file agent includes tomli
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        return tomllib.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is not TOML: {error}") from None


def parse(table: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    check_keys(table, TOP_LEVEL_KEYS, "agent.toml")
    plan = Plan(
        approve=one_of(table.get("approve", "when-ready"), APPROVE_WHEN, "approve"),
        reserve_s=seconds(table.get("reserve", "30s"), "reserve"),
        prepare_within_s=seconds(table["prepare_within"], "prepare_within") if "prepare_within" in table else None,
        rules=tuple(_rule(each, f"rules[{n}]") for n, each in enumerate(_tables(table, "rules"))),
        steps=_steps(_tables(table, "steps")),
        health=_health(table["health"]) if "health" in table else None,
    )
    version = text(table.get("api_version", "2020-07-01"), "api_version")
    if not _VERSION.fullmatch(version):
        raise ConfigError(f"api_version: {version!r} is not a version: write it like 2020-07-01")
    metrics = table.get("metrics_file")
    return Config(
        plan=plan,
        state_dir=_path(table["state_dir"], "state_dir")
        if "state_dir" in table
        else system.default_state_dir(environment),
        endpoint=normal_endpoint(text(table["endpoint"], "endpoint")) if "endpoint" in table else "",
        api_version=version,
        name=text(table["name"], "name") if "name" in table else "",
        source_address=text(table["source_address"], "source_address") if "source_address" in table else "",
        poll_every_s=max(1.0, seconds(table.get("poll", "1s"), "poll")),
        metrics_file=_path(metrics, "metrics_file") if metrics is not None else None,
        boot_id_file=text(table["boot_id_file"], "boot_id_file") if "boot_id_file" in table else system.BOOT_ID_FILE,
        log_level=one_of(table.get("log_level", "info"), LOG_LEVELS, "log_level"),
        clients=_clients(table["serve"]) if "serve" in table else (),
    )


def _path(value: Any, where: str) -> Path:
    return Path(text(value, where)).expanduser()


def _tables(table: Mapping[str, Any], key: str) -> List[Any]:
    value = table.get(key, [])
    if not isinstance(value, list):
        raise ConfigError(f"{key}: write each as a table of its own, under [[{key}]]")
    return value


def _when(value: Any, where: str) -> When:
    check_keys(value, ("type", "source", "max_duration"), where)
    return When(
        types=_one_or_more(value.get("type", ()), f"{where}.type"),
        sources=_one_or_more(value.get("source", ()), f"{where}.source"),
        max_duration_s=seconds(value["max_duration"], f"{where}.max_duration") if "max_duration" in value else None,
    )


def _one_or_more(value: Any, where: str) -> Tuple[str, ...]:
    return () if value == () else strings([value] if isinstance(value, str) else value, where)


def _rule(value: Any, where: str) -> Rule:
    check_keys(value, ("when", "do"), where)
    if "do" not in value:
        raise ConfigError(f"{where}: do is missing: use one of {', '.join(DO)}")
    return Rule(_when(value.get("when", {}), f"{where}.when"), one_of(value["do"], DO, f"{where}.do"))


def _steps(values: List[Any]) -> Tuple[Step, ...]:
    if len(values) > MAX_STEPS:
        raise ConfigError(f"steps: more than {MAX_STEPS}")
    steps = tuple(_step(each, f"steps[{n}]") for n, each in enumerate(values))
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"steps: two are named {name!r}: give each its own name")
    return steps


def _step(value: Any, where: str) -> Step:
    check_keys(value, ("name", "when", "timeout", "required", "repeatable", "finish", *HANDLERS), where)
    name = text(value.get("name"), f"{where}.name")
    where = f'{where} "{name}"'
    handlers = [handler for handler in HANDLERS if handler in value]
    if len(handlers) != 1:
        raise ConfigError(f"{where}: write exactly one of {', '.join(HANDLERS)}")
    (handler,) = handlers
    timeout_s = seconds(value.get("timeout", "1m"), f"{where}.timeout")
    if timeout_s < 1:
        raise ConfigError(f"{where}.timeout: too short: write at least 1s")
    table = value[handler]
    check_keys(table, table if isinstance(table, Mapping) else (), f"{where}.{handler}")
    step = Step(
        name=name,
        handler=handler,
        spec=HANDLERS[handler].parse(table, f"{where}.{handler}"),
        when=_when(value.get("when", {}), f"{where}.when"),
        timeout_s=timeout_s,
        required=flag(value.get("required", False), f"{where}.required"),
        repeatable=flag(value.get("repeatable", True), f"{where}.repeatable"),
        finish=flag(value.get("finish", False), f"{where}.finish"),
    )
    if step.notifies and step.required:
        raise ConfigError(
            f"{where}.required: {handler} cannot be required: an undelivered message must not prevent an approval"
        )
    return step


def _clients(value: Any) -> Tuple[ServedClient, ...]:
    check_keys(value, ("client",), "serve")
    if not isinstance(value.get("client", []), list):
        raise ConfigError("serve.client: write each as a table of its own, under [[serve.client]]")
    return read_clients(value.get("client", []))


def _health(value: Any) -> Health:
    check_keys(value, ("command", "timeout"), "health")
    timeout_s = seconds(value.get("timeout", "1m"), "health.timeout")
    return Health(strings(value.get("command"), "health.command"), max(1.0, timeout_s))
