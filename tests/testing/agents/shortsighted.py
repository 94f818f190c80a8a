"""Wrong: it handles only the first event of a document, and that only if it is a Terminate, of whatever machine."""

from tests.testing.agents.toy import Json, Toy


class Shortsighted(Toy):
    def handle(self, events: list[Json]) -> None:
        super().handle([event for event in events[:1] if event["EventType"] == "Terminate"])

    def is_mine(self, event: Json) -> bool:
        return True


if __name__ == "__main__":
    Shortsighted().run()
