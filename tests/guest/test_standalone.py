"""The guest side needs only the standard library of Python 3.9."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

GUEST = Path(__file__).parent.parent.parent / "src" / "forewarn" / "guest"
MODULES = sorted(GUEST.rglob("*.py"))
# Below Python 3.11 the single file brings this one along.
BUNDLED = {"tomli"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(GUEST)))
def test_imports_are_the_standard_librarys_or_our_own(path: Path) -> None:
    """The guest side imports nothing of the rest of forewarn except its version."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module or ""]
            if node.module == "forewarn":
                assert [alias.name for alias in node.names] == ["__version__"]
                continue
        for name in names:
            top = name.partition(".")[0]
            assert name.startswith("forewarn.guest") or top in sys.stdlib_module_names | BUNDLED, name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(GUEST)))
def test_the_grammar_is_that_of_python_3_9(path: Path) -> None:
    """Every file parses as Python 3.9, and annotations are not evaluated."""
    text = path.read_text("utf-8")
    ast.parse(text, feature_version=(3, 9))
    assert path.name == "__init__.py" or "from __future__ import annotations" in text


def test_the_sdk_imports_little() -> None:
    """Importing the SDK imports neither the agent nor a web framework."""
    program = "import sys; from forewarn.guest import Client; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    for absent in ("forewarn.guest.agent", "subprocess", "argparse", "tomllib", "starlette", "asyncio"):
        assert absent not in loaded
