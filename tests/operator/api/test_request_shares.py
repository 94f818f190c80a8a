"""The requests of one token that are under way at once."""

import socket

import pytest

from forewarn.core.errors import TooManyRequests
from forewarn.core.operator_model import Role
from forewarn.operator.api.access import Identity
from forewarn.operator.api.request_shares import RequestShares
from tests.support.portal_client import PortalClient, page_text
from tests.support.running_service import running_service
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


def test_one_token_behind_a_proxy_cannot_take_all_places() -> None:
    """The address of a proxy has no limit, but the token has, and pages count too; other tokens are answered."""
    with running_service(behind_tls_proxy="true", operator_connections="1") as service:
        operator = PortalClient(service)
        token, viewer = f"Authorization: Bearer {service.token}".encode(), service.token_of("viewer")
        head = b"POST /v1/maintenances HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n" + token + b"\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=PATIENCE_S) as slow:
            slow.sendall(head + b"{")
            until(lambda: service.request("GET", "/v1/scopes").status == 503)
            refused = service.request("GET", "/v1/scopes")
            assert (refused.code, refused.headers["retry-after"]) == ("overloaded", "1")
            assert service.request("GET", "/v1/scopes", token=viewer).status == 200
            assert "requests with this token are under way" in page_text(operator.get("/"))
            slow.sendall(b"}")
            assert slow.recv(65_536).startswith(b"HTTP/1.1 422 ")
        until(lambda: service.request("GET", "/v1/scopes").status == 200)
