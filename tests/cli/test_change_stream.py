"""The stream of changes, and the audit log, which replaces it while there is no stream."""

import json
from collections.abc import Callable

from forewarn.cli.change_stream import Changes
from tests.cli.scripted_server import ScriptedServer, response
from tests.support.waiting import PATIENCE_S, until


def test_wait_for_takes_all_queued_changes(scripted: Callable[..., ScriptedServer]) -> None:
    """Changes that concern others do not end the wait; the time limit does."""
    text = "".join(
        f'event: change\ndata: {{"id": {n}, "maintenance_id": "{"M" if n % 2 else "N"}"}}\n\n' for n in range(100)
    )
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text.encode()
    server = scripted(response(200, {"items": [], "next_cursor": None}), stream)
    seen: list[object] = []

    def concerns(change: dict[str, object]) -> bool:
        seen.append(change["id"])
        return change["maintenance_id"] == "M"

    with Changes(server.client(), poll_s=3_600) as changes:

        def all_seen() -> bool:
            changes.wait_for(concerns, PATIENCE_S)
            return len(seen) >= 100

        until(all_seen)
        changes.wait_for(concerns, 0.05)  # returns, although the poll interval is an hour
    assert seen == list(range(100))


def test_the_stream_continues_after_a_lost_connection(scripted: Callable[..., ScriptedServer]) -> None:
    """The next connection begins after the last change received; a change that the audit log repeats is returned once."""

    def change(number: int) -> dict[str, object]:
        return {"id": number, "maintenance_id": "M"}

    def streamed(*numbers: int) -> bytes:
        text = "".join(f"id: {n}\nevent: change\ndata: {json.dumps(change(n))}\n\n" for n in numbers)
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text.encode()

    server = scripted(
        response(200, {"items": [change(3)], "next_cursor": None}),
        streamed(4, 5),
        response(200, {"items": [change(6), change(5), change(4)], "next_cursor": None}),
        streamed(7),
    )
    with Changes(server.client(), poll_s=0.05) as changes:
        received = [changes.next(PATIENCE_S) for _ in range(4)]
    assert received == [change(4), change(5), change(6), change(7)]
    assert "Last-Event-ID: 3" in server.requests[1]
    assert "Last-Event-ID: 6" in server.requests[3]
