"""Time limits of the guest side that no test is about: a busy machine must not reach them."""

from collections.abc import Iterator

import pytest

from forewarn.guest import agent, client, transport
from forewarn.guest.handlers import notify
from forewarn.guest.serving import upstream
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module", autouse=True)
def patient_requests() -> Iterator[None]:
    """Give requests that the guest side soon gives up as much time as they need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "INSTANCE_TIMEOUT_S", PATIENCE_S)
        patch.setattr(transport, "CONNECT_TIMEOUT_S", PATIENCE_S)
        patch.setattr(upstream, "ANSWER_TIMEOUT_S", PATIENCE_S)
        patch.setattr(notify, "TIMEOUT_S", PATIENCE_S)
        patch.setattr(agent, "NOTIFY_WITHIN_S", PATIENCE_S)
        yield
