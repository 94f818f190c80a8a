"""Wrong: it saves its approval before it approves, and never undoes its preparation."""

import json

from tests.testing.agents.toy import Toy, save


class Premature(Toy):
    def remember(self) -> None:
        save(self.memory, json.dumps([self.prepared, self.prepared]))

    def approve(self, event_id: str) -> None:
        if event_id not in self.approved:
            self.approved.append(event_id)
            self.send("POST", json.dumps({"StartRequests": [{"EventId": event_id}]}))

    def undo(self, event_id: str) -> None:
        """Do nothing."""


if __name__ == "__main__":
    Premature().run()
