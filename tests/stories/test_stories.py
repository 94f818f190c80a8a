"""Every story, on every store: the text is the specification. `pytest tests/stories --rewrite` writes what is seen."""

from pathlib import Path

import pytest

from forewarn.store import Store
from forewarn.testing.stories import play

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_story_is_seen_as_told(story: Path, store: Store, request: pytest.FixtureRequest) -> None:
    """What happens is what the story says."""
    text = story.read_text("utf-8")
    seen = play(text, store)
    if request.config.getoption("--rewrite"):
        story.write_text(seen, "utf-8")
    else:
        assert seen == text


def test_there_are_stories() -> None:
    """A renamed folder must not turn the specification into nothing."""
    assert len(STORIES) >= 25
