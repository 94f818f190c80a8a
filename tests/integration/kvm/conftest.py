"""Two real libvirt hosts, once for each test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import Bed, start_bed

from tests.support.budget import BUDGET

# Modules whose guests take longer than `make test` has time for: `make soak` runs them.
collect_ignore = [] if BUDGET > 1 else ["test_host_choices.py", "test_two_nodes.py"]
# Guests are emulated, and take a while on a busy machine.
TIME_LIMIT_S = 1_800


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_S))


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    bed = start_bed()
    yield bed
    bed.close()
