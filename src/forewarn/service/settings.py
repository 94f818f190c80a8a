"""One frozen Settings: flags over FOREWARN_* variables over a TOML file over defaults; an unknown key is an error.

Each setting is a field below, with its help and how to read it: the command line, the reference and the errors follow.
"""

import ipaddress
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from forewarn.core.durations import parse_duration
from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.model import NAME

PREFIX = "FOREWARN_"
# Variables of the same family that other programs of ours read.
NOT_SETTINGS = frozenset(
    {
        "FOREWARN_CONFIG",
        "FOREWARN_TOKEN",
        "FOREWARN_SERVER",
        "FOREWARN_CA_FILE",
        "FOREWARN_ENDPOINT",
        "FOREWARN_AGENT_CONFIG",
    }
)
# What the command executor tells a command, which may well call `forewarn` itself.
COMMAND_VARIABLES = frozenset(
    f"FOREWARN_{name}"
    for name in (
        "ORDER_ID", "ATTEMPT", "EVENT_ID", "MAINTENANCE_ID", "EVENT_TYPE", "EVENT_SOURCE", "SCOPE", "UPDATE_DOMAIN",
        "RESOURCES", "HOSTS", "DURATION_S",
    )
)  # fmt: skip
# What the agent tells a step's command beside these.
STEP_VARIABLES = frozenset(
    f"FOREWARN_{name}" for name in ("STEP", "PHASE", "EVENT_STATUS", "NOT_BEFORE", "TIME_LEFT_S")
)
MIN_STALE_S, MAX_STALE_S = 5, 3_600
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
        value = dict(pair.partition("=")[::2] for pair in value.split())
    if not isinstance(value, dict):
        raise Invalid('write a table like { "shop/web-0" = 1 }')
    return {_machine(key): _whole(0, 1_000_000)(count) for key, count in value.items()}


def _address(value: object) -> str:
    text = _text(value)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise Invalid(f"{text!r} is not HOST:PORT: write it like 127.0.0.1:8170, or [::1]:8170")
    return text


def _own_address(value: object) -> str:
    """One to bind to: a name could be anywhere, and whether it is loopback decides what is safe."""
    text = _address(value)
    host = text.rpartition(":")[0].strip("[]")
    try:
        if host != "localhost":
            ipaddress.ip_address(host)
    except ValueError:
        raise Invalid(
            f"{text!r} begins with a name: write an IP address of this machine or localhost, like 127.0.0.1:8170"
        ) from None
    return text


def _listeners(value: object) -> tuple[str, ...]:
    """One or several HOST:PORT[@INTERFACE]; a text may hold several, separated by spaces."""
    return tuple(_listener(each) for each in _some_of(value))


def _listener(text: str) -> str:
    place, at, interface = text.partition("@")
    if at and not interface:
        raise Invalid(f"{text!r} names no interface after the @: write it like 169.254.169.254:80@tap3")
    host = _address(place).rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise Invalid(f"{text!r} does not begin with an IP address: write it like 127.0.0.1:8169") from None
    return text


def _some_of(value: object) -> list[str]:
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) and each for each in value):
        raise Invalid("write a list of texts")
    return list(value)


def _addresses(value: object) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_address(each)) for each in _some_of(value))
    except ValueError as error:
        raise Invalid(str(error)) from None


def _host_names(value: object) -> tuple[str, ...]:
    found = tuple(each.lower() for each in _some_of(value))
    for each in found:
        if "*" in each:
            raise Invalid(f"{each!r} names no host: write each name in full")
    return found


def _flag(value: object) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
    if isinstance(value, str):
        value = known.get(value.lower(), value)
    if not isinstance(value, bool):
        raise Invalid(f"{value!r} is neither true nor false")
    return value


def _machine(value: object) -> str:
    scope, slash, name = _text(value).partition("/")
    if not (slash and NAME.fullmatch(scope) and NAME.fullmatch(name)):
        raise Invalid(f"{value!r} names no machine: write it like shop/web-0")
    return f"{scope}/{name}"


def _postgres(value: object) -> str:
    text = _text(value)
    if not is_postgres(text):
        raise Invalid("this is no address of a database: write it like postgresql://user@host:5432/database")
    return text


def is_postgres(store: str) -> bool:
    return store.startswith(("postgresql://", "postgres://"))


