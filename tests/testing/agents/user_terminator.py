"""Correct, for a Terminate by a user alone."""

from tests.testing.agents.terminator import Terminator
from tests.testing.agents.toy import Json


class UserTerminator(Terminator):
    def is_mine(self, event: Json) -> bool:
        return super().is_mine(event) and event["EventSource"] == "User"


if __name__ == "__main__":
    UserTerminator().run()
