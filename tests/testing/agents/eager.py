"""Wrong: it prepares and approves in every status, and prepares again at every poll."""

from tests.testing.agents.toy import Json, Toy


class Eager(Toy):
    def handle(self, events: list[Json]) -> None:
        super().handle([{**event, "EventStatus": "Scheduled"} for event in events])

    def get_ready(self, event_id: str) -> None:
        self.prepared = []
        super().get_ready(event_id)


if __name__ == "__main__":
    Eager().run()
