"""The documentation shows every command as the program prints it."""

import os
import subprocess
import sys

import pytest
from scripts.reference import CLI_TARGET, cli_reference, commands

from forewarn.cli.app import HELP_COLUMNS

NOUNS = {
    "fleet": "apply check diff export",
    "scope": "list show set",
    "machine": "list show restart redeploy",
    "maintenance": "schedule list show cancel pause resume wait",
    "event": "list show why approve cancel retry finish abandon watch",
    "order": "list start finish fail",
    "audit": "list head export verify",
    "token": "create list revoke",
    "budget": "show set",
    "window": "list show add set extend remove",
    "no-go": "list add remove",
    "clock": "show advance confirm",
    "db": "status migrate backup restore hold resume",
}


def test_the_reference_matches_the_code() -> None:
    """`python scripts/reference.py` generates it."""
    assert CLI_TARGET.read_text("utf-8") == cli_reference()


def test_every_command_exists() -> None:
    """Each noun and verb of the design has a help text."""
    help_texts = dict(commands())
    wanted = {"forewarn", "forewarn serve", "forewarn demo", "forewarn status"}
    wanted |= {f"forewarn {noun}" for noun in NOUNS}
    wanted |= {f"forewarn {noun} {verb}" for noun, verbs in NOUNS.items() for verb in verbs.split()}
    assert wanted <= set(help_texts)
    for path, text in help_texts.items():
        assert f"Usage: {path} " in text
        assert "--help" in text


NO_API = (
    "forewarn serve",
    "forewarn agent",
    "forewarn emulate",
    "forewarn record",
    "forewarn conform",
    "forewarn demo",
    "forewarn fleet import",
)


def test_every_command_that_calls_the_api_has_json() -> None:
    """`db` and `fleet check` have --json too, but no --server."""
    for path, text in commands():
        if "COMMAND [ARGS]" in text or path in NO_API or path.startswith("forewarn scenario "):
            continue
        assert "--json" in text, path
        offline = path.startswith("forewarn db ") or path == "forewarn fleet check"
        assert ("--server" in text) is not offline, path


@pytest.mark.parametrize("arguments", [[], ["event", "why"]])
def test_help_prints_the_text_of_the_reference(arguments: list[str]) -> None:
    """Checked with a real process, at the width of the page."""
    program = "import sys; sys.argv[0] = 'forewarn'; from forewarn.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": str(HELP_COLUMNS)},
    )
    help_text = dict(commands())[" ".join(["forewarn", *arguments])]
    assert result.stdout.split() == help_text.split()
