"""Every story on every store. The stories are the specification; `pytest tests/stories --rewrite` writes the actual output."""

from pathlib import Path

import pytest

from forewarn.store import Store
from forewarn.store.memory import MemoryStore
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


def test_a_slow_machine_plays_the_same_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service decides again, with other ids, if a decision is too old when it is saved. A story's decisions do not age."""
    monkeypatch.setattr("forewarn.service.decisions.MAX_DECISION_AGE_S", 0.0)
    text = STORIES[0].read_text("utf-8")
    assert play(text, MemoryStore()) == text
