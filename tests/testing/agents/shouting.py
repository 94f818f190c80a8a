"""Wrong: it sends EventIds in upper case."""

from tests.testing.agents.toy import Toy


class Shouting(Toy):
    def approve(self, event_id: str) -> None:
        super().approve(event_id.upper())


if __name__ == "__main__":
    Shouting().run()
