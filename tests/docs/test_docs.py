"""The documentation is tested too: examples run, links lead somewhere, every setting is described."""

import re
from pathlib import Path

import pytest
from scripts.reference import TARGET, reference

from forewarn.core.fleet import parse_fleet
from forewarn.store.memory import MemoryStore
from forewarn.testing.stories import Player, play
from tests.support.waiting_codes import CODES

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text("utf-8")) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A link within the repository names a file that is there."""
    for target in LINK.findall(page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_setting_is_described() -> None:
    """The reference is what the code says; `python scripts/reference.py` writes it anew."""
    assert TARGET.read_text("utf-8") == reference()


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines on the first page do what their comments say."""
    (example,) = blocks("README.md", "python")
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for comment in re.findall(r"print\(.*?# (.*?)(?: …)?\n", example):
        assert comment in printed


def test_the_readme_commands_exist() -> None:
    """`make run` and `make test` are targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    told = set(re.findall(r"`?make ([\w-]+)", (ROOT / "README.md").read_text("utf-8")))
    assert {"run", "test"} <= told
    for target in told:
        assert f"\n{target}:" in makefile


def test_the_quickstart_fleet_is_a_fleet() -> None:
    """The example parses as it stands."""
    (example,) = blocks("docs/guide/quickstart.md", "toml")
    assert [str(machine) for machine in parse_fleet(example, "example").machines.values()] == [
        "shop/web-0",
        "shop/web-1",
    ]


def test_the_story_in_the_docs_is_true() -> None:
    """It is played like any other."""
    (story,) = [text for text in blocks("docs/contributing/stories.md", "") if "schedule" in text]
    assert play(story, MemoryStore()) == story


def test_every_story_command_is_described() -> None:
    """A command nobody knows of is a command nobody uses."""
    page = (ROOT / "docs/contributing/stories.md").read_text("utf-8")
    for name in vars(Player):
        if name.startswith("_do_"):
            command = name.removeprefix("_do_").replace("_", "-")
            assert f"`{command}" in page, f"{command} is not described"


def test_every_reason_is_described() -> None:
    """Each code of `waiting_for` stands in the operators' table."""
    page = (ROOT / "docs/guide/waiting.md").read_text("utf-8")
    assert len(CODES) >= 25
    for code in CODES:
        assert f"`{code}`" in page, f"{code} is not described"


def test_the_sentences_about_waiting_hosts_are_those_that_forewarn_prints() -> None:
    """Each sentence in the table of the page about hosts stands in the code; `…` is what the code fills in."""
    page = (ROOT / "docs/guide/patching-hosts.md").read_text("utf-8")
    source = "".join(
        (ROOT / f"src/forewarn/core/{name}.py").read_text("utf-8")
        for name in ("waiting", "host_waiting", "target_waits")
    )
    table = page.partition("| code | sentence |")[2].partition("\n\n")[0]
    sentences = re.findall(r'"([^"]+)"', re.sub("`[^`]*`", "", table))
    assert len(sentences) == 11
    for sentence in sentences:
        pattern = '[^"]*'.join(re.escape(part) for part in sentence.removeprefix("its order ").split("…"))
        assert re.search(pattern, source), f"forewarn does not print {sentence!r}"


def test_the_project_speaks_of_itself_alone() -> None:
    """No machine path in what we ship."""
    for page in [*PAGES, *(ROOT / "src").rglob("*.py"), ROOT / "requirements/dev.txt"]:
        text = page.read_text("utf-8")
        assert not re.search(r"/work/|/root/|--index-url|--extra-index-url|--find-links", text), page


def test_the_wall_clock_and_ids_enter_in_few_modules() -> None:
    """Only these read the wall clock or make random values; guests and helper programs have their own clock."""
    allowed = {
        "app/service.py",
        "guest/clock.py",
        "service/clock.py",
    }
    pattern = re.compile(r"datetime\.now\(|datetime\.utcnow\(|time\.time\b|uuid4\(|\brandom\.")
    source = ROOT / "src" / "forewarn"
    found = {str(page.relative_to(source)) for page in source.rglob("*.py") if pattern.search(page.read_text("utf-8"))}
    assert found == allowed
