"""Wrong: it writes down that it approved before it did, and leaves everything as it prepared it."""

import json

from tests.testing.agents.toy import Toy


class Premature(Toy):
    def remember(self) -> None:
        self.memory.write_text(json.dumps([self.prepared, self.prepared]), "utf-8")

    def approve(self, event_id: str) -> None:
        if event_id not in self.approved:
            self.approved.append(event_id)
            self.ask("POST", json.dumps({"StartRequests": [{"EventId": event_id}]}))

    def undo(self, event_id: str) -> None:
        """Never."""


if __name__ == "__main__":
    Premature().run()
