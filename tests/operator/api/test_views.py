"""The bodies that the API builds from stored objects."""

import re
from pathlib import Path

from forewarn.core import waiting
from forewarn.operator.api.views import CAUSED_BY_OTHERS

# Reasons that describe the progress of the maintenance itself. A plan, which is not submitted yet, hides them.
OWN_REASONS = {
    "approval",
    "clock",
    "earlier-wave",
    "earliest",
    "executor",
    "in-doubt",
    "notice",
    "order-failed",
    "paused",
    "ticker",
    "wave",
}


def test_every_reason_to_wait_is_shown_in_a_plan_or_listed_as_hidden() -> None:
    """A reason whose cause is another maintenance is in CAUSED_BY_OTHERS, so that a plan shows it."""
    codes = set(re.findall(r'code="([a-z-]+)"', Path(waiting.__file__).read_text("utf-8")))
    assert codes - CAUSED_BY_OTHERS == OWN_REASONS
    assert codes >= CAUSED_BY_OTHERS
