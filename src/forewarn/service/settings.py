"""The settings: flags win over FOREWARN_* variables, these over a TOML file, and the file over defaults.

Each setting is a dataclass field with its help and its reader; the settings reference and the errors follow from the fields. An
unknown setting is an error. An executor declares its own settings. They come from the TOML table called like the executor;
those of a built-in executor also have a flat name: `time_limit` of `[command]` is `command_time_limit`.
"""

import difflib
import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from forewarn.core.errors import Invalid, InvalidSettings
from forewarn.core.lazy_dataclass import dataclass
from forewarn.executors import registry
from forewarn.executors.settings import (
    one_of,
    parse_duration,
    read_arguments,
    read_flag,
    read_machine,
    read_path,
    read_text,
    read_time_limit,
    setting,
    whole_number,
)
from forewarn.service.decisions import DEFAULT_MAX_RESCHEDULES
from forewarn.service.default_state_dir import default_state_dir
from forewarn.service.setting_readers import (
    read_addresses,
    read_hook_targets,
    read_host_names,
    read_listeners,
    read_own_address,
    read_postgres,
)
from forewarn.store.opening import is_shared

PREFIX = "FOREWARN_"
# Variables that other programs of forewarn read.
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
# Variables that the agent sets for the command of a step, which may call `forewarn` itself.
STEP_VARIABLES = frozenset(
    f"FOREWARN_{name}" for name in ("STEP", "PHASE", "EVENT_STATUS", "NOT_BEFORE", "TIME_LEFT_S", "CHECKPOINT")
)
MIN_STALE_S, MAX_STALE_S = 5, 3_600
MAX_HOOK_TIMEOUT_S = 60
MAX_CONFIG_BYTES = 1024 * 1024


