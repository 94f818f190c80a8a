"""What the row codecs keep in memory."""

from forewarn.core.model import Targets
from forewarn.store.sql.rows import MAX_CACHED_CHARS, read_targets, targets_text


def test_only_short_targets_are_cached() -> None:
    """Short targets are read at every tick; a cache of lists of 10,000 machines would hold gigabytes."""
    few = Targets(machines=(("shop", "web-0"), ("shop", "web-1")))
    many = Targets(machines=tuple(("shop", f"web-{number}") for number in range(MAX_CACHED_CHARS)))
    assert (read_targets(targets_text(few)), read_targets(targets_text(many))) == (few, many)
    assert read_targets(targets_text(few)) is read_targets(targets_text(few))
    assert read_targets(targets_text(many)) is not read_targets(targets_text(many))
