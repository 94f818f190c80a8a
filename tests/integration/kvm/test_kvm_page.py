"""The commands of docs/guide/kvm.md and libvirt-tls.md, from bare hosts to the first evacuation, with real ssh, TLS and libvirt.

Each host has its own copy of /etc, in which the page's user is made, and its own sshd. The packages are there already. In
`make soak` the machines run, with the agent inside; in `make test` they are off, which saves five boots, and the test approves
their events in their place.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
from scripts.kvm_bed.bed import Bed, Guest, accepts_connections, start_bed

from tests.support.budget import BUDGET
from tests.support.guide_blocks import block
from tests.support.waiting import PATIENCE_S, until

GUESTS_RUN = BUDGET > 1
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
HOSTS = {"kvm-01": "10.88.0.2", "kvm-02": "10.88.0.3"}
AGENT = 'approve = "when-ready"\nstate_dir = "/state/agent"\n'
# Stand in for programs of a host. The "reboot" writes down which domains are on the host, and changes its boot id.
APT_GET = """#!/bin/sh
echo "{name} apt-get $*" >>{folder}/patched
"""
SYSTEMCTL = """#!/bin/sh
domains=$(virsh --connect qemu:///system list --all --name)
echo "{name} $* ${{domains:-without domains}}" >>{folder}/patched
echo rebooted >{home}/boot_id
"""
HOST_PROGRAMS = """
mount -t tmpfs tmpfs /usr/local/sbin
mount -t tmpfs -o mode=0700 tmpfs ~root
cp {home}/host-work {home}/apt-get {home}/systemctl /usr/local/sbin
mkdir -m 0700 ~root/.ssh
cp {home}/boot_id.before {home}/boot_id
mount --bind {home}/boot_id /proc/sys/kernel/random/boot_id
"""
PATCHED = """kvm-01 apt-get update
kvm-01 apt-get --yes upgrade
kvm-01 reboot without domains
"""
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
        "patch-host": block("Allow the work on hosts", "/usr/local/bin/patch-host"),
        "forewarn": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m forewarn "$@"\n',
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
        # Until its mounts are private, what is mounted there would be mounted on this machine too.
        until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n")
        yield site
    finally:
        if site.service is not None:
            site.service.kill()
            site.service.communicate()
        holder.kill()
        holder.wait()
        bed.close()


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
    # sshd leaves the terminal before it listens.
    sockets = "ss --listening --tcp --numeric --no-header"
    until(lambda: f" {address}:22 " in site.bed.run_on_host(name, sockets))


def restrict_with_polkit(site: Site, name: str) -> None:
    """Have the libvirt of a host ask polkit, which has the page's rule. From now on only programs on the host reach it."""
    home, libvirt = site.folder / name, site.bed.folder / name
    rule = block("Connect forewarn", "/etc/polkit-1/rules.d/50-forewarn.rules")
    script = f"""
mount --bind {libvirt}/etc /etc/libvirt
echo 'access_drivers = ["polkit"]' >>/etc/libvirt/libvirtd.conf
cat >/etc/polkit-1/rules.d/50-forewarn.rules <<'END'
{rule}END
mkdir -p /run/dbus
dbus-daemon --system --fork
/usr/lib/polkit-1/polkitd --no-debug >{home}/polkitd.log 2>&1 &
"""
    has_owner = "dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.NameHasOwner"
    site.bed.run_on_host(name, script)
    until(lambda: "true" in site.bed.run_on_host(name, f"{has_owner} string:org.freedesktop.PolicyKit1"))
    site.bed.kill_libvirtd(name)
    socket = libvirt / "run/libvirt-sock"
    socket.unlink()
    (libvirt / "down").unlink()
    until(lambda: accepts_connections(socket))
    site.bed.run_on_host(name, f"chgrp libvirt {socket} && chmod 0770 {socket}")


def connect_with_tls(site: Site, name: str) -> None:
    """Run the page about TLS for one host; certificates of another authority, or of another name, open nothing."""
    libvirt, authority = site.bed.folder / name, site.folder / "ca"
    site.run("".join(f"echo '{address} {host}' >>/etc/hosts\n" for host, address in HOSTS.items()))
    site.run(block("Make certificates", "on the machine that runs forewarn, as root"))
    site.run(f"cp --recursive /etc/libvirt-ca {authority}")
    listen = block("Let the hosts listen", "on each host, as root").replace("systemctl ", "true ")
    site.bed.run_on_host(name, f"mount --bind {libvirt}/etc /etc/libvirt\ncd {authority}\n{listen}")
    (libvirt / "options").write_text("--listen")
    site.bed.kill_libvirtd(name)
    site.bed.start_libvirtd(name)
    assert site.run(block("Connect with TLS", "on the machine that runs forewarn, as its user")).count("web-1") >= 1

    openssl = block("Make certificates", "on the machine that runs forewarn, as root").partition("install -D")[0]
    for folder, client in {"foreign": "forewarn", "unlisted": "kvm-01"}.items():
        pki = site.folder / folder
        made = openssl.replace("/etc/libvirt-ca", str(pki)) if folder == "foreign" else f"cp -r {authority} {pki}"
        site.run(
            f"{made}\ncd {pki}\ncp ca.pem cacert.pem; cp {client}.pem clientcert.pem; cp {client}.key clientkey.pem"
        )
        said = site.run(f"! forewarn fleet import libvirt --uri 'qemu+tls://{name}/system?pkipath={pki}' 2>&1")
        assert f"libvirt at qemu+tls://{name}/system?pkipath={pki} cannot be reached" in said


def domains_on(site: Site, name: str) -> set[str]:
    return set(site.bed.run_on_host(name, "virsh --connect qemu:///system list --all --name").split())


def allow_host_work(site: Site, name: str) -> None:
    """Put the page's program for the second key onto a host, and stand-ins for the programs that it runs."""
    home = site.folder / name
    programs = {
        "host-work": block("Allow the work on hosts", "/usr/local/sbin/host-work"),
        "apt-get": APT_GET.format(name=name, folder=site.folder),
        "systemctl": SYSTEMCTL.format(name=name, folder=site.folder, home=home),
    }
    for program, text in programs.items():
        (home / program).write_text(text)
        (home / program).chmod(0o755)
    (home / "boot_id.before").write_text("before\n")
    site.bed.run_on_host(name, HOST_PROGRAMS.format(home=home))


def authorize(site: Site, name: str) -> None:
    """Put the page's lines with the public keys onto a host."""
    lines = {
        "id_ed25519": block("Connect forewarn", "/home/forewarn/.ssh/authorized_keys"),
        "host_work": block("Allow the work on hosts", "~root/.ssh/authorized_keys"),
    }
    for key, text in lines.items():
        comment, line = text.splitlines()
        file, options = comment.split()[1], line.rpartition(" ")[0]
        public = site.run(f"cat /var/lib/forewarn/.ssh/{key}.pub").strip()
        site.bed.run_on_host(name, f"cat > {file} <<'END'\n{options} {public}\nEND\n")


def add_guests(bed: Bed) -> list[Guest]:
    files, homes = {"agent.toml": AGENT}, {"web-0": "kvm-01", "web-1": "kvm-02"}
    return [bed.add_guest(name, host, files, start=GUESTS_RUN) for name, host in homes.items()]


@contextmanager
def approving(bed: Bed, guests: Iterable[Guest]) -> Iterator[None]:
    """Poll and approve with the addresses of the guests, if they are off."""
    stopping = threading.Event()

    def poll(address: str) -> None:
        with bed.network():
            while not stopping.wait(0.2):
                with suppress(OSError, HTTPException):
                    approve_all(address)

    threads = [threading.Thread(target=poll, args=(guest.address,)) for guest in guests if not GUESTS_RUN]
    for guest in guests if not GUESTS_RUN else ():
        bed.run_on_host("kvm-01", f"ip address add {guest.address}/32 dev lo")
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def approve_all(address: str) -> None:
    connection = HTTPConnection("169.254.169.254", timeout=PATIENCE_S, source_address=(address, 0))
    try:
        connection.request("GET", PATH, headers={"Metadata": "true"})
        document = json.loads(connection.getresponse().read())
        requests = [{"EventId": event["EventId"]} for event in document.get("Events", ())]
        if requests:
            connection.request("POST", PATH, json.dumps({"StartRequests": requests}), {"Metadata": "true"})
            connection.getresponse().read()
    finally:
        connection.close()


def test_the_page_leads_from_bare_hosts_to_the_first_evacuation(site: Site) -> None:
    """Every command works as printed; each machine that runs reboots once, then moves off the host that is worked on."""
    guests = add_guests(site.bed)
    for name, address in HOSTS.items():
        prepare_host(site, name, address)
    site.run(OWN_FILES.format(folder=site.folder, home="/var/lib"))
    setup = block("Connect forewarn", "on the machine that runs forewarn, as root")
    site.run("\n".join(line for line in setup.splitlines() if "/opt/forewarn" not in line))
    site.run(block("Allow the work on hosts", "on the machine that runs forewarn, as root"))
    for name in HOSTS:
        allow_host_work(site, name)
        authorize(site, name)
    assert "web-0" in site.run(block("Connect forewarn", "on the machine that runs forewarn, as its user"))
    assert "uid=" not in site.run("ssh forewarn@kvm-01 id </dev/null || true"), "the key opens a shell"
    second_key = "ssh -i /var/lib/forewarn/.ssh/host_work root@kvm-01"
    assert "host-work does not know id" in site.run(f"! {second_key} id 2>&1 </dev/null")
    connect_with_tls(site, "kvm-02")
    for name in HOSTS:
        restrict_with_polkit(site, name)
    assert "error" in site.run("! virsh --connect qemu+tls://kvm-02/system list --all 2>&1")
    refused = f"! virsh --connect qemu+ssh://forewarn@kvm-01/system net-define {site.folder}/net.xml 2>&1"
    (site.folder / "net.xml").write_text("<network><name>mine</name></network>")
    assert "access denied" in site.run(refused)

    site.run(block("Describe the machines", "on the machine that runs forewarn: a line for each domain"))
    site.run(block("Describe the machines", "on the machine that runs forewarn: import"))
    add_addresses(site.folder / "fleet.toml", guests)
    serve(site)
    with approving(site.bed, guests):
        listed = site.run(block("Describe the machines", "apply the file"))
        assert all(name in listed for name in (*HOSTS, "web-0", "web-1"))
        until(lambda: json.loads(site.run("forewarn scope show shop --json"))["enabled"])
        site.run(block("The first maintenance", "reboot the machines"))
        until(lambda: [guest.boots() for guest in guests] == ([2, 2] if GUESTS_RUN else [0, 0]))
        assert "kvm-02" in site.run(block("The first evacuation", "see which machines"))
        site.run(block("The first evacuation", "empty a host"))
    assert (site.folder / "patched").read_text() == PATCHED
    assert (domains_on(site, "kvm-01"), domains_on(site, "kvm-02")) == (set(), {"web-0", "web-1"})
    until(lambda: [guest.boots() for guest in guests] == ([2, 2] if GUESTS_RUN else [0, 0]))
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
    settings = block("Describe the machines", "/etc/forewarn/serve.toml")
    (site.folder / "serve.toml").write_text(settings.replace("/usr/local", str(site.folder)))
    site.service = subprocess.Popen(
        [*site.enter(), "forewarn", "serve", "--config", "serve.toml"],
        env=site.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert site.service.stdout is not None
    assert any(line.startswith("ready ") for line in site.service.stdout)
