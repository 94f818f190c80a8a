"""The text that the demo prints agrees with the README, the quickstart, the portal's guide and the terminal picture."""

import html
import re
import subprocess
from pathlib import Path

import jinja2
import pytest

from forewarn.core.fleet import parse_fleet
from forewarn.demo.messages import START_REQUEST, poll_command, welcome
from forewarn.demo.run import DEFAULT_PORT, FLEET

ROOT = Path(__file__).parent.parent.parent
PORTAL = ROOT / "src/forewarn/operator/portal"
GUEST, OPERATOR = f"http://127.0.0.1:{DEFAULT_PORT}", f"http://127.0.0.1:{DEFAULT_PORT + 1}"


def test_the_terminal_picture_shows_the_printed_text() -> None:
    """`make screenshots` draws the picture again. It loads nothing from other sites."""
    svg = (ROOT / "docs/images/terminal.svg").read_text("utf-8")
    text = html.unescape(re.sub(r"<[^>]*>", "", svg)).replace("\xa0", " ")
    lines = welcome(guest=GUEST, operator=OPERATOR, rate=60, program=".venv/bin/forewarn").splitlines()
    assert len(lines) > 10
    for line in lines:
        assert line in text
    assert "approved by shop/web-0" in text
    assert not re.search(r"/work/|/root/|/home/|@import|@font-face|url\(.?http", svg)


OWN, SHARED = '["web-0"]', '["web-0","web-3"]'


@pytest.mark.parametrize(
    ("events", "approved"),
    [
        ([("A", "Scheduled", OWN)], "A"),
        ([("A", "Scheduled", OWN), ("B", "Scheduled", SHARED)], "B"),
        ([("A", "Scheduled", SHARED), ("B", "Started", OWN)], "A"),
        ([("A", "Scheduled", OWN), ("B", "Scheduled", '["web-2"]')], "A"),
        ([("A", "Started", OWN), ("B", "Scheduled", '["web-2"]')], ""),
        ([], ""),
    ],
)
def test_the_printed_command_approves_only_events_of_web_0(events: list[tuple[str, str, str]], approved: str) -> None:
    """It takes the last one that is Scheduled, whatever else the document has before and after it."""
    listed = (
        f'{{"EventId":"{event_id}","EventStatus":"{status}","EventType":"Reboot","ResourceType":"VirtualMachine",'
        f'"Resources":{resources},"NotBefore":"","Description":"Scheduled for web-0","EventSource":"User",'
        '"DurationInSeconds":-1}'
        for event_id, status, resources in events
    )
    document = f'{{"DocumentIncarnation":2,"Events":[{",".join(listed)}]}}'
    done = subprocess.run(["sh", "-c", START_REQUEST], input=document, capture_output=True, text=True, check=True)
    assert done.stdout == (f'{{"StartRequests":[{{"EventId":"{approved}"}}]}}' if approved else "")


def test_the_guide_has_the_printed_poll_command() -> None:
    """The portal's guide shows the command that the demo prints, with the address of the guest listener."""
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(PORTAL / "templates"), autoescape=True)
    page = templates.get_template("guide.html").render(guest_url="http://127.0.0.1:9000")
    assert poll_command("http://127.0.0.1:9000") in html.unescape(page)


def test_the_quickstart_and_the_guide_name_existing_machines() -> None:
    """Every machine and scope in their text is in the demo's fleet."""
    fleet = parse_fleet(FLEET.read_text("utf-8"), "the demo's fleet")
    quickstart = (ROOT / "docs/guide/quickstart.md").read_text("utf-8").partition("## An event of your own")[0]
    guide = (PORTAL / "templates/guide.html").read_text("utf-8")
    named = re.findall(r"\b(shop|db|workers|legacy)/(\w+-\d)", quickstart + guide)
    assert len(named) > 6
    assert set(named) <= set(fleet.machines)
    assert set(re.findall(r"/scopes/([a-z]+)", guide)) <= set(fleet.scopes)


def test_the_pictures_of_the_readme_exist() -> None:
    """The README has one picture in light and dark, and the terminal picture."""
    readme = (ROOT / "README.md").read_text("utf-8")
    pictures = re.findall(r"(docs/images/[\w/-]+\.(?:png|svg))", readme)
    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / picture).is_file()


def test_the_readme_has_the_demos_commands() -> None:
    """The README polls and finds the server with the commands that the demo prints."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert poll_command(GUEST).replace("curl -s", "curl") in readme
    assert f"export FOREWARN_SERVER={OPERATOR}" in readme
