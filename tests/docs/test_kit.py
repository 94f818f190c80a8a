"""The pages of scenarios and conformance say what there is: every scenario, behaviour, claim, word and setting."""

import re
from pathlib import Path

from forewarn.testing.conform.behaviours import BEHAVIOURS
from forewarn.testing.conform.stage import CLAIMS, PATIENCE_S
from forewarn.testing.scenarios import SETTINGS, parse_scenario, scenario, scenario_names
from forewarn.testing.scenarios.player import play_alone

ROOT = Path(__file__).parents[2]
SCENARIOS = (ROOT / "docs/guide/scenarios.md").read_text("utf-8")
CONFORM = (ROOT / "docs/guide/conformance.md").read_text("utf-8")
BEHAVIOUR_TABLE = (ROOT / "docs/guide/conformance-behaviours.md").read_text("utf-8")


def test_every_scenario_stands_on_its_page() -> None:
    """With its very words, in order."""
    rows = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \|$", SCENARIOS, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(scenario_names())
    for name, title, should in rows:
        assert title == scenario(name).title
        assert f"A machine should: {should}" == scenario(name).told[1]


def test_every_setting_a_scenario_has_stands_there() -> None:
    """And nothing it has not."""
    (told,) = re.findall(r"A scenario may set (.*?), and nothing else", SCENARIOS, re.DOTALL)
    names = set(re.findall(r"`(\w+)`", told)) - {"external", "simulated"}
    assert names == {name.removesuffix("_s") for name in SETTINGS}


def test_the_scenario_on_the_page_plays() -> None:
    """As it stands."""
    (text,) = re.findall(r"```\n(# A restart.*?)```", SCENARIOS, re.DOTALL)
    lines: list[str] = []
    play_alone(parse_scenario(text, "the page"), say=lines.append)
    assert lines[-1].split() == ["+10m", "cancel", "M1"]


def test_every_behaviour_stands_on_its_page() -> None:
    """With its claims, what is tried and why, in order."""
    rows = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \| (.*) \|$", BEHAVIOUR_TABLE, re.MULTILINE)
    assert rows == [(each.name, ", ".join(each.claims), each.checks, each.why) for each in BEHAVIOURS]


def test_every_claim_stands_there() -> None:
    """And what it means."""
    for claim, meaning in CLAIMS.items():
        assert f"| `{claim}` | {meaning} |" in CONFORM
    assert f"than {PATIENCE_S:g} s" in CONFORM


def test_every_word_of_the_command_stands_there() -> None:
    """The words a command may have are those that are filled in."""
    source = (ROOT / "src/forewarn/testing/conform/stage.py").read_text("utf-8")
    (table,) = re.findall(r"words = \{(.*?)\n        \}", source, re.DOTALL)
    assert set(re.findall(r'^ +"(\w+)":', table, re.MULTILINE)) == set(
        re.findall(r"^\| `\{(\w+)\}`", CONFORM, re.MULTILINE)
    )
