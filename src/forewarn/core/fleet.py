"""Fleet files: read the scopes, machines and hosts that a TOML text states, check them, and write them as text again.

Owns the shape of the file and its refusals, which name file, table and key. A refusal lists everything that is wrong, not only
the first error. This module reads and writes text, not files.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from enum import StrEnum
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from forewarn.core.durations import duration_text, parse_duration
from forewarn.core.errors import Invalid, InvalidFleet
from forewarn.core.formatting import count
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import (
    MAX_MACHINES_PER_SCOPE,
    NO_LABELS,
    ApprovalMode,
    CheckedNames,
    EventType,
    Host,
    Machine,
    Scope,
    ScopeKind,
    machine_maker,
)
from forewarn.core.plain_toml import NotPlain, PlainTables, filled
from forewarn.core.unknown_names import unknown_name

MAX_FILE_BYTES = 512 * 1024 * 1024
# Commands that read or save this many machines take so long that they report their progress.
MANY_MACHINES = 100_000
SCOPE_KEYS = (
    "name",
    "kind",
    "approval",
    "approve_user_events",
    "max_user_operations",
    "terminate_notice",
    "minimum_notice",
    "windows",
    "approval_opens_window",
    "max_unavailable",
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
    "labels",
)
HOST_KEYS = ("name", "labels", "fault_domain", "connection")
SCOPE_SETTINGS = (
    "kind",
    "approval",
    "approve_user_events",
    "max_user_operations",
    "terminate_notice_s",
    "minimum_notice_s",
    "windows",
    "approval_opens_window",
    "max_unavailable",
)
MACHINE_SETTINGS = ("update_domain", "fault_domain", "host", "addresses", "interface", "instance_id", "labels")
HOST_SETTINGS = ("labels", "fault_domain", "connection")

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Scopes by name, machines by (scope, name), and hosts by name. A file lists only the hosts about which it says something."""

    scopes: Mapping[str, Scope]
    machines: Mapping[tuple[str, str], Machine]
    hosts: Mapping[str, Host] = field(default_factory=dict)


def contents_text(fleet: Fleet) -> str:
    """Return `1 scope and 12 machines`."""
    return f"{count(len(fleet.scopes), 'scope')} and {count(len(fleet.machines), 'machine')}"


# -- reading a file


def parse_fleet(text: str, source: str) -> Fleet:
    """Return the fleet that a file states; raise InvalidFleet with the file, table and key of every error, and what to do."""
    with suppress(NotPlain, Invalid):  # what is wrong is explained below
        return _read_plain_fleet(text, source)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a huge number or deep nesting fails inside tomllib
        raise InvalidFleet(f"{source}: this is not TOML: {error}") from None
    problems = _Problems(list(_top_level_problems(document, source)))
    problems.tables_missing = bool(problems.texts)
    scopes = _read_tables(document, "scopes", source, problems)
    machines = _read_tables(document, "machines", source, problems)
    hosts = _read_tables(document, "hosts", source, problems)
    return _checked_fleet(scopes, machines, hosts, source, problems)


def _read_plain_fleet(text: str, source: str) -> Fleet:
    """Return the fleet of a plain file, with a tenth of the work; raise NotPlain or Invalid for every other file."""
    found: dict[str, list[Any]] = {"scopes": [], "machines": [], "hosts": []}
    names = {what: CheckedNames(what) for what in ("scope", "machine", "host")}

    def learn(name: str, marked: dict[str, Any]) -> Callable[[list[str]], None]:
        if name not in TABLES:
            raise NotPlain
        add, make = found[name].append, TABLES[name][0]
        if name == "machines":
            make_machine = _machine_maker(marked, names)
            return lambda parts: add(make_machine(parts))
        return lambda parts: add(make(filled(marked, parts)))

    for _ in PlainTables(learn).read(text):
        pass
    scopes, machines, hosts = (zip(repeat(""), things) for things in found.values())
    return _checked_fleet(scopes, machines, hosts, source, _Problems())


