"""Wrong, where it claims otherwise: it never approves."""

from tests.testing.agents.toy import Toy


class Mute(Toy):
    def approve(self, event_id: str) -> None:
        """Never."""


if __name__ == "__main__":
    Mute().run()
