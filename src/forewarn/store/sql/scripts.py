"""SQL kept in files: named queries, the schema, numbered migrations. Knows files, not databases."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    script: str


@cache
def queries(dialect: str) -> dict[str, str]:
    """The dialect's queries by name."""
    parts = _NAME.split(_read(dialect, "queries.sql"))
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def schema(dialect: str) -> str:
    return _read(dialect, "schema.sql")


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """In order; the last one's number is the schema's version."""
    folder = files(f"forewarn.store.{dialect}") / "migrations"
    found = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text("utf-8")))
    return tuple(found)


def _read(dialect: str, name: str) -> str:
    return (files(f"forewarn.store.{dialect}") / name).read_text("utf-8")
