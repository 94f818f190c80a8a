"""What a command imports: a short command must not wait for libraries that it does not use."""

import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_S

PROGRAM = """
import atexit, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
from forewarn.cli import main
main()
"""


def modules_of(*words: str) -> set[str]:
    """Run the command and return the modules that it imported."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout
    return set(done.stderr.split())


def test_the_version_needs_no_library() -> None:
    """`--version` imports nothing but the two files it needs."""
    modules = modules_of("--version")
    assert {name for name in modules if name.startswith("forewarn")} == {"forewarn", "forewarn.cli"}
    assert not {"typer", "rich", "typing", "dataclasses"} & modules


@pytest.mark.parametrize("noun", ["event", "machine", "maintenance", "status"])
def test_a_command_imports_neither_the_service_nor_other_nouns(noun: str) -> None:
    """A command that calls the API imports its own module; no rules, and no library of the service or of terminals."""
    modules = modules_of(noun, "--help")
    assert f"forewarn.cli.{noun}" in modules
    assert not {"rich", "jinja2", "msgspec", "starlette", "uvicorn", "asyncio", "sqlite3", "psycopg"} & modules
    assert not {"forewarn.cli.fleet", "forewarn.service.settings", "forewarn.store", "forewarn.executors"} & modules
    assert not {"forewarn.core.change", "forewarn.core.planning"} & modules


def test_serving_imports_no_library_of_terminals() -> None:
    """`serve` does not need what prints tables."""
    modules = modules_of("serve", "--help")
    assert not {"rich", "forewarn.cli.fleet", "forewarn.cli.emulate"} & modules
