"""One machine with Windows for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.integration.windows.wine_machine import WineMachine, wine_machine


@pytest.fixture(scope="session")
def machine() -> Iterator[WineMachine]:
    with wine_machine() as made:
        yield made
