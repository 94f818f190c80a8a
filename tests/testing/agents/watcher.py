"""Neither approves nor prepares: it only polls."""

from tests.testing.agents.toy import Json, Toy


class Watcher(Toy):
    def handle(self, events: list[Json]) -> None:
        """Do nothing."""


if __name__ == "__main__":
    Watcher().run()
