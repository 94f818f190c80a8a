"""Wrong: it handles its own events, and also approves restarts of other machines by their users."""

from tests.testing.agents.toy import Json, Toy


class Meddler(Toy):
    def handle(self, events: list[Json]) -> None:
        super().handle(events)
        for event in events:
            restart = (event["EventType"], event["EventSource"], event["EventStatus"])
            if restart == ("Reboot", "User", "Scheduled"):
                self.approve(event["EventId"])


if __name__ == "__main__":
    Meddler().run()
