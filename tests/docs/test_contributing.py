"""CONTRIBUTING.md: it has a row for every package, and the files it names exist."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "forewarn"
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
BASES = (ROOT, SOURCE, SOURCE / "store", SOURCE / "operator")
# Retired as names: they have had several meanings each.
RETIRED = {"told", "said", "asked", "settle", "settled", "house", "desk", "words"}


def test_every_package_has_a_row() -> None:
    """A new package needs a row in the table of packages."""
    packages = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    rows = set(re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE))
    assert rows == packages


def test_every_package_says_what_it_owns() -> None:
    """The docstring of a package is where a newcomer reads what belongs there."""
    for page in SOURCE.glob("*/__init__.py"):
        assert ast.get_docstring(ast.parse(page.read_text("utf-8"))), page


def test_the_files_it_names_exist() -> None:
    """Paths are relative to the checkout, to `src/forewarn/`, or to the package that the row is about."""
    paths = re.findall(r"`([\w./-]+/[\w./-]*)`", TEXT)
    assert len(paths) > 50
    missing = [path for path in paths if not any((base / path).exists() for base in BASES)]
    assert missing == []


def test_a_class_name_has_one_meaning() -> None:
    """Outside the guest side, which stands alone, no two classes share a name."""
    modules: dict[str, list[str]] = defaultdict(list)
    for page in SOURCE.rglob("*.py"):
        if "guest" not in page.relative_to(SOURCE).parts:
            for node in ast.walk(ast.parse(page.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].append(str(page.relative_to(SOURCE)))
    # These two are also names in the OpenAPI document, which do not change.
    assert {name for name, where in modules.items() if len(where) > 1} <= {"Fleet", "Page"}


def test_retired_words_are_not_names() -> None:
    """Modules, classes and functions are named after what they are."""
    found = set()
    for page in SOURCE.rglob("*.py"):
        nodes = ast.walk(ast.parse(page.read_text("utf-8")))
        named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        for name in [page.stem, *(node.name for node in nodes if isinstance(node, named))]:
            if RETIRED & set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())):
                found.add(f"{page.relative_to(SOURCE)}: {name}")
    assert found == set()
