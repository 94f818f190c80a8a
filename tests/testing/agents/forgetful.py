"""Wrong: it does not save what it did, and forgets it by a kill -9."""

from tests.testing.agents.toy import Toy


class Forgetful(Toy):
    def remember(self) -> None:
        """Save nothing."""


if __name__ == "__main__":
    Forgetful().run()