def _executor(value: object) -> str:
    if value in list(registry.BUILT_IN):  # then the metadata of all packages need not be read
        return str(value)
    return one_of(*registry.names())(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    store: str = setting(
        "",
        read_text,
        "where state is stored: `sqlite:PATH`, `memory:`, or `postgresql://USER@HOST/DATABASE`, which several nodes can share;"
        " put a password into `PGPASSWORD` or `~/.pgpass`. By default it is a file in `state_dir`",
    )
    state_dir: Path = setting(
        Path(),
        read_path,
        "the folder for the default store and for running orders; only the user of the service may write to it",
    )
    store_direct: str = setting(
        "",
        read_postgres,
        "the address of the same database without a connection pooler. Set it if `store` goes through a pooler: some"
        " connections must not be pooled",
    )
    store_connections: int = setting(
        8,
        whole_number(2, 1_000),
        "how many connections to a PostgreSQL store this node uses at most, besides the one that listens for changes",
    )
    role: str = setting(
        "all",
        one_of("all", "guest", "operator"),
        "what this node does, if several nodes share a store: `guest` answers guests only; `operator` answers operators and"
        " moves events",
    )
    max_stale_s: int = setting(
        20,
        parse_duration,
        "how long a node answers guests from memory while it cannot reach the database; then it answers 503",
    )
    fleet: Path | None = setting(None, read_path, "a fleet file to apply at start")
    prune: bool = setting(
        False,
        read_flag,
        "remove machines and scopes that the fleet file does not contain; the service does not start if these are more than 10,"
        " or all machines",
    )
    inventory: str = setting(
        "file",
        one_of("file", "libvirt"),
        "where machines come from: `file` (fleet files and the API only), or `libvirt`, which also keeps the machines as the"
        " hosts of the fleet show their domains",
    )
    inventory_rules: Path | None = setting(
        None, read_path, "a file with rules that give domains their scope by their name, for `inventory`"
    )
    inventory_identity: str = setting(
        "address",
        one_of("address", "interface"),
        "what of a domain identifies its machine: its addresses, or the `interface` on the host, where each machine has its own",
    )
    inventory_guest_agent: bool = setting(
        False, read_flag, "also ask guest agents for addresses. A guest can name any address that no other machine has"
    )
    clock: str = setting("system", read_text, "the service clock: `system`, `manual`, or a rate like `60x`")
    executor: str = setting(
        registry.DEFAULT,
        _executor,
        "who does the work of a started event: `external` (your tool, through the API), `command`, `libvirt`, `simulated`,"
        " or the name of an installed executor",
    )
    host_executor: str = setting(
        registry.DEFAULT,
        one_of("external", "command"),
        "who does the work on a host whose machines have left it or are shut down: `external` (your tool, through the API), or"
        " `command`, which runs `host_command`",
    )
    host_command: tuple[str, ...] = setting(
        (),
        read_arguments,
        "the program that does the work on a host, with its arguments. It runs with `command_user` and `command_environment`, and"
        " never again if its result is not known: then its order is in doubt until an operator decides",
    )
    host_command_time_limit_s: int = setting(
        1_800, read_time_limit, "a `host_command` that runs longer than this is stopped"
    )
    node_host: str = setting(
        "",
        read_text,
        "the host that this node runs on: its work is refused unless a node on another host is up. By default it is the"
        " machine's own host name",
    )
    guest: tuple[str, ...] = setting(
        ("127.0.0.1:8169",),
        read_listeners,
        "where to listen for guests: one or several `HOST:PORT` or `HOST:PORT@INTERFACE`",
    )
    allow_any_interface: bool = setting(
        False, read_flag, "allow guests on a wildcard address such as `0.0.0.0` without an interface"
    )
    every_caller: str = setting("", read_machine, "treat every caller as this machine, `scope/name`; for emulators")
    trusted_proxies: tuple[str, ...] = setting(
        (), read_addresses, "addresses of proxies that sign the instance id of the caller (`X-Instance-ID`)"
    )
    proxy_secret_file: Path | None = setting(
        None, read_path, "the file with the secret shared with `trusted_proxies`; only its owner and group may read it"
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), read_host_names, "host names that guests may use in the `Host` header, besides IP addresses and `localhost`"
    )
    first_call_delay_s: int = setting(
        0, parse_duration, "how long to delay the first responses of a newly enabled scope; the cloud delays up to `2m`"
    )
    disable_after_s: int = setting(
        86_400, parse_duration, "disable a scope whose guests have sent no request for this long; `0` never"
    )
    rate_limit: int = setting(5, whole_number(0, 1_000_000), "requests per second from one machine; `0` is no limit")
    guest_connections: int = setting(16, whole_number(1, 1_000_000), "connections at once from one machine")
    guest_unknown_connections: int = setting(
        4,
        whole_number(1, 1_000_000),
        "connections at once from one address that is no machine's; all such addresses together have a quarter of"
        " `guest_all_connections`",
    )
    guest_waiting: int = setting(4, whole_number(0, 1_000_000), "long polls at once from one machine")
    guest_all_connections: int = setting(
        50_000, whole_number(1, 10_000_000), "connections at once from all guests together"
    )
    guest_header_bytes: int = setting(
        8_192, whole_number(256, 1_048_576), "maximum bytes in the head of a guest's request"
    )
    guest_headers: int = setting(64, whole_number(4, 10_000), "maximum headers in a guest's request")
    guest_body_bytes: int = setting(
        65_536, whole_number(1_024, 1_048_576), "maximum bytes in the body of a guest's request"
    )
    guest_request_timeout_s: int = setting(10, parse_duration, "how long a guest may take to send a complete request")
    guest_idle_timeout_s: int = setting(75, parse_duration, "close a guest's connection that is idle for this long")
    guest_hop_limit: int = setting(
        0,
        whole_number(0, 255),
        "the IP TTL of packets to guests; `1` keeps bridged containers out, `0` uses the system's default",
    )
    operator: str = setting(
        "127.0.0.1:8170", read_own_address, "where to listen for operators and their tools, `HOST:PORT`"
    )
    tls_cert: Path | None = setting(None, read_path, "the certificate chain (PEM) of the operator listener")
    tls_key: Path | None = setting(
        None, read_path, "the private key (PEM) of the operator listener; only its owner and group may read it"
    )
    behind_tls_proxy: bool = setting(
        False,
        read_flag,
        "a proxy in front of the operator listener terminates TLS, so the listener may be off loopback without TLS",
    )
    operator_proxies: tuple[str, ...] = setting(
        ("127.0.0.1", "::1"),
        read_addresses,
        "with `behind_tls_proxy`: addresses of proxies whose `X-Forwarded-For` is trusted for the operator's address",
    )
    hsts_s: int = setting(
        365 * 86_400,
        parse_duration,
        "with TLS: how long browsers must use TLS for this host, on all its ports (`Strict-Transport-Security`); `0` sends no"
        " such header",
    )
    operator_connections: int = setting(
        100,
        whole_number(1, 100_000),
        "requests at once from one address, and with one token, to the operator listener. With `behind_tls_proxy`, the"
        " addresses in `operator_proxies` have no limit of their own",
    )
    operator_all_connections: int = setting(
        500,
        whole_number(1, 100_000),
        "requests at once to the operator listener; 20 more connections are for `/healthz`, `/readyz` and `/metrics` only",
    )
    operator_head_timeout_s: int = setting(
        10,
        parse_duration,
        "how long an operator's connection may take to send the head of a request, its TLS handshake included",
    )
    token_free: bool = setting(
        False,
        read_flag,
        "operators need no token. Only for emulators on loopback, and never with an executor that acts on machines; `serve`"
        " refuses it",
    )
    demo: bool = setting(
        False,
        read_flag,
        "the portal's pages explain what they show and what to try. Only for `forewarn demo`; `serve` refuses it",
    )
    order_timeout_s: int = setting(
        3_600, parse_duration, "an order without a result for this long has failed; `0` waits for ever"
    )
    max_reschedules: int = setting(
        DEFAULT_MAX_RESCHEDULES,
        whole_number(0, 1_000),
        "how often an event, or a host of a maintenance, can be rescheduled; `0` allows no rescheduling",
    )
    stop_grace_s: int = setting(
        0,
        parse_duration,
        "how long a node that receives SIGTERM waits for the commands it runs; they continue in any case. It starts nothing new"
        " meanwhile",
    )
    retain_history_s: int = setting(
        90 * 86_400, parse_duration, "how long to keep ended maintenances and the audit log; `0` keeps them for ever"
    )
    hook_targets: tuple[str, ...] = setting(
        (),
        read_hook_targets,
        "where hooks may send messages: host names, addresses and networks like `10.0.0.0/8`, each with every port, or with one"
        " as in `hooks.example:8443`, `10.0.0.0/8:443` and `[fd00::/8]:443`. A name allows every address that"
        " it resolves to. By default, to every public address over https, and to no private, link-local or loopback address",
    )
    hook_timeout_s: int = setting(10, parse_duration, "how long the receiver of a hook may take to answer one message")
    hook_disable_after_s: int = setting(
        3 * 86_400,
        parse_duration,
        "disable a hook whose receiver has failed for this long; `0` never. It keeps its position in the audit log",
    )
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"), "how much to log")
    # By the executor's name, each an instance of its `settings_class`.
    executor_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def store_url(self) -> str:
        """Return the store's URL; the default is a file in the state folder."""
        return self.store or f"sqlite:{self.state_dir / 'forewarn.db'}"

    def of_host_executor(self) -> Any:
        """Return the settings of the executor of hosts. With those of events it shares who runs commands, and with what."""
        kind = registry.find(self.host_executor).settings_class
        if self.host_executor != "command":
            return kind()
        of_events = self.executor_settings.get("command") or kind()
        return kind(
            command=self.host_command,
            time_limit_s=self.host_command_time_limit_s,
            user=of_events.user,
            environment=of_events.environment,
        )

    def of_executor(self) -> Any:
        """Return the settings of the executor in use."""
        return self.executor_settings.get(self.executor) or registry.find(self.executor).settings_class()


