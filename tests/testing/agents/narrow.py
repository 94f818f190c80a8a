"""Wrong: it handles only the first event, knows only three types, and finds itself only in events of one machine."""

from tests.testing.agents.toy import Json, Toy

KNOWN = {"Freeze": 1, "Reboot": 2, "Redeploy": 3}


class Narrow(Toy):
    def handle(self, events: list[Json]) -> None:
        for event in events:
            assert KNOWN[event["EventType"]]
        super().handle(events[:1])

    def is_mine(self, event: Json) -> bool:
        return bool([self.me] == event["Resources"])


if __name__ == "__main__":
    Narrow().run()
