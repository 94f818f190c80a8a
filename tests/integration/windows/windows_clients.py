"""Clients of the agent on Windows: they have ports, because Python has no socket files there."""

import sys

assert sys.platform == "win32"

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client
from forewarn.guest.journal import MemoryJournal
from forewarn.guest.plan import Plan
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.serving.wiring import serving
from tests.support.fake_endpoint import E1, FakeEndpoint, ManualTime


def test_a_client_sees_an_event_and_approves_it() -> None:
    """The agent holds its approval, and approves at the endpoint when all have approved."""
    endpoint = FakeEndpoint(ManualTime())
    endpoint.announce()
    upstream = Client("10.0.0.1", transport=endpoint.transport, time=endpoint.time)
    clients = Clients([ServedClient("one", port=0, approves=True)], endpoint.time)
    agent = Agent(Plan(), upstream, MemoryJournal(), time=endpoint.time, clients=clients)
    agent.poll(1.0)
    with serving(agent, clients, source_address="", api_version="2020-07-01") as listener:
        agent.turn()
        assert endpoint.approved == []
        client = Client(f"http://127.0.0.1:{listener.ports()['one']}")
        (event,) = client.document().events
        client.approve(event)
        client.close()
        assert agent.state.client_approvals == {E1: ["one"]}
        agent.turn()
    assert endpoint.approved == [E1]
