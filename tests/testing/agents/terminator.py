"""Correct, for Terminate alone."""

from tests.testing.agents.toy import Json, Toy


class Terminator(Toy):
    def is_mine(self, event: Json) -> bool:
        return super().is_mine(event) and event["EventType"] == "Terminate"


if __name__ == "__main__":
    Terminator().run()
