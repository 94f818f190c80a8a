"""Wrong: it approves first and prepares afterwards."""

from tests.testing.agents.toy import Toy


class Hasty(Toy):
    def get_ready(self, event_id: str) -> None:
        self.approve(event_id)
        self.prepare(event_id)


if __name__ == "__main__":
    Hasty().run()
