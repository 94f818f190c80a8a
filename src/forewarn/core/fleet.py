"""Fleet files: read the scopes and machines that a TOML text states, check them, and write them as text again.

Owns the shape of the file and its refusals, which name file, table and key. It reads and writes text, not files.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from forewarn.core.durations import duration_text, parse_duration
from forewarn.core.errors import Invalid, InvalidFleet
from forewarn.core.model import (
    MAX_MACHINES_PER_SCOPE,
    ApprovalMode,
    EventType,
    Machine,
    Scope,
    ScopeKind,
)

MAX_FILE_BYTES = 512 * 1024 * 1024
SCOPE_KEYS = (
    "name",
    "kind",
    "approval",
    "approve_user_events",
    "max_user_operations",
    "terminate_notice",
    "minimum_notice",
)
MACHINE_KEYS = (
    "name",
    "scope",
    "update_domain",
    "fault_domain",
    "host",
    "addresses",
    "interface",
    "instance_id",
)
SCOPE_SETTINGS = (
    "kind",
    "approval",
    "approve_user_events",
    "max_user_operations",
    "terminate_notice_s",
    "minimum_notice_s",
)
MACHINE_SETTINGS = ("update_domain", "fault_domain", "host", "addresses", "interface", "instance_id")

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Scopes by name, and machines by (scope, name)."""

    scopes: Mapping[str, Scope]
    machines: Mapping[tuple[str, str], Machine]


# -- reading a file


