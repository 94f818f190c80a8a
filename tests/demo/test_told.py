"""What is told of the demo is true: the picture on the first page, the guided page, the quickstart."""

import html
import re
from pathlib import Path

import jinja2

from forewarn.core.fleet import parse_fleet
from forewarn.demo.messages import question, welcome
from forewarn.demo.run import DEFAULT_PORT, FLEET

ROOT = Path(__file__).parent.parent.parent
PORTAL = ROOT / "src/forewarn/operator/portal"
GUEST, OPERATOR = f"http://127.0.0.1:{DEFAULT_PORT}", f"http://127.0.0.1:{DEFAULT_PORT + 1}"


def test_the_picture_shows_what_the_demo_says() -> None:
    """Drawn again by `make screenshots` whenever that changes; nothing in it is fetched from elsewhere."""
    drawn = (ROOT / "docs/images/terminal.svg").read_text("utf-8")
    shown = html.unescape(re.sub(r"<[^>]*>", "", drawn)).replace("\xa0", " ")
    said = welcome(guest=GUEST, operator=OPERATOR, rate=60, program=".venv/bin/forewarn")
    assert len(said.splitlines()) > 10
    for line in said.splitlines():
        assert line in shown
    assert "approved by shop/web-0" in shown
    assert not re.search(r"/work/|/root/|/home/|@import|@font-face|url\(.?http", drawn)


def test_the_guided_page_has_the_same_question() -> None:
    """What it says to paste is what the demo prints, with the guests' own address."""
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(PORTAL / "templates"), autoescape=True)
    page = templates.get_template("guide.html").render(guest_url="http://127.0.0.1:9000")
    assert question("http://127.0.0.1:9000") in html.unescape(page)


def test_the_quickstart_and_the_guided_page_name_machines_that_are_there() -> None:
    """Every machine and scope they speak of is in the demo's fleet."""
    fleet = parse_fleet(FLEET.read_text("utf-8"), "the demo's")
    quickstart = (ROOT / "docs/guide/quickstart.md").read_text("utf-8").partition("## An event of your own")[0]
    guide = (PORTAL / "templates/guide.html").read_text("utf-8")
    named = re.findall(r"\b(shop|db|workers|legacy)/(\w+-\d)", quickstart + guide)
    assert len(named) > 6
    assert set(named) <= set(fleet.machines)
    assert set(re.findall(r"/scopes/([a-z]+)", guide)) <= set(fleet.scopes)


def test_the_pictures_of_the_first_page_are_there() -> None:
    """In light and dark, and the terminal's."""
    readme = (ROOT / "README.md").read_text("utf-8")
    pictures = re.findall(r"(docs/images/[\w/-]+\.(?:png|svg))", readme)
    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / picture).is_file()


def test_the_first_page_asks_what_the_demo_answers() -> None:
    """The two commands of the README are the demo's own."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert question(GUEST).replace("curl -s", "curl") in readme
    assert f"export FOREWARN_SERVER={OPERATOR}" in readme
