"""Requests of clients that only the endpoint can answer: about the instance, and approvals of other machines' events.

They go over a connection of their own, one at a time and with a pause between them: together with its own polls, the agent stays
below the five requests per second that an endpoint allows a machine.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, Dict, Iterator, Mapping, Tuple

from forewarn.guest.clock import Time
from forewarn.guest.errors import EndpointError
from forewarn.guest.serving.protocol import UNAVAILABLE, Answer
from forewarn.guest.transport import Response, Transport

ANSWER_TIMEOUT_S = 5.0
MIN_BETWEEN_S = 0.5
# How long a client waits for its turn.
MAX_TURN_S = 10.0
INSTANCE_KEPT_S = 10.0
MAX_INSTANCE_ANSWERS = 32


class Upstream:
    """Asks the endpoint in the name of this machine. Every method may be called by any thread."""

    def __init__(self, endpoint: Callable[[], str], transport: Transport, time: Time) -> None:
        self._endpoint, self._transport, self._time = endpoint, transport, time
        self._turn = threading.Lock()
        self._due_s = float("-inf")
        self._instance: Dict[str, Tuple[float, Answer]] = {}

    def instance(self, target: str) -> Answer:
        """Return what the endpoint says about this machine; the same request within ten seconds gets the same answer."""
        with self._my_turn() as mine:
            if not mine:
                return UNAVAILABLE
            kept_until_s, answer = self._instance.get(target, (float("-inf"), UNAVAILABLE))
            if self._time.monotonic() < kept_until_s:
                return answer
            answer = self._request("GET", target, b"")
            if answer.status == 200:
                if len(self._instance) >= MAX_INSTANCE_ANSWERS:
                    self._instance.clear()
                self._instance[target] = (self._time.monotonic() + INSTANCE_KEPT_S, answer)
            return answer

    def approve(self, target: str, body: bytes) -> Answer:
        """Forward a POST as it is."""
        with self._my_turn() as mine:
            return self._request("POST", target, body) if mine else UNAVAILABLE

    def close(self) -> None:
        """End the connection, unless a request is under way: clients must not keep the agent from ending."""
        if self._turn.acquire(blocking=False):
            self._transport.close()

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[bool]:
        mine = self._turn.acquire(timeout=MAX_TURN_S)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()

    def _request(self, method: str, target: str, body: bytes) -> Answer:
        self._time.sleep(self._due_s - self._time.monotonic())
        headers: Mapping[str, str] = {"Metadata": "true", **({"Content-Type": "application/json"} if body else {})}
        try:
            response = self._transport.request(
                method, self._endpoint(), target, headers=headers, body=body, timeout_s=ANSWER_TIMEOUT_S
            )
        except EndpointError:
            return UNAVAILABLE
        finally:
            self._due_s = self._time.monotonic() + MIN_BETWEEN_S
        return _answer(response)


def _answer(response: Response) -> Answer:
    # Of the headers only these two matter to a client. A folded one has line breaks in it.
    found = {name: " ".join(response.headers.get(name, "").split()) for name in ("retry-after", "content-type")}
    headers = (("Retry-After", found["retry-after"]),) if found["retry-after"] else ()
    return Answer(response.status, response.body, headers, found["content-type"] or Answer.content_type)
