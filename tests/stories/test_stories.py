"""Every story on every store. The stories are the specification; `pytest tests/stories --rewrite` writes the actual output."""

from pathlib import Path

import pytest

from forewarn.store import Store
from forewarn.testing.stories import play

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story_plays_as_written(story: Path, store: Store, request: pytest.FixtureRequest) -> None:
    """The output of every step is the one in the story."""
    text = story.read_text("utf-8")
    played = play(text, store)
    if request.config.getoption("--rewrite"):
        story.write_text(played, "utf-8")
    else:
        assert played == text


def test_there_are_stories() -> None:
    """The stories are found: a renamed folder must not leave the specification empty."""
    assert len(STORIES) >= 25
