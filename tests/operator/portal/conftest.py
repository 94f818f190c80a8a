"""Services for the tests of the portal, and an operator that is logged in."""

from collections.abc import Iterator

import pytest

from tests.support.portal_client import PortalClient
from tests.support.running_service import RunningService, running_service


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    """For tests that leave the fleet and its events as they are: they run in any order, on any worker."""
    with running_service() as running:
        running.enable("shop")
        yield running


@pytest.fixture
def fresh_service() -> Iterator[RunningService]:
    """For a test that makes events. Both scopes are enabled, so nothing starts until the test moves the clock."""
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


@pytest.fixture(scope="module")
def token_free_service() -> Iterator[RunningService]:
    with running_service(token_free="true") as running:
        yield running


@pytest.fixture(scope="module")
def operator(service: RunningService) -> PortalClient:
    return PortalClient(service)
