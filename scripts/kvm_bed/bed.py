"""Starts and controls the hosts and guests of a bed."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.folders import folder_for_every_user

from scripts.kvm_bed.guest_image import CACHE, DISK_MIB, cache_locked, initrd, unpacked_kernel

ROOT = Path(__file__).parent.parent.parent
CLONE_NEWNET = 0x40000000
# Far more than anything needs on a busy machine: it only ends a wait that has failed.
PATIENCE_S = 180.0
CHECK_EVERY_S = 0.02
KIB = 1024
MIB = 1024 * KIB
# What libvirt is told; it knows only whole MiB.
MEMORY_MIB = 128
# The memory that a guest has: no multiple of 256 KiB, so that a live migration loses none of it. QEMU before 9.0 tracks writes
# wrongly if it emulates the processor. When it looks for pages that the guest has written to since they were copied, it checks
# memory of a multiple of 256 KiB in blocks of 64 pages, and then forgets to catch the next write to them. If it copies them
# while the guest still runs, which happens on a busy machine, later writes to them get lost, and the guest's kernel may panic.
# Memory of another size it checks page by page, and then catches every write. The fix in QEMU 9.0 is commit 03bfc2188f06.
QEMU_MEMORY_KIB = MEMORY_MIB * KIB - 8
BLOCK_BYTES = 4096
# What libvirt has found out about QEMU by starting it several times. libvirt itself checks whether it is still valid.
CAPABILITIES = CACHE / "capabilities"
MIGRATION_PORTS = 100
KERNEL = "kernel"

QEMU_CONF = """\
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
migration_host = "{address}"
migration_address = "{address}"
migration_port_min = {port}
migration_port_max = {last_port}
"""
LIBVIRTD_CONF = """\
host_uuid = "{uuid}"
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
"""
# What a kernel need not do in an emulated guest. It computes for a second to have random numbers unless the processor has them.
FAST_BOOT = (
    "panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check cryptomgr.notests ipv6.disable=1 apparmor=0 audit=0"
    " init_on_alloc=0 random.trust_cpu=on noreplace-smp lsm=capability"
)
DOMAIN = """\
<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{memory_mib}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 quiet {fast} guest.name={name} guest.address={address} guest.gateway=10.88.0.1</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='custom' check='none'><model>qemu64</model><feature policy='require' name='rdrand'/></cpu>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    {disk}
    <interface type='bridge'>
      <mac address='{mac}'/>
      <source bridge='br0'/>
      <model type='virtio'/>
      <rom enabled='no'/>
    </interface>
    <serial type='file'><source path='{console}' append='on'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-object'/><qemu:arg value='memory-backend-ram,id=memory,size={qemu_memory_kib}k'/>
    <qemu:arg value='-machine'/><qemu:arg value='memory-backend=memory'/>
    <qemu:arg value='-m'/><qemu:arg value='{qemu_memory_kib}k'/>
  </qemu:commandline>
</domain>
"""
# A disk on the network is the same disk on every host, and libvirt calls a live migration with it safe.
NETWORK_DISK = """\
<disk type='network' device='disk'>
      <driver name='qemu' type='raw'/>
      <source protocol='nbd' name='disk'><host transport='unix' socket='{socket}'/></source>
      <target dev='vda' bus='virtio'/>
    </disk>"""


@dataclass(frozen=True)
class BootFiles:
    """What guests boot, in the cache of the checkout."""

    kernel: Path
    initrd: Path


@dataclass(frozen=True)
class Guest:
    """A guest as it was defined; `disk` is the image of its file system, which the host can read while it runs."""

    name: str
    uuid: str
    address: str
    disk: Path
    console: Path

    def read(self, file: str) -> str:
        """Return a file from the guest's disk, or "" if there is none."""
        shown = subprocess.run(
            ["debugfs", "-R", f"cat /{file}", self.disk], capture_output=True, text=True, check=True, env=_environment()
        )
        return shown.stdout

    def last_words(self) -> str:
        """Return the end of the guest's console, for the message of a test that failed: a guest that panics boots again."""
        return self.console.read_text()[-3000:]

    def boots(self) -> int:
        """Return how often the guest has booted, as counted by itself."""
        with self.disk.open("rb") as disk:
            disk.seek(DISK_MIB * MIB)
            return int(disk.read().strip(b"\0\n ") or 0)


