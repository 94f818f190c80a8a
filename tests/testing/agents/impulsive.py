"""Wrong: it approves every event in the document at once, also if it could not drain its machine."""

from contextlib import suppress

from tests.testing.agents.toy import Json, Toy

DRAINED = "drained"


class Impulsive(Toy):
    def handle(self, events: list[Json]) -> None:
        if events:
            with suppress(OSError):
                self.prepare(DRAINED)
        elif self.prepared:
            self.undo(DRAINED)
        for event in events:
            if event["EventStatus"] == "Scheduled":
                self.approve(event["EventId"])


if __name__ == "__main__":
    Impulsive().run()
