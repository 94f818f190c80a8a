"""Every command is in the documentation as it is in the program."""

import os
import subprocess
import sys

import pytest
from scripts.reference import CLI_TARGET, cli_reference, commands

from forewarn.cli.app import HELP_COLUMNS

NOUNS = {
    "fleet": "apply diff export",
    "scope": "list show set",
    "machine": "list show restart redeploy",
    "maintenance": "schedule list show cancel pause resume wait",
    "event": "list show why approve cancel retry finish abandon watch",
    "order": "list start finish fail",
    "audit": "list",
    "token": "create list revoke",
    "clock": "show advance confirm",
    "db": "status migrate backup restore",
}


def test_the_reference_is_what_the_code_says() -> None:
    """`python scripts/reference.py` writes it anew."""
    assert CLI_TARGET.read_text("utf-8") == cli_reference()


def test_every_command_is_there() -> None:
    """The nouns and verbs of the design, each with a help text of its own."""
    told = dict(commands())
    wanted = {"forewarn", "forewarn serve", "forewarn demo", "forewarn status"}
    wanted |= {f"forewarn {noun}" for noun in NOUNS}
    wanted |= {f"forewarn {noun} {verb}" for noun, verbs in NOUNS.items() for verb in verbs.split()}
    assert wanted <= set(told)
    for path, text in told.items():
        assert f"Usage: {path} " in text
        assert "--help" in text


NO_API = (
    "forewarn serve",
    "forewarn agent",
    "forewarn emulate",
    "forewarn record",
    "forewarn conform",
    "forewarn demo",
)


def test_json_is_everywhere() -> None:
    """Whatever talks to the API prints its JSON when asked, and `db` tells its facts as JSON too."""
    for path, text in commands():
        if "COMMAND [ARGS]" in text or path in NO_API or path.startswith("forewarn scenario "):
            continue
        assert "--json" in text, path
        assert ("--server" in text) is not path.startswith("forewarn db "), path


@pytest.mark.parametrize("words", [[], ["event", "why"]])
def test_help_says_the_same_as_the_reference(words: list[str]) -> None:
    """The real process, as wide as the page."""
    program = "import sys; sys.argv[0] = 'forewarn'; from forewarn.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, *words, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": str(HELP_COLUMNS)},
    )
    told = dict(commands())[" ".join(["forewarn", *words])]
    assert result.stdout.split() == told.split()
