"""Every conversation, byte by byte: the text is the specification. `pytest tests/endpoint --rewrite` updates the texts."""

from pathlib import Path

import pytest

from tests.endpoint.conversation_player import play

CONVERSATIONS = sorted((Path(__file__).parent / "conversations").glob("*.txt"))


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda path: path.stem)
def test_every_byte_is_as_in_the_text(conversation: Path, request: pytest.FixtureRequest) -> None:
    """The service sends exactly the bytes that the conversation shows."""
    text = conversation.read_text("utf-8")
    rewrite = bool(request.config.getoption("--rewrite"))
    played = play(text, rewrite=rewrite)
    if rewrite:
        conversation.write_text(played, "utf-8")
    else:
        assert played == text


def test_there_are_conversations() -> None:
    """The folder is found and not empty."""
    assert len(CONVERSATIONS) >= 25