class Declared(NamedTuple):
    """A setting and whose it is: an executor's, or the service's own if `executor` is empty."""

    executor: str
    field: "Field[Any]"


def declared() -> dict[str, Declared]:
    """Return every setting that has a flat name, by that name. A duration's name ends with `_s`."""
    return {each.name: Declared("", each) for each in fields(Settings) if each.metadata} | {
        executor if each.name == executor else f"{executor}_{each.name}": Declared(executor, each)
        for executor in registry.BUILT_IN
        for each in fields(registry.find(executor).settings_class)
    }


def names() -> dict[str, str]:
    """Return the flat names of `declared` by the names that users write: a duration has no `_s` there."""
    return {name.removesuffix("_s"): name for name in declared()}


def from_values(values: Mapping[str, object]) -> Settings:
    """Return settings with these values, by the flat names of `declared`; the values are not checked."""
    known = declared()
    return _settings({known[name]: value for name, value in values.items()})


def load(flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None = None) -> Settings:
    """Return the settings in force, or raise InvalidSettings with the origin of each wrong one.

    Whether the values fit together is only checked if each of them is valid.
    """
    values: dict[Declared, object] = {}
    problems: list[str] = []
    for origin, key, value, known in _entries(flags, environment, config):
        if key not in known:
            problems.append(_unknown(origin, key, known))
            continue
        try:
            values[known[key]] = known[key].field.metadata["read"](value)
        except Invalid as error:
            problems.append(f"{origin}: {error}")
    if problems:
        raise InvalidSettings(*problems)
    values.setdefault(declared()["state_dir"], default_state_dir(environment))
    settings = _settings(values)
    for check in CHECKS:
        try:
            problems += check(settings)
        except InvalidSettings as error:
            problems += error.problems
    if problems:
        raise InvalidSettings(*problems)
    return settings


