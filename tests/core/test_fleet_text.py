"""A fleet written as a file, and one stated in pieces."""

import pytest

from forewarn.core.errors import InvalidFleet
from forewarn.core.fleet import Fleet, fleet_text, parse_fleet, stated_fleet
from forewarn.core.model import ApprovalMode, EventType, Machine, Scope, ScopeKind

SCOPE = Scope(
    name="shop",
    kind=ScopeKind.PLACEMENT_GROUP,
    approval=ApprovalMode.ALL,
    approve_user_events=True,
    max_user_operations=3,
    terminate_notice_s=600,
    minimum_notice_s={EventType.REBOOT: 1800, EventType.FREEZE: 901},
)
MACHINE = Machine(
    scope="shop", name="web-0", update_domain=1, fault_domain=2, host="rack1-a", addresses=("10.0.0.4", "fd00::4"),
    interface="tap0", instance_id='i-"quoted" \\ ü',
)  # fmt: skip


def test_what_is_written_reads_the_same() -> None:
    """Every setting and every key of a machine, at and off its default."""
    plain = Scope(name="plain", kind=ScopeKind.AVAILABILITY_SET)
    fleet = Fleet(
        {"shop": SCOPE, "plain": plain},
        {MACHINE.key: MACHINE, ("plain", "vm"): Machine(scope="plain", name="vm")},
    )
    text = fleet_text(fleet)
    assert parse_fleet(text, "the text") == fleet
    assert '[[scopes]]\nname = "plain"\nkind = "availability-set"\n\n' in text


def test_an_empty_fleet_is_an_empty_file() -> None:
    """Nothing at all."""
    assert fleet_text(Fleet({}, {})) == ""


def test_a_fleet_in_pieces_is_checked_as_a_file_is() -> None:
    """Twice the same scope, twice the same machine, a machine of nowhere, an address of two."""
    assert stated_fleet([SCOPE], [MACHINE]) == Fleet({"shop": SCOPE}, {MACHINE.key: MACHINE})
    other = Machine(scope="shop", name="web-1", addresses=("10.0.0.4",), interface="tap0")
    for scopes, machines, says in (
        ([SCOPE, SCOPE], [], "scope shop: stated twice"),
        ([SCOPE], [MACHINE, MACHINE], "machine shop/web-0: stated twice"),
        ([], [MACHINE], "there is no scope 'shop'"),
        ([SCOPE], [MACHINE, other], "machine shop/web-1: addresses: 10.0.0.4 on tap0 belongs to shop/web-0"),
    ):
        with pytest.raises(InvalidFleet, match=says):
            stated_fleet(scopes, machines)
