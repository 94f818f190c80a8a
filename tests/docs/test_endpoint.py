"""The page about the endpoint says what the endpoint does: its errors and limits."""

import re
from dataclasses import fields
from pathlib import Path

from forewarn.endpoint import protocol
from forewarn.endpoint.protocol import Response
from forewarn.service.settings import Settings

ROOT = Path(__file__).parent.parent.parent
PROTOCOL = (ROOT / "docs/reference/protocol.md").read_text("utf-8")
LIMITS = ("rate_limit", "guest_connections", "guest_waiting", "guest_all_connections", "guest_header_bytes")
MORE_LIMITS = (
    "guest_unknown_connections",
    "guest_headers",
    "guest_body_bytes",
    "guest_request_timeout_s",
    "guest_idle_timeout_s",
)


def test_every_error_is_described() -> None:
    """Each ready-made error stands on the page with its status and its very words."""
    errors = [value for value in vars(protocol).values() if isinstance(value, Response) and value.status >= 400]
    assert len(errors) >= 12
    for error in errors:
        words = re.findall(rb'"error":"([^"]*)"', error.body)[0].decode()
        assert f"`{words}`" in PROTOCOL, words
        assert str(error.status) in PROTOCOL


def test_every_limit_is_described_with_its_default() -> None:
    """The table of limits names each setting and its default."""
    (table,) = re.findall(r"## Limits\n(.*?)\n## ", PROTOCOL, re.DOTALL)
    defaults = {each.name: each.default for each in fields(Settings)}
    for name in LIMITS + MORE_LIMITS:
        (row,) = [line for line in table.splitlines() if f"`{name.removesuffix('_s')}`" in line]
        assert re.search(rf"\b{defaults[name]}\b", row), row


def test_the_printed_answer_is_well_formed() -> None:
    """The example's Content-Length is that of its body."""
    length, body = re.findall(r"Content-Length: (\d+)\n.*?\n\n(\{.*?\})\n```", PROTOCOL, re.DOTALL)[0]
    assert int(length) == len(body)


def test_links_to_headings_lead_somewhere() -> None:
    """A link to a part of a page names a heading that is there."""
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text("utf-8")):
            text = (page.parent / target if target else page).read_text("utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"