def holds_password(store: str) -> bool:
    """Whether an address of a database has one in it."""
    try:
        given = urlsplit(store)
        return bool(given.password or parse_qs(given.query).get("password"))
    except ValueError:
        return False


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
    store: str = _setting(
        "",
        _text,
        "where state lives: `sqlite:PATH`, `postgresql://USER@HOST/DATABASE` (several nodes share it; a password is better given"
        " in `PGPASSWORD` or `~/.pgpass`) or `memory:`; by default a file in `state_dir`",
    )
    state_dir: Path = _setting(Path(), _path, "the folder for the default store and for orders under way")
    store_direct: str = _setting(
        "",
        _postgres,
        "the same database without a pooler in between, where `store` leads through one: for what needs a connection of its own",
    )
    store_connections: int = _setting(
        8,
        _whole(2, 1_000),
        "how many connections to a PostgreSQL store this node uses at most, beside the one it hears of others by",
    )
    role: str = _setting(
        "all",
        _one_of("all", "guest", "operator"),
        "what this node does, where several share a store: `guest` answers guests, `operator` operators and does the work",
    )
    max_stale_s: int = _setting(
        20, parse_duration, "guests are answered from memory for so long while the database is away, then with 503"
    )
    fleet: Path | None = _setting(None, _path, "a fleet file to apply at start")
    prune: bool = _setting(False, _flag, "machines and scopes that the fleet file does not state are removed")
    clock: str = _setting("system", _text, "`system`, `manual`, or a rate like `60x`")
    executor: str = _setting(
        "external",
        _one_of("external", "command", "simulated"),
        "who does the work of a started event: `external` (others, through the API), `command` or `simulated`",
    )
    guest: tuple[str, ...] = _setting(
        ("127.0.0.1:8169",), _listeners, "where guests ask, one or several `HOST:PORT`, `HOST:PORT@INTERFACE`"
    )
    allow_any_interface: bool = _setting(
        False, _flag, "guests may be listened for on a wildcard address such as `0.0.0.0`, without an interface"
    )
    every_caller: str = _setting("", _machine, "take every caller for this machine, `scope/name`; for emulators")
    trusted_proxies: tuple[str, ...] = _setting(
        (), _addresses, "addresses of proxies that sign the instance id of the caller (`X-Instance-ID`)"
    )
    proxy_secret_file: Path | None = _setting(None, _path, "the file with the secret shared with those proxies")
    allowed_hosts: tuple[str, ...] = _setting(
        (), _host_names, "names guests may use for us in Host, besides IP addresses and `localhost`"
    )
    first_call_delay_s: int = _setting(
        0,
        parse_duration,
        "how long the first answers of a newly enabled scope are held back; `2m` is what the cloud does",
    )
    disable_after_s: int = _setting(
        86_400, parse_duration, "a scope whose guests have not asked for so long is disabled; `0` never"
    )
    rate_limit: int = _setting(5, _whole(0, 1_000_000), "requests a second from one machine; `0` is no limit")
    guest_connections: int = _setting(16, _whole(1, 1_000_000), "connections at once from one machine")
    guest_waiting: int = _setting(4, _whole(0, 1_000_000), "long polls at once from one machine")
    guest_all_connections: int = _setting(50_000, _whole(1, 10_000_000), "connections at once from all guests together")
    guest_header_bytes: int = _setting(8_192, _whole(256, 1_048_576), "bytes in the head of a guest's request")
    guest_headers: int = _setting(64, _whole(4, 10_000), "headers in a guest's request")
    guest_body_bytes: int = _setting(65_536, _whole(1_024, 1_048_576), "bytes in the body of a guest's request")
    guest_request_timeout_s: int = _setting(10, parse_duration, "a guest's request must be complete within so long")
    guest_idle_timeout_s: int = _setting(75, parse_duration, "a guest's connection may be silent for so long")
    guest_hop_limit: int = _setting(
        0, _whole(0, 255), "IP TTL of what is sent to guests; `1` keeps bridged containers out, `0` is the system's"
    )
    operator: str = _setting("127.0.0.1:8170", _own_address, "where operators and their tools ask, `HOST:PORT`")
    tls_cert: Path | None = _setting(None, _path, "the certificate chain (PEM) of the operator listener")
    tls_key: Path | None = _setting(None, _path, "the private key (PEM) of the operator listener")
    behind_tls_proxy: bool = _setting(
        False, _flag, "a proxy in front of the operator listener speaks TLS, so it may listen off loopback without"
    )
    operator_proxies: tuple[str, ...] = _setting(
        ("127.0.0.1", "::1"),
        _addresses,
        "with `behind_tls_proxy`: addresses of proxies whose `X-Forwarded-For` says where an operator comes from",
    )
    token_free: bool = _setting(
        False,
        _flag,
        "operators need no token: for emulators, on loopback, never with the `command` executor; `serve` refuses it",
    )
    demo: bool = _setting(
        False, _flag, "the pages explain what is seen and what to try: for `forewarn demo` alone; `serve` refuses it"
    )
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
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    """What no single setting can tell."""
    if settings.executor == "command" and not settings.command:
        raise InvalidSettings(
            "executor: the command executor needs a command: set `command` to a program and arguments"
        )
    if settings.command_time_limit_s == 0:
        raise InvalidSettings("command_time_limit: a command needs some time: write a duration above 0")
    if settings.executor == "command" and 0 < settings.order_timeout_s <= settings.command_time_limit_s:
        raise InvalidSettings(
            "order_timeout: it must be longer than command_time_limit, or an order would fail while its command runs on"
        )
    shared = is_postgres(settings.store)
    if shared and settings.clock != "system":
        raise InvalidSettings(
            f"clock: with a PostgreSQL store the database's clock is everybody's: {settings.clock!r} goes with sqlite:PATH"
        )
    if not shared and (settings.role != "all" or settings.store_direct):
        which = "store_direct" if settings.store_direct else "role"
        raise InvalidSettings(
            f"{which}: it is for nodes that share a database: set `store` to postgresql://…, or leave it out"
        )
    if not MIN_STALE_S <= settings.max_stale_s <= MAX_STALE_S:
        raise InvalidSettings(f"max_stale: use {MIN_STALE_S}s to {MAX_STALE_S}s")
    if settings.trusted_proxies and settings.proxy_secret_file is None:
        raise InvalidSettings("trusted_proxies: a proxy is trusted by its signature: set `proxy_secret_file` as well")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InvalidSettings("tls_cert: a certificate goes with its key: set both tls_cert and tls_key")
    if not on_loopback(settings.operator) and settings.tls_cert is None and not settings.behind_tls_proxy:
        raise InvalidSettings(
            f"operator: {settings.operator} is not loopback, and tokens would cross the network in the clear: set tls_cert and"
            " tls_key, or say --behind-tls-proxy"
        )
    if settings.token_free and (settings.executor == "command" or not on_loopback(settings.operator)):
        raise InvalidSettings("token_free: only on loopback, and not with the command executor: leave it out")
    for text in settings.guest:
        host = text.partition("@")[0].rpartition(":")[0].strip("[]")
        if ipaddress.ip_address(host).is_unspecified and "@" not in text and not settings.allow_any_interface:
            raise InvalidSettings(
                f"guest: {text} would answer on every interface, the outer ones too: name an address or"
                " HOST:PORT@INTERFACE, or say --allow-any-interface"
            )


def on_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


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
    except (ValueError, RecursionError) as error:  # also a huge number or deep nesting
        raise InvalidSettings(f"{path}: this is not TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    others = NOT_SETTINGS | COMMAND_VARIABLES | STEP_VARIABLES
    ours = {k: v for k, v in environment.items() if k.startswith(PREFIX) and k not in others}
    return {key.removeprefix(PREFIX).lower(): value for key, value in ours.items()}


def store_path(settings: Settings) -> Path | None:
    """The file of an embedded store; None for memory and for a database elsewhere."""
    if settings.store == "memory:" or is_postgres(settings.store):
        return None
    kind, _, path = (settings.store or f"sqlite:{settings.state_dir / 'forewarn.db'}").partition(":")
    if kind != "sqlite" or not path:
        raise InvalidSettings(
            # Never quoted: it may be PostgreSQL's other way to say where, with the password in it.
            "store: this is none: use sqlite:PATH, postgresql://USER@HOST/DATABASE (only as such a URL) or memory:"
        )
    return Path(path).expanduser()
