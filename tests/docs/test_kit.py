"""The pages about scenarios and conformance list every scenario, behaviour, claim, placeholder and setting."""

import re
from pathlib import Path

from forewarn.testing.conform.behaviours import BEHAVIOURS
from forewarn.testing.conform.trial import CLAIMS, PATIENCE_S, placeholders
from forewarn.testing.scenarios import SETTINGS, parse_scenario, scenario, scenario_names
from forewarn.testing.scenarios.player import play_alone

ROOT = Path(__file__).parents[2]
SCENARIOS = (ROOT / "docs/guide/scenarios.md").read_text("utf-8")
CONFORM = (ROOT / "docs/guide/conformance.md").read_text("utf-8")
BEHAVIOUR_TABLE = (ROOT / "docs/guide/conformance-behaviours.md").read_text("utf-8")


def test_the_page_lists_every_scenario() -> None:
    """The table has the title and the advice of each scenario, in order."""
    rows = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \|$", SCENARIOS, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(scenario_names())
    for name, title, should in rows:
        assert title == scenario(name).title
        assert f"A machine should: {should}" == scenario(name).description[1]


def test_the_page_lists_every_setting_of_scenarios() -> None:
    """The page names exactly the settings that a scenario may have."""
    (sentence,) = re.findall(r"A scenario may set (.*?), and nothing else", SCENARIOS, re.DOTALL)
    names = set(re.findall(r"`(\w+)`", sentence)) - {"external", "simulated"}
    assert names == {name.removesuffix("_s") for name in SETTINGS}


def test_the_scenario_on_the_page_plays() -> None:
    """The example scenario of the page runs unchanged."""
    (text,) = re.findall(r"```\n(# A restart.*?)```", SCENARIOS, re.DOTALL)
    lines: list[str] = []
    play_alone(parse_scenario(text, "the page"), say=lines.append)
    assert lines[-1].split() == ["+10m", "cancel", "M1"]


def test_the_page_lists_every_behaviour() -> None:
    """The table has the claims, the check and the reason of each behaviour, in order."""
    rows = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \| (.*) \|$", BEHAVIOUR_TABLE, re.MULTILINE)
    assert rows == [(each.name, ", ".join(each.claims), each.checks, each.why) for each in BEHAVIOURS]


def test_the_page_lists_every_claim() -> None:
    """The table has each claim with its meaning."""
    for claim, meaning in CLAIMS.items():
        assert f"| `{claim}` | {meaning} |" in CONFORM
    assert f"than {PATIENCE_S:g} s" in CONFORM


def test_the_page_lists_every_placeholder() -> None:
    """The table has exactly the placeholders that are replaced in a command."""
    listed = re.findall(r"^\| `\{(\w+)\}`", CONFORM, re.MULTILINE)
    assert set(listed) == placeholders("http://127.0.0.1:8169", "vm-0", Path("/tmp")).keys()