def _unknown(origin: str, key: str, known: Mapping[str, Declared]) -> str:
    """Return the sentence about a setting that does not exist: the nearest name that does, or all names if none is near."""
    is_variable = origin.startswith(PREFIX)
    others = (name.removeprefix(PREFIX).lower() for name in NOT_SETTINGS) if is_variable else ()
    nearest = difflib.get_close_matches(key, [*known, *others], n=1)
    suggestion = f"{PREFIX}{nearest[0].upper()}" if nearest and is_variable else "".join(nearest)
    hint = f"did you mean {suggestion}?" if suggestion else f"the settings are {', '.join(known)}"
    return f"{origin}: unknown setting; {hint}"


def _settings(values: Mapping[Declared, object]) -> Settings:
    by_executor: dict[str, dict[str, Any]] = {"": {}}
    for each, value in values.items():
        by_executor.setdefault(each.executor, {})[each.field.name] = value
    own = by_executor.pop("")
    executors = {name: registry.find(name).settings_class(**given) for name, given in by_executor.items()}
    return Settings(**own, executor_settings=executors)


# -- where values come from

_Entry = tuple[str, str, object, Mapping[str, Declared]]


def _entries(flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None) -> Iterator[_Entry]:
    """Yield each value with its origin, its name and the names that are known there; a later value wins."""
    every = declared()
    known = {name: every[flat] for name, flat in names().items()}
    for key, value in _from_file(config).items() if config is not None else ():
        if isinstance(value, dict) and key in registry.names():
            table = fields(registry.find(key).settings_class)
            in_table = {each.name.removesuffix("_s"): Declared(key, each) for each in table}
            yield from ((f"{config}: [{key}] {inner}", inner, each, in_table) for inner, each in value.items())
        else:
            yield f"{config}: {key}", key, value, known
    others = NOT_SETTINGS | STEP_VARIABLES.union(*(registry.find(name).variables for name in registry.BUILT_IN))
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable not in others:
            yield variable, variable.removeprefix(PREFIX).lower(), text, known
    for key, value in flags.items():
        if value is not None:
            yield f"--{key.replace('_', '-')}", key, value, known


