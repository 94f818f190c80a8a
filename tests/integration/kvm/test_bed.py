"""The bed itself, and connections to hosts that die, hang and come back."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import ROOT, Bed

from forewarn.libvirt.connections import HostConnections, HostUnreachable
from tests.integration.kvm.site import GUEST_PATIENCE_S
from tests.support.waiting import until

USES_A_BED = """
from scripts.kvm_bed.bed import start_bed
bed = start_bed()
bed.add_guest("web-0", "kvm-a", start=False)
bed.virsh("kvm-a", "start", "web-0", "--paused")
print(bed.folder, bed.first_process, flush=True)
input()
"""
WRITES = """
with open("log", "w") as file:
    while True:
        file.write("x" * 5000)
        file.seek(0)
"""


def test_a_guest_boots_counts_and_obeys_its_power_button(bed: Bed) -> None:
    """A guest counts its boot on its disk. It ends when libvirt asks it to shut down, and leaves its file system clean."""
    guest = bed.add_guest("web-0", "kvm-a", {"program.py": WRITES})
    # QEMU would lose writes of a guest with other memory in a live migration: see `QEMU_MEMORY_KIB`.
    answer = bed.virsh("kvm-a", "qemu-monitor-command", "web-0", '{"execute": "query-memory-size-summary"}')
    assert json.loads(answer)["return"]["base-memory"] % (256 * 1024) != 0
    until(lambda: guest.boots() == 1, GUEST_PATIENCE_S)
    until(lambda: guest.read("log"), GUEST_PATIENCE_S, every_s=0.2)
    bed.virsh("kvm-a", "shutdown", "web-0")
    until(lambda: bed.virsh("kvm-a", "domstate", "web-0") == "shut off", GUEST_PATIENCE_S, every_s=0.2)
    described = subprocess.run(["dumpe2fs", "-h", guest.disk], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^Filesystem state: +clean$", described, re.MULTILINE), described


def test_a_connection_returns_with_its_libvirtd(bed: Bed) -> None:
    """While libvirtd is down the host is unreachable; afterwards the same object connects again."""
    connections = HostConnections()
    uri = bed.hosts["kvm-b"]
    assert connections.get(uri).getHostname() == "kvm-b"
    bed.kill_libvirtd("kvm-b")
    until(lambda: not connections.get_if_alive(uri))
    with pytest.raises(HostUnreachable, match="cannot be reached"):
        connections.get(uri)
    bed.start_libvirtd("kvm-b")
    assert connections.get(uri).getHostname() == "kvm-b"
    connections.close()


def test_a_libvirtd_that_hangs_blocks_no_caller_for_long(bed: Bed) -> None:
    """An attempt to connect to a stopped libvirtd ends after its limit; calls to another host work meanwhile."""
    connections = HostConnections(open_within_s=0.5)
    bed.signal_libvirtd("kvm-b", "STOP")
    try:
        with pytest.raises(HostUnreachable, match="does not answer within"):
            connections.get(bed.hosts["kvm-b"])
        # On a busy machine this attempt may take longer too, but it ends.
        with suppress(HostUnreachable):
            connections.get(bed.hosts["kvm-a"])
        until(lambda: connections.get_if_alive(bed.hosts["kvm-a"]))
    finally:
        bed.signal_libvirtd("kvm-b", "CONT")
    until(lambda: connections.get_if_alive(bed.hosts["kvm-b"]))
    connections.close()


def test_nothing_is_left_of_a_bed_whose_user_was_killed() -> None:
    """After kill -9 of the process that uses it, a bed removes its processes and its files."""
    user = subprocess.Popen(
        [sys.executable, "-c", USES_A_BED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert user.stdout is not None
    folder, first_process = user.stdout.readline().split()
    user.send_signal(signal.SIGKILL)
    user.communicate()
    until(lambda: not Path(folder).exists())
    with pytest.raises(ProcessLookupError):
        os.kill(int(first_process), 0)
