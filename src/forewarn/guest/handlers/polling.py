"""Waiting for a condition during a part of a step's time, so that some is left for what follows."""

from __future__ import annotations

from forewarn.guest.steps import Condition, Run


def wait_at_most(run: Run, most_s: float, every_s: float, condition: Condition) -> str:
    """Check until the condition holds and return "". After `most_s`, or half of the time left if less, return what was seen."""
    ends_s = run.left_s() - min(most_s, run.left_s() / 2)
    while True:
        good, seen = condition()
        if good:
            return ""
        if run.left_s() <= ends_s:
            return seen
        run.pause(every_s)
