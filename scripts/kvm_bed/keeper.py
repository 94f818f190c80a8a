"""Holds the namespaces of a bed, and removes everything when the process that uses the bed closes it or dies.

`python -m scripts.kvm_bed.keeper FOLDER HOST…` reads its standard input, which never says anything: its end is the sign to
clean up. All daemons and guests run below one process that is the first of a process namespace: when the keeper kills it, the
kernel kills the others, and the network and the mounts go with them. Then the keeper removes the folder.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

NEW_NAMESPACES = 0x40000000 | 0x00020000 | 0x20000000  # CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID
PR_SET_PDEATHSIG = 1

# The bridge has the address that guests ask, their gateway, and one address of each host for migrations.
NETWORK = """\
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up
ip link add br0 type bridge
ip address add 10.88.0.1/24 dev br0
ip address add 169.254.169.254/32 dev br0
ip link set br0 up
"""
# A host's own files hide those of the machine. Its libvirtd is started again whenever it ends, unless the file `down` exists;
# the file `options` has more arguments for it.
HOST = """\
hostname "$NAME"
mount -t tmpfs tmpfs /run
mkdir -p /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /etc/libvirt
mount --bind "$HOME_OF_HOST/run" /run/libvirt
for each in lib cache log; do mount --bind "$HOME_OF_HOST/$each" "/var/$each/libvirt"; done
mount --bind "$HOME_OF_HOST/etc" /etc/libvirt
ip address add "$ADDRESS/24" dev br0
while :; do
    if [ -e "$HOME_OF_HOST/down" ]; then sleep 0.05; continue; fi
    options=$(cat "$HOME_OF_HOST/options")
    libvirtd $options --pid-file "$HOME_OF_HOST/libvirtd.pid" >>"$HOME_OF_HOST/libvirtd.log" 2>&1 || sleep 0.05
done
"""


def main() -> None:
    folder, hosts = Path(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACES) != 0:
        raise OSError(ctypes.get_errno(), "the bed needs root: unshare")
    first = os.fork()
    if first == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _run_hosts(folder, hosts)
        os._exit(1)
    try:
        print(first, flush=True)
        sys.stdin.buffer.read()
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _run_hosts(folder: Path, hosts: list[str]) -> None:
    """Be the first process of the namespace: start the hosts, then reap what their daemons leave behind."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    subprocess.run(["sh", "-eu", "-c", NETWORK], check=True, env=environment)
    for number, name in enumerate(hosts):
        home = folder / name
        settings = {"NAME": name, "HOME_OF_HOST": str(home), "ADDRESS": f"10.88.0.{2 + number}"}
        os.spawnvpe(
            os.P_NOWAIT,
            "unshare",
            ["unshare", "--mount", "--uts", "sh", "-eu", "-c", HOST],
            {**environment, **settings},
        )
    (folder / "ready").touch()
    while True:
        os.wait()


if __name__ == "__main__":
    main()
