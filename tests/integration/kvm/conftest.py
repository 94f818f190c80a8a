"""Two real libvirt hosts, once for each test module."""

from collections.abc import Iterator

import pytest
from scripts.kvm_bed.bed import Bed, start_bed


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    bed = start_bed()
    yield bed
    bed.close()
