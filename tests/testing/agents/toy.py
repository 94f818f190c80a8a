"""A small correct agent. Each wrong agent in this folder differs from it in one point.

It is started some hundred times, so it imports only what it needs.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FAILURES = (OSError, ValueError)


class Toy:
    pause_s = 0.25
    after_failure_s = 1.0
    patience_s = 130.0
    version = "2020-07-01"
    headers: Mapping[str, str] = {"Metadata": "true"}

    def __init__(self) -> None:
        self.host, _, self.port = os.environ["FOREWARN_ENDPOINT"].removeprefix("http://").rpartition(":")
        self.me = os.environ["CONFORM_MACHINE"]
        self.memory = Path(os.environ["STATE_DIRECTORY"]) / "memory.json"
        self.prepared: list[str] = []
        self.approved: list[str] = []
        if self.memory.exists():
            self.prepared, self.approved = json.loads(self.memory.read_text("utf-8"))

    def run(self) -> None:
        while True:
            try:
                self.poll()
                time.sleep(self.pause_s)
            except FAILURES:
                time.sleep(self.after_failure_s)

    def poll(self) -> None:
        document = self.send("GET")
        if self.is_new(document):
            self.handle(document["Events"])

    def is_new(self, document: Json) -> bool:
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
            self.send("POST", json.dumps({"StartRequests": [{"EventId": event_id}]}))
            self.approved.append(event_id)
            self.remember()

    def undo(self, event_id: str) -> None:
        append(os.environ["CONFORM_RECOVERED"], event_id)
        self.prepared.remove(event_id)
        self.remember()

    def remember(self) -> None:
        save(self.memory, json.dumps([self.prepared, self.approved]))

    def send(self, method: str, body: str = "") -> Json:
        lines = [
            f"{method} /metadata/scheduledevents?api-version={self.version} HTTP/1.1",
            f"Host: {self.host}",
            "Connection: close",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        with socket.create_connection((self.host, int(self.port)), timeout=self.patience_s) as connection:
            connection.sendall("\r\n".join([*lines, "", body]).encode())
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        head, _, content = answer.partition(b"\r\n\r\n")
        first, *others = head.decode().split("\r\n")
        status = int(first.split()[1]) if first else 0
        if status != 200:
            raise ValueError(status)
        if f"Content-Length: {len(content)}" not in others:
            raise ValueError("an incomplete answer")
        return json.loads(content) if method == "GET" else {}


def append(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def save(path: Path, text: str) -> None:
    """Replace the file in one step, so that a kill leaves the old text or the new one."""
    new = path.with_suffix(".new")
    new.write_text(text, "utf-8")
    new.replace(path)


if __name__ == "__main__":
    Toy().run()
