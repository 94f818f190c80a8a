"""Every conversation, byte by byte: the text is the specification. `pytest tests/endpoint --rewrite` writes what is seen."""

from pathlib import Path

import pytest

from tests.endpoint.conversation_player import hold

CONVERSATIONS = sorted((Path(__file__).parent / "conversations").glob("*.txt"))


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda path: path.stem)
def test_conversation_goes_as_told(conversation: Path, request: pytest.FixtureRequest) -> None:
    """Every byte of every answer is the one in the text."""
    text = conversation.read_text("utf-8")
    rewrite = bool(request.config.getoption("--rewrite"))
    seen = hold(text, rewrite=rewrite)
    if rewrite:
        conversation.write_text(seen, "utf-8")
    else:
        assert seen == text


def test_there_are_conversations() -> None:
    """A renamed folder must not turn the specification into nothing."""
    assert len(CONVERSATIONS) >= 25
