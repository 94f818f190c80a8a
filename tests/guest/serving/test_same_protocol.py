"""A client of the agent is answered as by the endpoint itself: the requests of the endpoint's conversations, sent to both."""

import json
import math
import re
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest

from forewarn.guest.agent import Agent
from forewarn.guest.client import Client as SdkClient
from forewarn.guest.journal import MemoryJournal
from forewarn.guest.plan import Plan
from forewarn.guest.serving import clients as served_clients
from forewarn.guest.serving import upstream
from forewarn.guest.serving.clients import Clients
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.serving.wiring import serving as serving_clients
from tests.endpoint.conversation_player import _sent, parse
from tests.support.guest_service import VM, Client, Serving, serving

CONVERSATIONS = Path(__file__).parents[2] / "endpoint" / "conversations"
NAMES = (
    "api-version", "approve-limits", "approve-wrong-bodies", "beside", "closing", "head-of-errors", "http-1-0",
    "metadata-header", "methods", "path", "query", "relayed",
)  # fmt: skip
# What differs by design: 2017-03-01 is not served, so it is not in the list of versions either. The endpoint's parser does not
# read methods that it never heard of.
DIFFERS = (b"2017-03-01", b"/metadata/versions", b"FETCH")
IGNORED_HEADERS = {"date", "etag"}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Serving, int, bytes]]:
    """An endpoint, and the port of a client of an agent that has polled the endpoint once, with the agent's tag."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream, "MIN_BETWEEN_S", 0.0)
        patch.setattr(served_clients, "MAX_AGE_S", math.inf)  # the agent polls only once, however long the tests take
        with serving() as endpoint:
            sdk = SdkClient(f"http://127.0.0.1:{endpoint.port}", source_address=VM)
            clients = Clients([ServedClient("one", port=0, approves=True)])
            agent = Agent(Plan(), sdk, MemoryJournal(), clients=clients)
            agent.poll(0.0)
            version, burst = "2020-07-01", 1_000_000.0
            with serving_clients(agent, clients, source_address=VM, api_version=version, burst=burst) as listener:
                published = clients.published()
                assert published is not None
                yield endpoint, listener.ports()["one"], published.etag.encode()
            sdk.close()


def exchange(client: Client, request: bytes) -> tuple[int, dict[str, str], object]:
    with client.socket:
        client.send(request)
        response = HTTPResponse(client.socket, method=request.split(b" ")[0].decode("latin-1"))
        response.begin()
        body = response.read()
        headers = {name.lower(): value for name, value in response.getheaders() if name.lower() not in IGNORED_HEADERS}
        return response.status, headers, json.loads(body) if body.startswith(b"{") else body


def requests_of(name: str) -> list[bytes]:
    """Return the requests that are complete in themselves and meant for both."""
    turns = parse((CONVERSATIONS / f"{name}.txt").read_text("utf-8"))
    sent = [b"".join(_sent(line) for line in turn.sent) for turn in turns if turn.sent and turn.received != ["<..."]]
    whole = [data for data in sent if b"\r\n\r\n" in data and re.match(rb"[A-Z]+ /", data)]
    return [data for data in whole if not any(part.lower() in data.lower() for part in DIFFERS)]


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_the_endpoints(both: tuple[Serving, int, bytes], name: str) -> None:
    """Status, headers and body of every request of the conversation are the same."""
    endpoint, port, tag = both
    requests = requests_of(name)
    assert len(requests) >= 3
    for request in requests:
        expected = exchange(endpoint.client(VM), request)
        found = exchange(Client(port, "127.0.0.1"), request.replace(b'If-None-Match: "1"', b"If-None-Match: " + tag))
        if "EventId" in str(expected[2]):  # other services have ids that are no GUIDs, so the texts differ
            assert found[0] == expected[0], request
        else:
            assert found == expected, request
