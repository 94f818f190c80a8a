"""How much a run may cost, and which random choices it makes.

`make test` makes the same choices every time, so that it never fails by chance. `make soak` has ten times the budget and
makes choices that were probably never made before; a failure names its seed, and `TEST_SEED` repeats it.
"""

import os
import random

BUDGET = int(os.environ.get("TEST_BUDGET", "1"))


def chosen_seed(fixed: int) -> int:
    """Return the seed of this run: the one asked for, the fixed one in `make test`, or a fresh one."""
    if seed := os.environ.get("TEST_SEED"):
        return int(seed)
    return fixed if BUDGET == 1 else random.SystemRandom().randrange(10**9)
