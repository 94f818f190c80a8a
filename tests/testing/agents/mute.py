"""Wrong if it claims approvals: it never approves."""

from tests.testing.agents.toy import Toy


class Mute(Toy):
    def approve(self, event_id: str) -> None:
        """Do nothing."""


if __name__ == "__main__":
    Mute().run()
