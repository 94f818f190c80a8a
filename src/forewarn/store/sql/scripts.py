"""Load SQL from files: named queries, the schema, numbered migrations. Opens no database."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    script: str


@cache
def queries(dialect: str) -> dict[str, str]:
    """Return the dialect's queries by name, without their comments."""
    parts = _NAME.split(_read(dialect, "queries.sql"))
    return {name: _COMMENT.sub("", text).strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def schema(dialect: str) -> str:
    return _read(dialect, "schema.sql")


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations in order; the number of the last one is the schema version."""
    folder = files(f"forewarn.store.{dialect}") / "migrations"
    steps = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        steps.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(steps)


def _read(dialect: str, name: str) -> str:
    return (files(f"forewarn.store.{dialect}") / name).read_text("utf-8")
