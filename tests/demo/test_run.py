"""The options of the demo, its fleet, and how long it waits for its agents."""

import logging
import socket
import sys
import threading
from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.core.fleet import parse_fleet
from forewarn.demo.agents import NEVER_APPROVES, NEVER_POLLS, USER_MACHINE, drain_command
from forewarn.demo.run import FLEET, _wait_for_first_events, check_ports_free, parse_rate
from forewarn.guest.programs import program_problems
from tests.support.own_network import own_network


def test_the_fleet_has_the_special_machines() -> None:
    """The user's machine is 127.0.0.1. There are twelve machines, each with one loopback address, on four hosts."""
    machines = parse_fleet(FLEET.read_text("utf-8"), "the demo's fleet").machines
    assert len(machines) == 12
    assert machines[USER_MACHINE].addresses == ("127.0.0.1",)
    assert {NEVER_POLLS, NEVER_APPROVES} <= set(machines)
    assert len({machine.host for machine in machines.values()}) == 4
    assert all(machine.addresses[0].startswith("127.0.0.") for machine in machines.values())


def test_a_rate_may_be_from_1_to_600() -> None:
    """The `x` may be left out."""
    assert (parse_rate("1x"), parse_rate("60"), parse_rate("600x")) == (1, 60, 600)


@pytest.mark.parametrize("speed", ["0x", "601x", "nan", "-3x", "", "x"])
def test_other_rates_are_refused(speed: str) -> None:
    """The message says that the text is not a rate."""
    with pytest.raises(InvalidSettings, match="is not a rate"):
        parse_rate(speed)


def test_the_operators_port_must_be_free_too() -> None:
    """The operators' port is the one after the guests' port. In a network of its own, nobody else has that one."""
    with own_network(), socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(InvalidSettings, match=f"127.0.0.1:{port} is not available"):
            check_ports_free(port - 1)


def test_agents_that_do_not_poll_in_time_are_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """The demo goes on with a warning; it gives none when all have polled or when it is stopped."""
    begun = threading.Event()
    with caplog.at_level(logging.WARNING, "forewarn.demo"):
        _wait_for_first_events(begun, lambda: True, 0.0)
        assert caplog.messages == []
        _wait_for_first_events(begun, lambda: False, 0.0)
        assert caplog.messages == ["some agents have not polled within 0 s: their scopes get maintenance later"]
        caplog.clear()
        begun.set()
        _wait_for_first_events(begun, lambda: False, 0.0)
        assert caplog.messages == []


def test_an_agent_runs_the_step_from_a_checkout_that_a_group_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent refuses such a program; the demo must work in any folder."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o775)
    tmp_path.chmod(0o775)
    monkeypatch.setattr(sys, "executable", str(python))
    assert program_problems([str(python)]) != []
    assert program_problems(drain_command(tmp_path / "lifeline", 1.0)) == []
