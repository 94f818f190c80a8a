"""Cordon and uncordon a host: who may be sent to it, and what stays after a maintenance."""

from dataclasses import replace

import pytest

from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import NotFound
from forewarn.core.hosts import HostState, cordon, host_state, uncordon
from forewarn.core.model import Host
from tests.support.builders import OPERATOR, START, at, guid, machine

LISTED = Host(name="kvm-07", labels={"rack": "b4"}, listed=True, version=3)


def seen(*hosts: Host) -> Snapshot:
    return Snapshot(
        hosts={host.name: host for host in hosts}, machines={("shop", "web-0"): machine("shop/web-0", host="kvm-01")}
    )


def test_a_host_is_cordoned_and_uncordoned() -> None:
    """Both are in the audit with the name of the host, and keep everything else that is known of it."""
    change = cordon(seen(LISTED), "kvm-07", now=at(1), actor=OPERATOR)
    (cordoned,) = change.hosts
    assert cordoned == replace(LISTED, cordoned=at(1))
    assert host_state(LISTED, in_maintenance=False) is HostState.UP
    assert host_state(cordoned, in_maintenance=False) is HostState.CORDONED
    assert host_state(cordoned, in_maintenance=True) is HostState.IN_MAINTENANCE
    assert [(e.at, e.who, e.origin, e.action, e.detail) for e in change.audit] == [
        (at(1), "alice", "console", "host cordoned", "kvm-07")
    ]
    back = uncordon(seen(cordoned), "kvm-07", now=at(2), actor=OPERATOR)
    assert back.hosts == (LISTED,)
    assert [(e.action, e.detail) for e in back.audit] == [("host uncordoned", "kvm-07")]


def test_a_repeated_request_changes_nothing() -> None:
    """A host that is cordoned, or is not, stays so without an entry in the audit."""
    cordoned = replace(LISTED, cordoned=START)
    assert cordon(seen(cordoned), "kvm-07", now=at(1), actor=OPERATOR) == Change(at=at(1))
    assert uncordon(seen(LISTED), "kvm-07", now=at(1), actor=OPERATOR) == Change(at=at(1))


def test_an_operators_cordon_outlives_the_maintenance() -> None:
    """An operator may take over the cordon of a maintenance, which then does not lift it at its end, or lift it."""
    cordoned = replace(LISTED, cordoned=START, cordoned_by=guid(900))
    kept = cordon(seen(cordoned), "kvm-07", now=at(1), actor=OPERATOR)
    assert kept.hosts == (replace(LISTED, cordoned=START),)
    assert [e.detail for e in kept.audit] == ["kvm-07, also after the maintenance that cordoned it"]
    assert uncordon(seen(cordoned), "kvm-07", now=at(1), actor=OPERATOR).hosts == (LISTED,)


def test_a_host_that_only_machines_name_can_be_cordoned() -> None:
    """It gets a row; a host that nothing names is not found."""
    change = cordon(seen(), "kvm-01", now=at(1), actor=OPERATOR)
    assert change.hosts == (Host(name="kvm-01", cordoned=at(1)),)
    assert uncordon(seen(), "kvm-01", now=at(1), actor=OPERATOR).empty
    for verb in (cordon, uncordon):
        with pytest.raises(
            NotFound, match="there is no host 'kvm-99': the fleet does not list it, and no machine is on it"
        ):
            verb(seen(LISTED), "kvm-99", now=at(1), actor=OPERATOR)