def _from_file(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InvalidSettings(f"{path}: larger than {MAX_CONFIG_BYTES} bytes: this is no configuration file")
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also a huge number or deep nesting
        raise InvalidSettings(f"{path}: this is not TOML: {error}") from None


# -- values that must fit together


def _problems_of_executor(settings: Settings) -> Iterator[str]:
    executor = registry.find(settings.executor)
    host_executor = registry.find(settings.host_executor)
    if settings.host_executor == "command" and not settings.host_command:
        yield "host_executor: the command executor needs a command: set `host_command` to a program and arguments"
    if settings.token_free and host_executor.needs_token:
        yield f"token_free: not with the host executor {settings.host_executor}: leave it out"
    if settings.token_free and executor.needs_token:
        yield f"token_free: not with the {settings.executor} executor: leave it out"
    executor.check(settings.of_executor(), order_timeout_s=settings.order_timeout_s)
    if settings.host_executor == "command" and 0 < settings.order_timeout_s <= settings.host_command_time_limit_s:
        yield "order_timeout: it must be longer than host_command_time_limit, or an order would fail while its command runs"


def _problems_of_nodes(settings: Settings) -> Iterator[str]:
    shared = is_shared(settings.store_url)
    if shared and settings.clock != "system":
        yield f"clock: with a PostgreSQL store all nodes use the database's clock: {settings.clock!r} goes with sqlite:PATH"
    if not shared and (settings.role != "all" or settings.store_direct):
        which = "store_direct" if settings.store_direct else "role"
        yield f"{which}: it is for nodes that share a database: set `store` to postgresql://…, or leave it out"
    if not MIN_STALE_S <= settings.max_stale_s <= MAX_STALE_S:
        yield f"max_stale: use {MIN_STALE_S}s to {MAX_STALE_S}s"


def _problems_of_operators(settings: Settings) -> Iterator[str]:
    if settings.token_free and not on_loopback(settings.operator):
        yield "token_free: only on loopback: leave it out"
    if (settings.tls_cert is None) != (settings.tls_key is None):
        yield "tls_cert: a certificate needs its key: set both tls_cert and tls_key"
    if not on_loopback(settings.operator) and settings.tls_cert is None and not settings.behind_tls_proxy:
        yield (
            f"operator: {settings.operator} is not loopback, and tokens would cross the network unencrypted: set tls_cert and"
            " tls_key, or --behind-tls-proxy"
        )


def _problems_of_guests(settings: Settings) -> Iterator[str]:
    if settings.trusted_proxies and settings.proxy_secret_file is None:
        yield "trusted_proxies: a proxy is trusted by its signature: set `proxy_secret_file` as well"
    for text in settings.guest:
        host = text.partition("@")[0].rpartition(":")[0].strip("[]")
        if ipaddress.ip_address(host).is_unspecified and "@" not in text and not settings.allow_any_interface:
            yield (
                f"guest: {text} would answer on every interface, also on public ones: name an address or"
                " HOST:PORT@INTERFACE, or set --allow-any-interface"
            )


def _problems_of_hooks(settings: Settings) -> Iterator[str]:
    if not 1 <= settings.hook_timeout_s <= MAX_HOOK_TIMEOUT_S:
        yield f"hook_timeout: use 1s to {MAX_HOOK_TIMEOUT_S}s"


CHECKS = (
    _problems_of_executor,
    _problems_of_nodes,
    _problems_of_operators,
    _problems_of_guests,
    _problems_of_hooks,
)


# -- what a value means


def on_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def holds_password(store: str) -> bool:
    """Return whether the address of a database contains a password."""
    try:
        address = urlsplit(store)
        return bool(address.password or parse_qs(address.query).get("password"))
    except ValueError:
        return False
