"""Which machine an event names."""

import pytest

from forewarn.guest.document import parse_event
from forewarn.guest.names import Me, same_machine
from tests.support.fake_endpoint import event


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("web-0", "web-0", True),
        ("web-0", "WEB-0", True),
        ("web-0", "_web-0", True),
        ("web-0", "web-1", False),
        ("FrontEnd_IN_0", "frontend_in_0", True),
        ("pool_35", "pool00000z", True),
        ("pool00000Z", "Pool_35", True),
        ("pool_36", "pool000010", True),
        ("pool_1", "pool000010", False),
        ("pool_1", "other000001", False),
        ("pool_1", "pool1", False),
        ("pool_0", "pool000000", True),
    ],
)
def test_a_machine_by_any_of_its_names(one: str, other: str, same: bool) -> None:
    """Letter case, the preview's underscore and the two notations of a scale-set instance do not matter."""
    assert same_machine(one, other) is same
    assert same_machine(other, one) is same


def test_first_in_resources() -> None:
    """A machine can be listed without being first; an empty list names no machine."""
    both = parse_event(event(Resources=["web-0", "web-1"]))
    assert Me("web-0").is_first_in(both)
    assert Me("web-1").is_in(both)
    assert not Me("web-1").is_first_in(both)
    assert not Me("web-2").is_in(both)
    assert not Me("web-0").is_first_in(parse_event(event(Resources=[])))


@pytest.mark.parametrize("origin", ["instance", "configured", "hostname"])
def test_a_name_from_the_endpoint_has_one_notation(origin: str) -> None:
    """Only a host name is compared in both notations: `pool_1` and `pool000001` may be two machines."""
    mine = parse_event(event(Resources=["pool_1"]))
    assert Me("Pool_1", origin).is_in(mine)
    assert Me("pool000001", origin).is_in(mine) is (origin == "hostname")
    assert Me("pool000001", origin).is_first_in(mine) is (origin == "hostname")
