"""Wrong: it keeps in memory alone what it did, and a kill -9 takes that along."""

from tests.testing.agents.toy import Toy


class Forgetful(Toy):
    def remember(self) -> None:
        """Not at all."""


if __name__ == "__main__":
    Forgetful().run()
