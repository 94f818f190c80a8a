"""What a domain's metadata and the rules about its name state: scope, kind, domains and labels. Pure.

Both are input. Users who may define domains write metadata, so it is small, has no document type, and every value is checked.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from forewarn.core.errors import Invalid, InvalidFleet
from forewarn.core.model import MAX_DOMAIN, ScopeKind, check_labels, check_name
from forewarn.core.unknown_names import unknown_name

# The namespace of the element <forewarn:machine> in the metadata of a domain.
METADATA_URI = "urn:forewarn:machine"
MAX_METADATA_CHARS = 4_096
MAX_RULES = 1_000
KEYS = ("scope", "kind", "update_domain", "fault_domain", "labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What is stated about a machine; "" and None are not stated."""

    scope: str = ""
    kind: ScopeKind | None = None
    update_domain: int | None = None
    fault_domain: int | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """States values for domains whose whole name matches. A named group of the pattern states the value of that name."""

    match: re.Pattern[str]
    values: Mapping[str, object]


def statement_of(name: str, metadata: str, rules: Iterable[Rule]) -> Statement:
    """Return what the metadata states, and for the rest what the first rule states that matches the name."""
    values: dict[str, object] = {}
    for rule in rules:
        found = rule.match.fullmatch(name)
        if found is not None:
            values = {**rule.values, **{key: text for key, text in found.groupdict().items() if text is not None}}
            break
    return _statement({**values, **(_attributes(metadata) if metadata else {})})


def _statement(values: Mapping[str, object]) -> Statement:
    scope, kind = values.get("scope", ""), values.get("kind")
    if scope != "":
        check_name("scope", scope)
    if kind is not None and kind not in list(ScopeKind):
        raise Invalid(f"kind: {str(kind)[:64]!r} is unknown; use one of {', '.join(ScopeKind)}")
    return Statement(
        scope=str(scope),
        kind=None if kind is None else ScopeKind(str(kind)),
        update_domain=_number(values, "update_domain"),
        fault_domain=_number(values, "fault_domain"),
        labels=_labels(values["labels"]) if "labels" in values else None,
    )


def _labels(value: object) -> dict[str, str]:
    """Return labels: a table in a rule, or a text like `rack=a3,env=prod`."""
    if isinstance(value, dict):
        labels = {key: str(text) for key, text in value.items()}
    else:
        pairs = [part.partition("=") for part in str(value).split(",") if part]
        if not all(equals for _, equals, _ in pairs):
            raise Invalid(f"labels: {str(value)[:64]!r} is not a list of labels: write them like rack=a3,env=prod")
        labels = {key.strip(): text.strip() for key, _, text in pairs}
    check_labels(labels)
    return labels


def _number(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,3}", str(value)):
        raise Invalid(f"{key}: {str(value)[:64]!r} is not a whole number from 0 to {MAX_DOMAIN}")
    return int(str(value))


def _attributes(metadata: str) -> dict[str, object]:
    """Return the attributes of <machine>, with `_` for `-` as in the fleet file."""
    if len(metadata) > MAX_METADATA_CHARS:
        raise Invalid(f"its metadata is larger than {MAX_METADATA_CHARS} characters")
    # A document type could define entities; an element has none.
    if "<!" in metadata:
        raise Invalid("its metadata has a document type or a comment: write one element <machine/>")
    try:
        element = ElementTree.fromstring(metadata)  # noqa: S314 - small, and without entities
    except (ElementTree.ParseError, ValueError) as error:  # a lone surrogate is a ValueError
        raise Invalid(f"its metadata is not XML: {error}") from None
    if element.tag.rpartition("}")[2] != "machine" or len(element):
        raise Invalid("its metadata is not one element <machine/>")
    values: dict[str, object] = {key.replace("-", "_"): value for key, value in element.attrib.items()}
    for key in values:
        if key not in KEYS:
            raise Invalid(f"its metadata: {unknown_name('attribute', key[:64], KEYS)}")
    return values


def parse_rules(text: str, source: str) -> tuple[Rule, ...]:
    """Return the rules of a file; raise InvalidFleet with file, table and key of the first error."""
    try:
        document: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFleet(f"{source}: this is not TOML: {error}") from None
    tables = document.get("rules", [])
    unknown = next((key for key in document if key != "rules"), None)
    if unknown is not None:
        raise InvalidFleet(f"{source}: {unknown}: {unknown_name('key', unknown, ('rules',))}")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidFleet(f"{source}: rules: write each rule as a table under [[rules]]")
    if len(tables) > MAX_RULES:
        raise InvalidFleet(f"{source}: {len(tables)} rules: at most {MAX_RULES} are allowed")
    rules = []
    for index, table in enumerate(tables):
        try:
            rules.append(_rule(table))
        except Invalid as error:
            raise InvalidFleet(f"{source}: rules[{index}]: {error}") from None
    return tuple(rules)


def _rule(table: Mapping[str, object]) -> Rule:
    values = {key: value for key, value in table.items() if key != "match"}
    for key in values:
        if key not in KEYS:
            raise Invalid(f"{key}: {unknown_name('key', key, ('match', *KEYS))}")
    try:
        match = re.compile(str(table["match"]))
    except KeyError:
        raise Invalid("match: missing; add a regular expression for the names of domains") from None
    except re.error as error:
        raise Invalid(f"match: this is no regular expression: {error}") from None
    for group in match.groupindex:
        if group not in KEYS:
            raise Invalid(f"match: {unknown_name('group', group, KEYS)}")
    _statement(values)
    return Rule(match, values)
