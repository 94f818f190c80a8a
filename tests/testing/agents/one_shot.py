"""Correct under a supervisor: it polls once, handles what it sees, and ends with an error code."""

import sys

from tests.testing.agents.toy import FAILURES, Toy


class OneShot(Toy):
    def run(self) -> None:
        try:
            self.poll()
        except FAILURES:
            sys.exit(2)
        sys.exit(1)


if __name__ == "__main__":
    OneShot().run()
