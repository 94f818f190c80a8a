"""The requests of one token that are under way at once."""

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from forewarn.core.errors import TooManyRequests
from forewarn.core.operator_model import Role
from forewarn.operator.api.access import Identity
from forewarn.operator.api.request_shares import RequestShares
from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import RunningService, running_service
from tests.support.waiting import PATIENCE_S, until


def caller(token_id: str) -> Identity:
    return Identity(token_id, "", Role.VIEWER, None, b"", "")


def test_a_token_has_a_share_of_requests() -> None:
    """The next request of the same token is refused until one has ended, also with an error; another token's is not."""
    shares = RequestShares(2)
    with shares.take(caller("a")):
        with shares.take(caller("a")):
            with pytest.raises(TooManyRequests), shares.take(caller("a")):
                pytest.fail("it was taken")
            with shares.take(caller("b")):
                pass
        with pytest.raises(ValueError, match="oh"), shares.take(caller("a")):
            raise ValueError("oh")
        with shares.take(caller("a")):
            pass
    assert not shares._under_way


@contextmanager
def unfinished_request(service: RunningService, token: bytes) -> Iterator[socket.socket]:
    """Yield the connection of a request that is under way; the caller sends the rest of its body.

    The request that checks this counts too. If it comes first, the unfinished one is refused and sent again.
    """
    head = b"POST /v1/maintenances HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n" + token + b"\r\n\r\n"
    address = ("127.0.0.1", int(service.url.rpartition(":")[2]))
    with ExitStack() as opened:
        connections: list[socket.socket] = []

        def is_under_way() -> bool:
            if not connections or select.select(connections[-1:], [], [], 0)[0]:
                connections.append(opened.enter_context(socket.create_connection(address, timeout=PATIENCE_S)))
                connections[-1].sendall(head + b"{")
            return service.request("GET", "/v1/scopes").status == 503

        until(is_under_way)
        yield connections[-1]


def test_one_token_behind_a_proxy_cannot_take_all_places() -> None:
    """The address of a proxy has no limit, but the token has, and pages count too; other tokens are answered."""
    with running_service(behind_tls_proxy="true", operator_connections="1") as service:
        operator = PortalClient(service)
        token, viewer = f"Authorization: Bearer {service.token}".encode(), service.token_of("viewer")
        with unfinished_request(service, token) as slow:
            refused = service.request("GET", "/v1/scopes")
            assert (refused.code, refused.headers["retry-after"]) == ("overloaded", "1")
            assert service.request("GET", "/v1/scopes", token=viewer).status == 200
            assert "requests with this token are under way" in page_text(operator.get("/"))
            slow.sendall(b"}")
            assert slow.recv(65_536).startswith(b"HTTP/1.1 422 ")
        until(lambda: service.request("GET", "/v1/scopes").status == 200)
