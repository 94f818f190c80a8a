"""Two real libvirt hosts, once for each test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import Bed, start_bed

# Guests are emulated, and take a while on a busy machine.
TIME_LIMIT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    bed = start_bed()
    yield bed
    bed.close()
