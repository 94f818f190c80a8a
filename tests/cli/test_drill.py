"""`forewarn drill`: schedule a drill after a question, list drills, report on one."""

from tests.cli.command_line import FAILED, USAGE, CommandLine


def test_a_drill_is_scheduled_listed_and_reported(cli: CommandLine) -> None:
    """The plan says that machines really drain; the newest drill is reported by default."""
    cli.output("clock", "advance", "1d")
    options = ["--scope", "quiet", "--type", "Freeze", "--hold", "30s"]
    refused = cli.run("drill", "schedule", *options, typed="n\n")
    assert (refused.returncode, "no drill was scheduled" in refused.stderr) == (FAILED, True)
    assert "These machines really drain and fail over. Nothing touches them." in refused.stdout
    assert cli.json("drill", "schedule", *options, "--dry-run")["drill_hold_s"] == 30
    plan = cli.output("drill", "schedule", *options, "--dry-run")
    assert ("Nothing touches them" in plan, "each event ends 30s after its start" in plan) == (True, True)
    drill = cli.json("drill", "schedule", *options, "--not-before", "+30m", "--yes")
    assert "never" not in cli.output("drill", "report")
    cli.output("clock", "advance", "1h")
    assert drill["id"][:8] in cli.output("drill", "list")
    report = cli.output("drill", "report")
    assert (drill["id"] in report, "quiet/web-1" in report, "never" in report) == (True, True, True)
    assert cli.json("drill", "report", drill["id"][:8])["status"] == "Completed"
    assert "nothing touches the machines" in cli.output("maintenance", "show", drill["id"])
    another = cli.json("drill", "schedule", *options, "--not-before", "+2h", "--yes")
    assert f"drill {another['id']} is Cancelled" in cli.output("drill", "cancel", another["id"][:8])


def test_wrong_options_of_a_drill(cli: CommandLine) -> None:
    """A type that cannot be rehearsed, and no or two kinds of targets."""
    for options in (
        ["--scope", "shop", "--type", "Preempt"],
        ["--type", "Reboot"],
        ["--type", "Reboot", "--scope", "shop", "--machine", "shop/web-0"],
    ):
        assert cli.run("drill", "schedule", *options).returncode == USAGE
