"""Looking for a while: for less than all of a step's time, so that there is some left for what to do then."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

from forewarn.guest.steps import Run


def for_a_while(run: Run, most_s: float, every_s: float, look: Callable[[], Tuple[Optional[bool], str]]) -> str:
    """Look until it is so: "". After so long, or half of what is left where that is less: what was seen instead."""
    ends_s = run.left_s() - min(most_s, run.left_s() / 2)
    while True:
        good, seen = look()
        if good:
            return ""
        if run.left_s() <= ends_s:
            return seen
        run.pause(every_s)
