"""Builds what serves the clients of an agent. Loaded only if there are clients."""

from __future__ import annotations

import contextlib
from typing import Iterator

from forewarn.guest.agent import Agent
from forewarn.guest.serving.answers import Answers
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.listener import BURST, Listener
from forewarn.guest.serving.upstream import Upstream
from forewarn.guest.transport import Transport


@contextlib.contextmanager
def serving(
    agent: Agent, clients: Clients, *, source_address: str, api_version: str, burst: float = BURST
) -> Iterator[Listener]:
    """Serve the agent's clients from here to the end of the block."""
    upstream = Upstream(lambda: agent.client.endpoint, Transport(source_address=source_address), clients.time)
    answers = Answers(clients, upstream, agent.record_client_approval, api_version)
    listener = Listener(clients, answers, burst=burst)
    try:
        listener.start()
        yield listener
    finally:
        listener.close()
        upstream.close()
