"""The programs of examples/testing. `make interop` runs those in other languages."""

import pytest

from tests.integration.interop.checks import EXAMPLES, check


def test_the_shell_program_says_what_it_checked() -> None:
    """It passes an app that approves once, and fails one that approves twice, with the reason and the timeline."""
    good, bad = (check(["sh", str(EXAMPLES / "check.sh")], approvals) for approvals in (1, 2))
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout == "vm-0 saw the Redeploy, approved it once, and saw it start\n"
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "approved twice" in bad.stderr
    assert "#1 vm-0 GET" in bad.stderr


@pytest.mark.parametrize("name", ["check.sh", "check.mjs", "check.go", "Check.cs", "Check.java"])
def test_every_program_checks_for_more_approvals(name: str) -> None:
    """Its last expectation is `no-more`, because there is no fixture that checks it."""
    program = (EXAMPLES / name).read_text("utf-8").replace("\\", "").replace("what:", '"what":')
    assert program.rpartition('"what":')[2].lstrip().startswith('"no-more"')
