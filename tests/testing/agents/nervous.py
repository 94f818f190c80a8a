"""Wrong: it approves again at every poll."""

from tests.testing.agents.toy import Toy


class Nervous(Toy):
    def approve(self, event_id: str) -> None:
        self.approved = []
        super().approve(event_id)


if __name__ == "__main__":
    Nervous().run()
