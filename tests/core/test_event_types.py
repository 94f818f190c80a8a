"""The table of event types is complete, and the rest of the service reads it instead of naming types."""

import ast
from pathlib import Path

import pytest

import forewarn
from forewarn.core.document import VERSIONS
from forewarn.core.event_types import EVENT_TYPES, EventType, ScopeKind, Source
from tests.support.builders import scope

ROOT = Path(forewarn.__file__).parent
# Modules that name a type, each for a reason that a further type does not change.
EXCEPTIONS = {
    "demo/schedule.py": "the demo schedules maintenances of its own choice",
    "executors/simulated.py": "the setting freeze_work gives Freeze a duration of its own",
    "libvirt/machine_work.py": "libvirt has an action for each type",
    "operator/api/inventory.py": "the calls restart and redeploy request these types",
    "operator/portal/plan_form.py": "the form's first choice is Reboot",
}


def names_types(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "EventType"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def test_the_table_has_a_row_for_every_type() -> None:
    """Each event type has one row, in the order of the enumeration."""
    assert list(EVENT_TYPES) == list(EventType)


def test_only_the_table_names_types() -> None:
    """A new type needs no change of another module: none names a type, apart from the exceptions listed here."""
    naming = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if names_types(path)}
    assert naming == {"core/event_types.py", *EXCEPTIONS}


@pytest.mark.parametrize("type_", EventType)
def test_the_schemas_allow_every_type(type_: EventType) -> None:
    """The CHECK constraint of each database lists the type."""
    assert f"'{type_}'" in (ROOT / "store/sqlite/schema.sql").read_text("utf-8")
    migrations = (ROOT / "store/postgres/migrations").glob("*.sql")
    assert any(f"'{type_}'" in migration.read_text("utf-8") for migration in migrations)


@pytest.mark.parametrize("type_", EventType)
def test_a_row_refers_to_what_exists(type_: EventType) -> None:
    """A row names a known api-version, a setting that scopes have, and at least one source and one kind of scope."""
    rules = EVENT_TYPES[type_]
    assert rules.first_api_version in VERSIONS
    assert rules.sources
    assert rules.scope_kinds
    assert scope().notice_s(type_) == rules.minimum_notice_s


@pytest.mark.parametrize(
    "column, types",
    [
        ("may_be_emergency", "Freeze Reboot Redeploy"),
        ("one_domain_at_a_time", "Freeze Reboot Redeploy"),
        ("one_event_per_machine", "Preempt Terminate"),
        ("removes_machines", "Terminate"),
        ("own_notice_setting", "Terminate"),
    ],
)
def test_the_types_of_a_rule(column: str, types: str) -> None:
    """Each rule applies to exactly these types."""
    assert [t for t, rules in EVENT_TYPES.items() if getattr(rules, column)] == types.split()


def test_the_sources_and_scope_kinds_of_the_types() -> None:
    """Users restart and redeploy; the platform does everything; Terminate needs a placement-group."""
    assert [t for t, rules in EVENT_TYPES.items() if Source.USER in rules.sources] == ["Reboot", "Redeploy"]
    assert all(Source.PLATFORM in rules.sources for rules in EVENT_TYPES.values())
    limited = {t: rules.scope_kinds for t, rules in EVENT_TYPES.items() if rules.scope_kinds != set(ScopeKind)}
    assert limited == {EventType.TERMINATE: {ScopeKind.PLACEMENT_GROUP}}
