"""A small agent that does everything right. The wrong ones beside it differ from it in one place each."""

import http.client
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
FAILURES = (OSError, http.client.HTTPException, ValueError)


class Toy:
    pause_s = 0.25
    after_failure_s = 1.0
    patience_s = 130.0
    version = "2020-07-01"
    headers: Mapping[str, str] = {"Metadata": "true"}

    def __init__(self) -> None:
        self.where = urlsplit(os.environ["FOREWARN_ENDPOINT"])
        self.me = os.environ["CONFORM_MACHINE"]
        self.memory = Path(os.environ["STATE_DIRECTORY"]) / "memory.json"
        self.prepared: list[str] = []
        self.approved: list[str] = []
        if self.memory.exists():
            self.prepared, self.approved = json.loads(self.memory.read_text("utf-8"))

    def run(self) -> None:
        while True:
            try:
                self.turn()
                time.sleep(self.pause_s)
            except FAILURES:
                time.sleep(self.after_failure_s)

    def turn(self) -> None:
        document = self.ask("GET")
        if self.is_news(document):
            self.handle(document["Events"])

    def is_news(self, document: Json) -> bool:
        return isinstance(document["DocumentIncarnation"], int)

    def handle(self, events: list[Json]) -> None:
        mine = [event for event in events if self.is_mine(event)]
        for event in mine:
            if event["EventStatus"] == "Scheduled":
                self.get_ready(event["EventId"])
        for event_id in [each for each in self.prepared if each not in [event["EventId"] for event in mine]]:
            self.undo(event_id)

    def is_mine(self, event: Json) -> bool:
        return self.me in event["Resources"]

    def get_ready(self, event_id: str) -> None:
        self.prepare(event_id)
        self.approve(event_id)

    def prepare(self, event_id: str) -> None:
        if event_id not in self.prepared:
            append(os.environ["CONFORM_PREPARED"], event_id)
            self.prepared.append(event_id)
            self.remember()

    def approve(self, event_id: str) -> None:
        if event_id not in self.approved:
            self.ask("POST", json.dumps({"StartRequests": [{"EventId": event_id}]}))
            self.approved.append(event_id)
            self.remember()

    def undo(self, event_id: str) -> None:
        append(os.environ["CONFORM_RECOVERED"], event_id)
        self.prepared.remove(event_id)
        self.remember()

    def remember(self) -> None:
        self.memory.write_text(json.dumps([self.prepared, self.approved]), "utf-8")

    def ask(self, method: str, body: str | None = None) -> Json:
        connection = http.client.HTTPConnection(self.where.hostname or "", self.where.port, timeout=self.patience_s)
        try:
            connection.request(
                method, f"/metadata/scheduledevents?api-version={self.version}", body, dict(self.headers)
            )
            response = connection.getresponse()
            whole = response.read()
            if response.status != 200:
                raise ValueError(response.status)
            return json.loads(whole) if method == "GET" else {}
        finally:
            connection.close()


def append(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    Toy().run()