def _machine_maker(marked: Mapping[str, Any], names: Mapping[str, CheckedNames]) -> Callable[[list[str]], Machine]:
    """Return what makes a machine of the strings of a table; the keys and types of the table are checked here, once."""
    settings = _machine_settings(marked)
    addresses, labels = settings["addresses"], settings["labels"]
    if len(addresses) <= 1 and not (settings["interface"] or settings["instance_id"] or labels):
        return _simple_machine_maker(settings, names)
    fixed: dict[str, Any] = {key: value for key, value in settings.items() if isinstance(value, int)}
    strings = {key: int(value[1:]) for key, value in settings.items() if isinstance(value, str) and value}
    pick = itemgetter(*strings.values())

    def make(parts: list[str]) -> Machine:
        return Machine(
            **fixed,
            **dict(zip(strings, pick(parts), strict=True)),
            addresses=tuple(filled(list(addresses), parts)),
            labels=filled(labels, parts) if labels else NO_LABELS,
        )

    return make


def _simple_machine_maker(
    settings: Mapping[str, Any], names: Mapping[str, CheckedNames]
) -> Callable[[list[str]], Machine]:
    make = machine_maker(settings["update_domain"], settings["fault_domain"], names)
    marks = settings["scope"], settings["name"], settings["host"], *(settings["addresses"] or ("",))
    scope, name, host, address = (int(mark[1:]) if mark else 0 for mark in marks)  # parts[0] is no string of the table
    return lambda parts: make(
        parts[scope], parts[name], parts[host] if host else "", parts[address] if address else None
    )


def stated_fleet(scopes: Iterable[Scope], machines: Iterable[Machine], hosts: Iterable[Host]) -> Fleet:
    """Return the fleet of these scopes, machines and hosts, checked as a file is."""
    return _checked_fleet(
        ((f"scope {s.name}", s) for s in scopes),
        ((f"machine {m}", m) for m in machines),
        ((f"host {h.name}", h) for h in hosts),
        "the fleet",
        _Problems(),
    )


@dataclass(slots=True)
class _Problems:
    """What is wrong so far, and for which scopes an error in another table would cause further errors."""

    texts: list[str] = field(default_factory=list)
    # Scopes whose own table, or a machine of which, cannot be read.
    incomplete_scopes: set[object] = field(default_factory=set)
    tables_missing: bool = False

    def knows_all_of(self, scope: str) -> bool:
        return not self.tables_missing and scope not in self.incomplete_scopes


def _checked_fleet(
    located_scopes: Iterable[tuple[str, Scope]],
    located_machines: Iterable[tuple[str, Machine]],
    located_hosts: Iterable[tuple[str, Host]],
    source: str,
    problems: _Problems,
) -> Fleet:
    """Return the fleet; raise InvalidFleet with these problems and those between its scopes and machines."""
    scopes: dict[str, Scope] = {}
    for where, scope in located_scopes:
        if scope.name in scopes:
            problems.texts.append(f"{where}: name: there are two scopes {scope.name!r}; give one of them another name")
        scopes[scope.name] = scope
    machines: dict[tuple[str, str], Machine] = {}
    locations: dict[tuple[str, str], str] = {}
    for where, machine in located_machines:
        if machine.scope not in scopes and problems.knows_all_of(machine.scope):
            problems.texts.append(f"{where}: scope: {source} has no scope {machine.scope!r}; add it")
        key = (machine.scope, machine.name)
        if key in machines:
            problems.texts.append(f"{where}: name: there are two machines {machine}; names are unique in a scope")
        machines[key] = machine
        if where:
            locations[key] = where
    problems.texts += _identity_problems(machines.values(), lambda machine: locations.get(machine.key, ""))
    hosts: dict[str, Host] = {}
    for where, host in located_hosts:
        if host.name in hosts:
            problems.texts.append(f"{where}: name: there are two hosts {host.name!r}; give one of them another name")
        hosts[host.name] = host
    members = Counter(map(attrgetter("scope"), machines.values()))
    for name, scope in scopes.items():
        if scope.kind is ScopeKind.STANDALONE and members[name] != 1 and problems.knows_all_of(name):
            problems.texts.append(
                f'{source}: scope "{name}": kind: a standalone scope has exactly one machine, and this one has'
                f" {members[name]}; change its machines or its kind"
            )
        if members[name] > MAX_MACHINES_PER_SCOPE:
            problems.texts.append(
                f'{source}: scope "{name}": {members[name]} machines: a scope has at most {MAX_MACHINES_PER_SCOPE}'
            )
    if problems.texts:
        raise InvalidFleet(*problems.texts)
    return Fleet(scopes, machines, hosts)


