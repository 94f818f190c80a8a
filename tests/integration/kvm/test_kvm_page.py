"""The commands of docs/guide/kvm.md, from the hosts' users to the first maintenance, with real ssh, libvirt and guests.

Each host has its own copy of /etc, in which the page's user is made, and its own sshd. The packages are there already.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import Bed, Guest, start_bed

from tests.support.guide_blocks import block
from tests.support.waiting import PATIENCE_S, until

HOSTS = {"kvm-01": "10.88.0.2", "kvm-02": "10.88.0.3"}
AGENT = 'approve = "when-ready"\nstate_dir = "/state/agent"\n'
OWN_FILES = """
set -eu
cp --archive /etc {folder}/etc
mount --bind {folder}/etc /etc
mount -t tmpfs tmpfs {home}
"""
SSHD = """
Port 22
ListenAddress {address}
HostKey {folder}/host_key
PidFile none
UsePAM yes
KbdInteractiveAuthentication no
PasswordAuthentication no
"""
SSH_CONFIG = """
Host kvm-01
  HostName 10.88.0.2
Host kvm-02
  HostName 10.88.0.3
Host *
  IdentityFile /var/lib/forewarn/.ssh/id_ed25519
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


@dataclass
class Site:
    """The bed, and the machine that runs forewarn: a mount namespace that a process holds."""

    bed: Bed
    folder: Path
    holder: "subprocess.Popen[bytes]"
    service: "subprocess.Popen[str] | None" = None

    def run(self, script: str) -> str:
        """Run a block of the page on the machine that runs forewarn."""
        done = subprocess.run(
            [*self.enter(), "sh", "-eu"],
            input=script,
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=3 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def enter(self) -> list[str]:
        namespaces = [f"--mount=/proc/{self.holder.pid}/ns/mnt", f"--net=/proc/{self.bed.first_process}/ns/net"]
        # Entering a namespace of mounts leads to its root.
        return ["nsenter", *namespaces, "env", f"--chdir={self.folder}"]

    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FOREWARN_", "LIBVIRT_"))}
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{clean.get('PATH', '')}:/usr/sbin:/sbin"
        return {**clean, "PATH": path, "FOREWARN_STATE_DIR": str(self.folder / "state")}


def write_programs(folder: Path) -> None:
    """Write the programs that stand in front of those of the machine."""
    programs = {
        "apt": "#!/bin/sh\n",
        "ssh": f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n',
        "forewarn": f'#!/bin/sh\nexec {sys.executable} -m forewarn "$@"\n',
    }
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    bed = start_bed(*HOSTS)
    write_programs(folder)
    (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
    holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "infinity"])
    site = Site(bed, folder, holder)
    try:
        until(lambda: mounts_of(holder.pid) != mounts_of(os.getpid()))
        yield site
    finally:
        if site.service is not None:
            site.service.kill()
            site.service.communicate()
        holder.kill()
        holder.wait()
        bed.close()


def mounts_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/mnt").readlink()


def prepare_host(site: Site, name: str, address: str) -> None:
    """Run the page's block for hosts on one of them, and start its sshd."""
    home = site.folder / name
    home.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "host_key"], check=True)
    with (site.folder / "known_hosts").open("a") as known:
        known.write(f"{name},{address} {(home / 'host_key.pub').read_text()}")
    (home / "sshd_config").write_text(SSHD.format(address=address, folder=home))
    socket = site.bed.folder / name / "run/libvirt-sock"
    steps = [
        OWN_FILES.format(folder=home, home="/home"),
        block("Prepare the hosts", "on each host").replace("apt ", f"{site.folder}/bin/apt "),
        # As Debian's libvirtd does it for the group.
        f"chgrp libvirt {socket} {site.bed.folder}/{name}/run && chmod 0770 {socket}",
        "mkdir -p /run/sshd /home/forewarn/.ssh && chmod 755 /home",
        f"exec /usr/sbin/sshd -E {home}/sshd.log -f {home}/sshd_config",
    ]
    site.bed.run_on_host(name, "\n".join(steps))


def authorize(site: Site, name: str) -> None:
    """Put the page's line with the public key onto a host."""
    key = site.run("cat /var/lib/forewarn/.ssh/id_ed25519.pub").strip()
    line = block("Connect forewarn", "/home/forewarn/.ssh/authorized_keys").splitlines()[1]
    text = line.replace("PUBLIC_KEY", key)
    site.bed.run_on_host(name, f"cat > /home/forewarn/.ssh/authorized_keys <<'END'\n{text}\nEND\n")


def add_guests(bed: Bed) -> tuple[Guest, Guest]:
    files = {"agent.toml": AGENT}
    return bed.add_guest("web-0", "kvm-01", files), bed.add_guest("web-1", "kvm-02", files)


def test_the_page_leads_from_bare_hosts_to_the_first_maintenance(site: Site) -> None:
    """Every command works as printed; each machine reboots once, then the first host is empty."""
    guests = add_guests(site.bed)
    for name, address in HOSTS.items():
        prepare_host(site, name, address)
    site.run(OWN_FILES.format(folder=site.folder, home="/var/lib"))
    setup = block("Connect forewarn", "on the machine that runs forewarn, as root")
    site.run("\n".join(line for line in setup.splitlines() if "/opt/forewarn" not in line))
    for name in HOSTS:
        authorize(site, name)
    assert "web-0" in site.run(block("Connect forewarn", "on the machine that runs forewarn, as its user"))
    assert "uid=" not in site.run("ssh forewarn@kvm-01 id </dev/null || true"), "the key opens a shell"

    until(lambda: all(guest.boots() == 1 for guest in guests))
    site.run(block("Describe the machines", "on the machine that runs forewarn: a line for each domain"))
    site.run(block("Describe the machines", "on the machine that runs forewarn: import"))
    add_addresses(site.folder / "fleet.toml", guests)
    serve(site)
    listed = site.run(block("Describe the machines", "apply the file"))
    assert all(name in listed for name in (*HOSTS, "web-0", "web-1"))
    until(lambda: json.loads(site.run("forewarn scope show shop --json"))["enabled"])

    site.run(block("The first maintenance", "reboot the machines"))
    until(lambda: all(guest.boots() == 2 for guest in guests))
    shown = site.run(block("The first maintenance", "empty a host"))
    assert "cordoned" in shown
    assert site.bed.virsh("kvm-01", "list", "--all", "--name") == ""
    until(lambda: [guest.boots() for guest in guests] == [3, 2])
    assert json.loads(site.run("forewarn machine show shop/web-0 --json"))["host"] == "kvm-02"


def add_addresses(file: Path, guests: Iterable[Guest]) -> None:
    """Add the addresses that libvirt does not show, as the page says: these guests have no lease."""
    text = file.read_text()
    for guest in guests:
        line = f'instance_id = "{guest.uuid}"'
        assert line in text
        text = text.replace(line, f'{line}\naddresses = ["{guest.address}"]')
    file.write_text(text)


def serve(site: Site) -> None:
    """Start the service with the page's settings."""
    (site.folder / "serve.toml").write_text(block("Describe the machines", "/etc/forewarn/serve.toml"))
    site.service = subprocess.Popen(
        [*site.enter(), "forewarn", "serve", "--config", "serve.toml"],
        env=site.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert site.service.stdout is not None
    assert any(line.startswith("ready ") for line in site.service.stdout)
