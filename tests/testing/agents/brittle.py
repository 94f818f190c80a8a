"""Wrong: it only watches, and crashes at everything unexpected in a document."""

from tests.testing.agents.narrow import KNOWN
from tests.testing.agents.toy import Json, Toy


class Brittle(Toy):
    last = 0

    def is_new(self, document: Json) -> bool:
        assert document["DocumentIncarnation"] >= self.last
        self.last = document["DocumentIncarnation"]
        return True

    def handle(self, events: list[Json]) -> None:
        for event in events:
            assert KNOWN[event["EventType"]]
            assert len(event["Resources"]) == 1


if __name__ == "__main__":
    Brittle().run()
