"""Wrong: it approves a Terminate of whatever machine, and then ends, because it takes the machine for its own."""

import sys

from tests.testing.agents.toy import Json, Toy


class Parting(Toy):
    def handle(self, events: list[Json]) -> None:
        for event in events:
            if event["EventType"] == "Terminate":
                self.approve(event["EventId"])
                sys.exit(0)


if __name__ == "__main__":
    Parting().run()