def _top_level_problems(document: Mapping[str, Any], source: str) -> Iterator[str]:
    for key, tables in document.items():
        if key not in TABLES:
            yield f"{source}: {key}: {unknown_name('key', key, TABLES)}"
        elif not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            yield f"{source}: {key}: write each entry as a table under [[{key}]]"


def _read_tables(document: Mapping[str, Any], key: str, source: str, problems: _Problems) -> Iterator[tuple[str, Any]]:
    """Yield the scopes, machines or hosts with their locations; add what is wrong with the other tables to the problems."""
    make, right = TABLES[key]
    tables = document.get(key, [])
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        if not isinstance(table, dict):
            continue
        name = table.get("name")
        where = f"{source}: {key}[{index}]" + (f' "{name}"' if isinstance(name, str) else "")
        try:
            made = make(table)
        except Invalid as error:
            found = _table_problems(make, right, table) or [str(error)]
            problems.texts += (f"{where}: {problem}" for problem in found)
            if key != "hosts":
                problems.incomplete_scopes.add(str(table.get("scope" if key == "machines" else "name")))
        else:
            yield where, made


def _table_problems(
    make: Callable[[Mapping[str, Any]], object], right: Mapping[str, Any], table: Mapping[str, Any]
) -> Iterable[str]:
    """Return everything that is wrong with a table: read each of its keys alone, in a table that is right otherwise."""
    trials = [(key, {other: right[other] for other in right if other != key}) for key in right if key not in table]
    trials += [(key, {**right, key: part}) for key, value in table.items() for part in _parts(value)]
    found: dict[str, None] = {}
    for key, trial in trials:
        try:
            make(trial)
        except Invalid as error:
            found[str(error) if str(error).startswith(key) else f"{key}: {error}"] = None
    return found


def _parts(value: object) -> Iterator[object]:
    """Yield each item of a list and each entry of a table alone, and then the whole value."""
    if isinstance(value, list):
        yield from ([item] for item in value)
    elif isinstance(value, dict):
        yield from ({key: item} for key, item in value.items())
    yield value


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
        windows=_strings(table, "windows", '["nights"]'),
        approval_opens_window=_typed(table, "approval_opens_window", bool, False, "true or false"),
        max_unavailable=_amount(table, "max_unavailable"),
    )


def _amount(table: Mapping[str, Any], key: str) -> str:
    """Return the text of an amount, which may be written as a number."""
    value = table.get(key, "")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _typed(table, key, str, "", "text")


def _minimum_notice(table: object) -> dict[EventType, int]:
    if not isinstance(table, dict):
        raise Invalid('minimum_notice: write a table of types and durations, like { Reboot = "30m" }')
    return {
        _choice(EventType, "minimum_notice", key): _duration(value, f"minimum_notice of {key}")
        for key, value in table.items()
    }


def _machine(table: Mapping[str, Any]) -> Machine:
    return Machine(**_machine_settings(table))