def parse_fleet(text: str, source: str) -> Fleet:
    """Return the fleet that a file states; raise InvalidFleet with the file, the table, the key and what to do."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a huge number or deep nesting fails inside tomllib
        raise InvalidFleet(f"{source}: this is not TOML: {error}") from None
    _only_keys(document, ("scopes", "machines"), source)
    scopes = ((where, _located(where, _scope, table)) for where, table in _tables(document, "scopes", source))
    machines = ((where, _located(where, _machine, table)) for where, table in _tables(document, "machines", source))
    return _checked_fleet(scopes, machines, source)


def stated_fleet(scopes: Iterable[Scope], machines: Iterable[Machine]) -> Fleet:
    """Return the fleet of these scopes and machines, checked as a file is."""
    return _checked_fleet(
        ((f"scope {s.name}", s) for s in scopes), ((f"machine {m}", m) for m in machines), "the fleet"
    )


def _checked_fleet(
    located_scopes: Iterable[tuple[str, Scope]], located_machines: Iterable[tuple[str, Machine]], source: str
) -> Fleet:
    """Return the fleet; raise InvalidFleet with the location of what is wrong."""
    scopes: dict[str, Scope] = {}
    for where, scope in located_scopes:
        if scope.name in scopes:
            raise InvalidFleet(f"{where}: name: there are two scopes {scope.name!r}; give one of them another name")
        scopes[scope.name] = scope
    machines: dict[tuple[str, str], Machine] = {}
    locations: dict[tuple[str, str], str] = {}
    for where, machine in located_machines:
        if machine.scope not in scopes:
            raise InvalidFleet(f"{where}: scope: {source} has no scope {machine.scope!r}; add it")
        if machine.key in machines:
            raise InvalidFleet(f"{where}: name: there are two machines {machine}; names are unique in a scope")
        machines[machine.key], locations[machine.key] = machine, where
    check_identities(machines.values(), lambda machine: locations[machine.key])
    members = Counter(machine.scope for machine in machines.values())
    for name, scope in scopes.items():
        if scope.kind is ScopeKind.STANDALONE and members[name] != 1:
            raise InvalidFleet(
                f'{source}: scope "{name}": kind: a standalone scope has exactly one machine, and this one has'
                f" {members[name]}; change its machines or its kind"
            )
        if members[name] > MAX_MACHINES_PER_SCOPE:
            raise InvalidFleet(
                f'{source}: scope "{name}": {members[name]} machines: a scope has at most {MAX_MACHINES_PER_SCOPE}'
            )
    return Fleet(scopes, machines)


def _tables(document: Mapping[str, Any], key: str, source: str) -> Iterable[tuple[str, dict[str, Any]]]:
    tables = document.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidFleet(f"{source}: {key}: write each entry as a table under [[{key}]]")
    for index, table in enumerate(tables):
        name = table.get("name")
        yield f"{source}: {key}[{index}]" + (f' "{name}"' if isinstance(name, str) else ""), table


def _located(location: str, make: Callable[[Mapping[str, Any]], T], table: Mapping[str, Any]) -> T:
    try:
        return make(table)
    except Invalid as error:
        raise InvalidFleet(f"{location}: {error}") from None


def _scope(table: Mapping[str, Any]) -> Scope:
    _only_keys(table, SCOPE_KEYS)
    return Scope(
        name=_required(table, "name"),
        kind=_choice(ScopeKind, "kind", _required(table, "kind")),
        approval=_choice(ApprovalMode, "approval", table.get("approval", "any")),
        approve_user_events=_typed(table, "approve_user_events", bool, False, "true or false"),
        max_user_operations=_typed(table, "max_user_operations", int, 0, "a whole number"),
        terminate_notice_s=_duration(table.get("terminate_notice", "5m"), "terminate_notice"),
        minimum_notice_s=_minimum_notice(table.get("minimum_notice", {})),
    )


def _minimum_notice(table: object) -> dict[EventType, int]:
    if not isinstance(table, dict):
        raise Invalid('minimum_notice: write a table of types and durations, like { Reboot = "30m" }')
    return {
        _choice(EventType, "minimum_notice", key): _duration(value, f"minimum_notice of {key}")
        for key, value in table.items()
    }


def _machine(table: Mapping[str, Any]) -> Machine:
    _only_keys(table, MACHINE_KEYS)
    addresses = table.get("addresses", [])
    if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
        raise Invalid('addresses: write a list of strings, like ["10.0.0.4"]')
    return Machine(
        scope=_required(table, "scope"),
        name=_required(table, "name"),
        update_domain=_typed(table, "update_domain", int, 0, "a whole number"),
        fault_domain=_typed(table, "fault_domain", int, 0, "a whole number"),
        host=_typed(table, "host", str, "", "a string"),
        addresses=tuple(addresses),
        interface=_typed(table, "interface", str, "", "a string"),
        instance_id=_typed(table, "instance_id", str, "", "a string"),
    )


def _only_keys(table: Mapping[str, Any], known: Iterable[str], source: str = "") -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            prefix = f"{source}: " if source else ""
            raise InvalidFleet(f"{prefix}{key}: unknown key; the keys here are {', '.join(known)}")


def _required(table: Mapping[str, Any], key: str) -> str:
    if key not in table:
        raise Invalid(f"{key}: missing; add it to this table")
    return str(_typed(table, key, str, "", "a string"))


def _typed(table: Mapping[str, Any], key: str, type_: type, default: Any, what: str) -> Any:
    value = table.get(key, default)
    # In Python a boolean is an int too, and `update_domain = true` must be refused.
    if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
        raise Invalid(f"{key}: {value!r} is not {what}")
    return value


def _choice(enum: type[E], key: str, value: Any) -> E:
    try:
        return enum(value)
    except ValueError:
        raise Invalid(f"{key}: {value!r} is unknown; use one of {', '.join(enum)}") from None


def _duration(value: object, key: str) -> int:
    try:
        return parse_duration(value)
    except Invalid as error:
        raise Invalid(f"{key}: {error}") from None


def check_identities(machines: Iterable[Machine], location: Callable[[Machine], str]) -> None:
    """Refuse an (interface, address) pair or an instance id of two machines: a caller must be one machine."""
    owners: dict[object, Machine] = {}
    for machine in machines:
        claims: list[tuple[str, object, str]] = [
            ("addresses", (interface, address), f"{address or 'every caller'}{f' on {interface}' if interface else ''}")
            for interface, address in machine.identities
        ]
        if machine.instance_id:
            claims.append(("instance_id", machine.instance_id, repr(machine.instance_id)))
        for key, identity, text in claims:
            owner = owners.setdefault(identity, machine)
            if owner is not machine:
                raise InvalidFleet(
                    f"{location(machine)}: {key}: {text} belongs to {owner} already; a caller must be one machine"
                )


# -- writing a file


def fleet_text(fleet: Fleet) -> str:
    """Return the fleet as the text of a file, without settings that have their default."""
    tables = []
    for scope in fleet.scopes.values():
        head = ["[[scopes]]", f"name = {_quoted(scope.name)}", f"kind = {_quoted(scope.kind)}"]
        tables.append(head + _changed_lines(scope, Scope(name=scope.name, kind=scope.kind), SCOPE_SETTINGS))
    for machine in fleet.machines.values():
        head = ["[[machines]]", f"scope = {_quoted(machine.scope)}", f"name = {_quoted(machine.name)}"]
        tables.append(head + _changed_lines(machine, Machine(scope=machine.scope, name=machine.name), MACHINE_SETTINGS))
    return "\n\n".join("\n".join(lines) for lines in tables) + "\n" if tables else ""


def _changed_lines(thing: object, default: object, keys: Iterable[str]) -> list[str]:
    return [
        f"{key.removesuffix('_s')} = {_toml(key, getattr(thing, key))}"
        for key in keys
        if getattr(thing, key) != getattr(default, key)
    ]


def _toml(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_quoted(duration_text(v))}" for k, v in sorted(value.items())) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _quoted(duration_text(value)) if key.endswith("_s") else str(value)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """Quote the text: a JSON string is a TOML basic string."""
    return json.dumps(text)
