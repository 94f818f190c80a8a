"""One frozen Settings: flags over FOREWARN_* variables over a TOML file over defaults; an unknown key is an error.

Each setting is a field below, with its help and how to read it: the command line, the reference and the errors follow.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid, InvalidSettings

PREFIX = "FOREWARN_"
# Variables of the same family that other programs of ours read.
NOT_SETTINGS = frozenset({"FOREWARN_CONFIG", "FOREWARN_TOKEN", "FOREWARN_SERVER", "FOREWARN_ENDPOINT"})
MAX_CONFIG_BYTES = 1024 * 1024


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid("write a text")
    return value


def _path(value: object) -> Path:
    return Path(_text(value)).expanduser()


def _one_of(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in choices:
            raise Invalid(f"{value!r} is unknown: use one of {', '.join(choices)}")
        return str(value)

    return read


def _whole(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isdecimal() and value.isascii():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Invalid(f"{value!r} is not a whole number from {low} to {high}")
        return value

    return read


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
        raise Invalid('write a list of words, like ["/usr/local/bin/maintain", "--host"]')
    return tuple(value)


def _counts(value: object) -> Mapping[str, int]:
    if isinstance(value, str):
        value = dict(pair.split("=", 1) for pair in value.split() if "=" in pair)
    if not isinstance(value, dict):
        raise Invalid('write a table like { "shop/web-0" = 1 }')
    return {key: _whole(0, 1_000_000)(count) for key, count in value.items()}


def _address(value: object) -> str:
    text = _text(value)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise Invalid(f"{text!r} is not HOST:PORT: write it like 127.0.0.1:8170, or [::1]:8170")
    return text


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """The user's state directory, as the XDG rules have it."""
    base = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "forewarn"


def _setting(default: Any, read: Callable[[object], Any], help_text: str) -> Any:
    metadata = {"read": read, "help": help_text}
    return (
        field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    store: str = _setting("", _text, "where state lives: `sqlite:PATH` or `memory:`; by default a file in `state_dir`")
    state_dir: Path = _setting(Path(), _path, "the folder for the default store and for orders under way")
    fleet: Path | None = _setting(None, _path, "a fleet file to apply at start")
    clock: str = _setting("system", _text, "`system`, `manual`, or a rate like `60x`")
    executor: str = _setting(
        "external",
        _one_of("external", "command", "simulated"),
        "who does the work of a started event: `external` (others, through the API), `command` or `simulated`",
    )
    guest: str = _setting("127.0.0.1:8169", _address, "where guests ask, `HOST:PORT`")
    operator: str = _setting("127.0.0.1:8170", _address, "where operators and their tools ask, `HOST:PORT`")
    order_timeout_s: int = _setting(
        3_600, parse_duration, "an order without a result for so long has failed; `0` waits for ever"
    )
    retain_history_s: int = _setting(
        90 * 86_400, parse_duration, "how long ended maintenances and the audit are kept; `0` keeps them for ever"
    )
    command: tuple[str, ...] = _setting((), _words, "the program the `command` executor runs, with its arguments")
    command_time_limit_s: int = _setting(1_800, parse_duration, "a command still running after so long is stopped")
    command_parallel: int = _setting(32, _whole(1, 1_000), "how many commands run at once")
    simulated_work_s: int = _setting(600, parse_duration, "how long simulated work takes, on the service clock")
    simulated_freeze_work_s: int = _setting(300, parse_duration, "how long a simulated Freeze takes")
    simulated_failures: Mapping[str, int] = _setting(
        {}, _counts, "how many attempts fail for a machine: a table of `scope/machine` and a number"
    )
    log_level: str = _setting("info", _one_of("debug", "info", "warning", "error"), "how much is logged")


def names() -> dict[str, str]:
    """Each setting as people write it (durations have no `_s` there), and its field."""
    return {f.name.removesuffix("_s"): f.name for f in fields(Settings)}


def load(flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None) -> Settings:
    """The settings in force, or InvalidSettings saying where the wrong one stands."""
    known = names()
    readers = {f.name: f.metadata["read"] for f in fields(Settings)}
    values: dict[str, object] = {}
    layers = [(_from_file(config), f"{config}: {{}}")] if config is not None else []
    layers += [(_from_environment(environment), PREFIX + "{}")]
    layers += [({key: value for key, value in flags.items() if value is not None}, "--{}")]
    for layer, place in layers:
        for key, value in layer.items():
            shown = _place(place, key)
            if key not in known:
                raise InvalidSettings(f"{shown}: unknown setting; the settings are {', '.join(known)}")
            try:
                values[known[key]] = readers[known[key]](value)
            except Invalid as error:
                raise InvalidSettings(f"{shown}: {error}") from None
    values.setdefault("state_dir", default_state_dir(environment))
    settings = Settings(**values)  # type: ignore[arg-type]
    if settings.executor == "command" and not settings.command:
        raise InvalidSettings(
            "executor: the command executor needs a command: set `command` to a program and arguments"
        )
    return settings


def _place(template: str, key: str) -> str:
    if template.startswith("--"):
        return template.format(key.replace("_", "-"))
    return template.format(key.upper() if template.startswith(PREFIX) else key)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InvalidSettings(f"{path}: larger than {MAX_CONFIG_BYTES} bytes: this is no configuration file")
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path}: this is not TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    ours = {k: v for k, v in environment.items() if k.startswith(PREFIX) and k not in NOT_SETTINGS}
    return {key.removeprefix(PREFIX).lower(): value for key, value in ours.items()}
