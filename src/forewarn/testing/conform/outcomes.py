"""The outcomes of a behaviour, and the exit code of a run."""

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# Another row failed, or the agent got no document, so the test could not begin. This is not a success.
NOT_REACHED = "not reached"
# The agent did nothing wrong, but nothing that it did shows the behaviour. This is not a success either.
NOT_SHOWN = "not shown"
OUTCOMES = (PASSED, FAILED, NOT_REACHED, NOT_SHOWN, SKIPPED)
# The first outcome that occurs decides. 2 and 3 have other meanings in all commands.
EXIT_CODES = {FAILED: 1, NOT_REACHED: 4, NOT_SHOWN: 5}


class NotTested(Exception):
    """The behaviour is not tested, or not to its end. The message says why."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