@dataclass
class Bed:
    """Two hosts, by default, and their guests. `hosts` maps their names to the URIs of their libvirt."""

    folder: Path
    keeper: "subprocess.Popen[str]"
    first_process: int
    hosts: dict[str, str]
    initrd: Path
    guests: dict[str, Guest] = field(default_factory=dict)
    disk_servers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @contextmanager
    def network(self) -> Iterator[None]:
        """Move this thread, and the programs that it starts, into the network of the hosts."""
        libc = ctypes.CDLL(None, use_errno=True)
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        inside = os.open(f"/proc/{self.first_process}/ns/net", os.O_RDONLY)
        try:
            _must(libc.setns(inside, CLONE_NEWNET))
            try:
                yield
            finally:
                _must(libc.setns(before, CLONE_NEWNET))
        finally:
            os.close(before)
            os.close(inside)

    def add_guest(
        self, name: str, host: str, files: Mapping[str, str] | None = None, *, start: bool = True, extra: str = ""
    ) -> Guest:
        """Define a guest with these files on its disk, and start it. `extra` is more of the domain's XML."""
        number = len(self.guests) + 11
        home = self.folder / "guests" / name
        home.mkdir(parents=True)
        disk = home / "disk.img"
        _make_disk(disk, home / "content", files or {})
        guest = Guest(name, str(uuid.uuid4()), f"10.88.0.{number}", disk, home / "console.log")
        self.guests[name] = guest
        self._serve_disk(guest)
        xml = DOMAIN.format(
            name=name, uuid=guest.uuid, memory_mib=MEMORY_MIB, qemu_memory_kib=QEMU_MEMORY_KIB, kernel=self.folder / KERNEL,
            initrd=self.initrd, fast=FAST_BOOT, address=guest.address, mac=f"52:54:00:88:00:{number:02x}",
            console=guest.console,
            disk=NETWORK_DISK.format(socket=disk.with_suffix(".socket")),
        )  # fmt: skip
        definition = home / "domain.xml"
        definition.write_text(xml.replace("</domain>", f"{extra}</domain>"))
        self.virsh(host, "define", str(definition))
        if start:
            self.virsh(host, "start", name)
        return guest

    def virsh(self, host: str, *arguments: str) -> str:
        """Run virsh on a host; it must succeed. Return its output."""
        done = subprocess.run(
            ["virsh", "--quiet", "--connect", self.hosts[host], *arguments],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=_environment(),
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"virsh {' '.join(arguments)} on {host}: {done.stderr.strip()}")
        return done.stdout.strip()

    def domains(self, host: str) -> str:
        """Return what libvirt and QEMU say of a host's domains, for the message of a test that failed."""
        home = self.folder / host
        logs = (home / "libvirtd.log", *home.glob("log/qemu/*.log"))
        said = [f"{log.name}: {line}" for log in logs for line in log.read_text().splitlines()[-20:]]
        try:
            listed = self.virsh(host, "list", "--all")
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            listed = str(error)
        return "\n".join([listed, *said])

    def run_on_host(self, host: str, script: str) -> str:
        """Run a shell script among the files and in the network of a host; it must succeed. Return its output."""
        pid = (self.folder / host / "libvirtd.pid").read_text().strip()
        done = subprocess.run(
            [*self._enter(), "nsenter", "--target", pid, "--mount", "--uts", "sh", "-eu"],
            input=script, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=_environment(),
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"on {host}:\n{script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def kill_libvirtd(self, host: str) -> None:
        """Kill the libvirtd of a host and leave it down; its guests go on."""
        home = self.folder / host
        (home / "down").touch()
        pid = (home / "libvirtd.pid").read_text().strip()
        self._inside("kill", "-KILL", pid)
        _until(lambda: not self._inside_succeeds("kill", "-0", pid))

    def start_libvirtd(self, host: str) -> None:
        (self.folder / host / "down").unlink()
        self.until_host_answers(host)

    def until_host_answers(self, host: str) -> None:
        _until(lambda: self._answers(host), lambda: (self.folder / host / "libvirtd.log").read_text()[-2000:])

    def signal_libvirtd(self, host: str, signal_name: str) -> None:
        """Send a signal to the libvirtd of a host: STOP makes the host hang, CONT lets it go on."""
        self._inside("kill", f"-{signal_name}", (self.folder / host / "libvirtd.pid").read_text().strip())

    def close(self) -> None:
        """End every process and remove every file of the bed."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait(PATIENCE_S)
        assert self.keeper.stdout is not None
        self.keeper.stdout.close()
        for server in self.disk_servers:
            server.wait(PATIENCE_S)

    def _answers(self, host: str) -> bool:
        if not accepts_connections(self.folder / host / "run/libvirt-sock"):
            return False  # costs far less than virsh, which would be started every few milliseconds
        try:
            self.virsh(host, "version")
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def _serve_disk(self, guest: Guest) -> None:
        address, pid_file = guest.disk.with_suffix(".socket"), guest.disk.with_suffix(".pid")
        server = subprocess.Popen(
            [
                *self._enter(), "qemu-storage-daemon",
                "--blockdev", f"file,node-name=disk,filename={guest.disk}",
                "--nbd-server", f"addr.type=unix,addr.path={address},max-connections=0",
                "--export", "nbd,id=disk,node-name=disk,name=disk,writable=on", "--pidfile", str(pid_file),
            ],
            stdin=subprocess.DEVNULL, start_new_session=True, env=_environment(),
        )  # fmt: skip
        self.disk_servers.append(server)
        _until(pid_file.exists)  # it writes the file when it listens; the socket exists a moment before that

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self.first_process), "--net", "--mount", "--pid"]

    def _inside(self, *command: str) -> None:
        subprocess.run([*self._enter(), *command], check=True, env=_environment())

    def _inside_succeeds(self, *command: str) -> bool:
        return (
            subprocess.run([*self._enter(), *command], check=False, capture_output=True, env=_environment()).returncode
            == 0
        )


def start_bed(*names: str) -> Bed:
    """Start hosts with these names, by default `kvm-a` and `kvm-b`, and wait until their libvirt answers."""
    names = names or ("kvm-a", "kvm-b")
    boot_files = BootFiles(unpacked_kernel(), initrd())
    if not CAPABILITIES.exists():
        with cache_locked():
            if not CAPABILITIES.exists():
                bed = _start_hosts(names, boot_files)
                _keep_capabilities(bed.folder / names[0])
                return bed
    return _start_hosts(names, boot_files)


def _keep_capabilities(home: Path) -> None:
    """Put what the libvirt of a host knows about QEMU into the cache, as a whole or not at all."""
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        shutil.copytree(home / "cache/qemu/capabilities", Path(folder) / "copy")
        (Path(folder) / "copy").rename(CAPABILITIES)


def _start_hosts(names: tuple[str, ...], boot_files: BootFiles) -> Bed:
    # Outside the checkout, which may be in a folder that only its owner can reach; and short, for the paths of sockets.
    folder = folder_for_every_user("kvm-")
    for number, name in enumerate(names):
        _make_home(folder / name, number)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "scripts.kvm_bed.keeper", str(folder), *names],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    assert keeper.stdout is not None
    first_process = int(keeper.stdout.readline() or 0)
    uris = {name: f"qemu+unix:///system?socket={folder / name / 'run/libvirt-sock'}" for name in names}
    bed = Bed(folder, keeper, first_process, uris, folder / "initrd")
    try:
        _link_or_copy(boot_files.kernel, folder / KERNEL)
        _link_or_copy(boot_files.initrd, bed.initrd)
        for name in names:
            bed.until_host_answers(name)
    except BaseException:
        bed.close()
        raise
    return bed


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # on another file system
        shutil.copy(source, target)


def _make_home(home: Path, number: int) -> None:
    for each in ("run", "lib", "cache", "log", "etc"):
        (home / each).mkdir(parents=True)
    port = 49152 + number * MIGRATION_PORTS
    address = f"10.88.0.{2 + number}"
    conf = QEMU_CONF.format(address=address, port=port, last_port=port + MIGRATION_PORTS - 1)
    (home / "etc/qemu.conf").write_text(conf)
    (home / "etc/libvirtd.conf").write_text(LIBVIRTD_CONF.format(uuid=uuid.uuid4()))
    if CAPABILITIES.exists():
        shutil.copytree(CAPABILITIES, home / "cache/qemu/capabilities")
    (home / "libvirtd.log").touch()
    (home / "options").touch()


def _make_disk(disk: Path, content: Path, files: Mapping[str, str]) -> None:
    """Make a file system without a journal: what the guest has written is then in its place, where the host can read it.

    It has no checksums either: the host reads it while the guest writes to it, and a guest may be destroyed between two writes.
    """
    content.mkdir()
    for name, text in files.items():
        (content / name).write_text(text)
        (content / name).chmod(0o644)
    subprocess.run(
        ["mkfs.ext4", "-q", "-O", "^has_journal,^metadata_csum,^uninit_bg", "-d", content, disk, f"{DISK_MIB}m"],
        check=True, capture_output=True, env=_environment(),
    )  # fmt: skip
    with disk.open("r+b") as file:
        file.truncate(DISK_MIB * MIB + BLOCK_BYTES)


def accepts_connections(path: Path) -> bool:
    """Whether someone listens on the Unix socket. It exists a moment before that."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def _until(condition: Callable[[], object], detail: Callable[[], str] = lambda: "") -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"it did not happen within {PATIENCE_S:g} s. {detail()}".rstrip())
        time.sleep(CHECK_EVERY_S)


def _environment() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FOREWARN_", "PYTHON", "LIBVIRT"))}
    return {**clean, "PATH": f"{clean.get('PATH', '')}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def _must(code: int) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