def _machine_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a machine; check the keys of the table and the types of their values."""
    _only_keys(table, MACHINE_KEYS)
    return {
        "scope": _required(table, "scope"),
        "name": _required(table, "name"),
        "update_domain": _typed(table, "update_domain", int, 0, "a whole number"),
        "fault_domain": _typed(table, "fault_domain", int, 0, "a whole number"),
        "host": _typed(table, "host", str, "", "a string"),
        "addresses": _strings(table, "addresses", '["10.0.0.4"]'),
        "interface": _typed(table, "interface", str, "", "a string"),
        "instance_id": _typed(table, "instance_id", str, "", "a string"),
        "labels": _labels(table),
    }


def _host(table: Mapping[str, Any]) -> Host:
    _only_keys(table, HOST_KEYS)
    return Host(
        name=_required(table, "name"),
        labels=_labels(table),
        fault_domain=_typed(table, "fault_domain", int, 0, "a whole number"),
        connection=_typed(table, "connection", str, "", "a string"),
        listed=True,
    )


def _labels(table: Mapping[str, Any]) -> dict[str, str]:
    labels = table.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise Invalid('labels: write a table of names and strings, like { rack = "b4" }')
    return labels


def _only_keys(table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise Invalid(f"{key}: {unknown_name('key', key, known)}")


def _required(table: Mapping[str, Any], key: str) -> str:
    if key not in table:
        raise Invalid(f"{key}: missing; add it to this table")
    return str(_typed(table, key, str, "", "a string"))


def _strings(table: Mapping[str, Any], key: str, example: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Invalid(f"{key}: write a list of strings, like {example}")
    return tuple(value)


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


# What makes a scope, machine or host of a table, and a table that is right.
TABLES: Mapping[str, tuple[Callable[[Mapping[str, Any]], object], Mapping[str, Any]]] = {
    "scopes": (_scope, {"name": "x", "kind": "standalone"}),
    "machines": (_machine, {"name": "x", "scope": "x"}),
    "hosts": (_host, {"name": "x"}),
}


def check_identities(machines: Collection[Machine], location: Callable[[Machine], str]) -> None:
    """Refuse an (interface, address) pair or an instance id of two machines: a caller must be one machine."""
    for problem in _identity_problems(machines, location):
        raise InvalidFleet(problem)


def _have_distinct_addresses(machines: Collection[Machine]) -> bool:
    """Whether the machines have no identities but addresses, and no address twice; a fast look at a fleet file."""
    addresses = list(chain.from_iterable(map(attrgetter("addresses"), machines)))
    others = any(machine.interface or machine.instance_id for machine in machines)
    return not others and len(set(addresses)) == len(addresses)


def _identity_problems(machines: Collection[Machine], location: Callable[[Machine], str]) -> Iterator[str]:
    if _have_distinct_addresses(machines):
        return
    owners: dict[object, Machine] = {}
    for machine in machines:
        interface = machine.interface
        # Without an interface the address is the identity: no pair is made for each of very many machines.
        for identity in machine.identities if interface else machine.addresses:
            owner = owners.setdefault(identity, machine)
            if owner is not machine:
                text = f"{identity[1] or 'every caller'} on {interface}" if interface else identity
                yield f"{location(machine)}: addresses: {text} belongs to {owner} already; a caller must be one machine"
        if machine.instance_id:
            owner = owners.setdefault((machine.instance_id,), machine)
            if owner is not machine:
                yield (
                    f"{location(machine)}: instance_id: {machine.instance_id!r} belongs to {owner} already;"
                    " a caller must be one machine"
                )


# -- writing a file


def fleet_text(fleet: Fleet, remarks: Mapping[tuple[str, str], str] | None = None) -> str:
    """Return the fleet as the text of a file, without settings that have their default; remarks become comments."""
    tables = []
    remarks = remarks or {}
    for scope in fleet.scopes.values():
        head = ["[[scopes]]", f"name = {_quoted(scope.name)}", f"kind = {_quoted(scope.kind)}"]
        tables.append(head + _changed_lines(scope, Scope(name=scope.name, kind=scope.kind), SCOPE_SETTINGS))
    for machine in fleet.machines.values():
        head = [f"# {remarks[machine.key]}"] if machine.key in remarks else []
        head += ["[[machines]]", f"scope = {_quoted(machine.scope)}", f"name = {_quoted(machine.name)}"]
        tables.append(head + _changed_lines(machine, Machine(scope=machine.scope, name=machine.name), MACHINE_SETTINGS))
    for host in fleet.hosts.values():
        head = ["[[hosts]]", f"name = {_quoted(host.name)}"]
        tables.append(head + _changed_lines(host, Host(name=host.name), HOST_SETTINGS))
    return "\n\n".join("\n".join(lines) for lines in tables) + "\n" if tables else ""


def _changed_lines(thing: object, default: object, keys: Iterable[str]) -> list[str]:
    return [
        f"{key.removesuffix('_s')} = {_toml(key, getattr(thing, key))}"
        for key in keys
        if getattr(thing, key) != getattr(default, key)
    ]


def _toml(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(k)} = {_toml_item(v)}" for k, v in sorted(value.items())) + " }"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _quoted(duration_text(value)) if key.endswith("_s") else str(value)
    return _quoted(str(value))


def _toml_key(key: str) -> str:
    return _quoted(key) if "." in key else key


def _toml_item(value: object) -> str:
    """Return a label, or the duration of a minimum notice."""
    return _quoted(duration_text(value) if isinstance(value, int) else str(value))


def _quoted(text: str) -> str:
    """Quote the text: a JSON string is a TOML basic string."""
    return json.dumps(text)
