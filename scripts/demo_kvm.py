"""`make demo-kvm`: two KVM hosts and four tiny guests on this machine, with the real agent inside, and forewarn with its portal.

It needs root and the packages that `scripts/test_tools` installs. QEMU emulates the processor, so a guest takes a while to boot.
The hosts and guests have a network of their own; only the portal is reachable from outside, on loopback. Everything is gone when
the program ends.
"""

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from scripts.kvm_bed.bed import Bed, start_bed

PORT = 8170
HOST = "127.0.0.1"
# The scope, the update domain and the host of each guest.
GUESTS = {
    "web-0": ("shop", 0, "kvm-a"),
    "web-1": ("shop", 1, "kvm-b"),
    "db-0": ("db", 0, "kvm-a"),
    "db-1": ("db", 1, "kvm-b"),
}
METADATA = (
    "<metadata><forewarn:machine xmlns:forewarn='urn:forewarn:machine' scope='{}' update-domain='{}'/></metadata>"
)
AGENT = 'approve = "when-ready"\nstate_dir = "/state/agent"\n'
SETTINGS = """
inventory = "libvirt"
executor = "libvirt"
guest = ["169.254.169.254:80"]
operator = "127.0.0.1:{port}"
host_executor = "command"
host_command = ["/bin/sleep", "10"]

[libvirt]
shutdown_grace = "20s"
"""
WELCOME = """
The portal: http://{host}:{port}   token: {token}
On the command line:
  export FOREWARN_SERVER=http://{host}:{port} FOREWARN_TOKEN={token}
  {forewarn} host list
  {forewarn} machine list
  {forewarn} maintenance schedule --type Reboot --scope shop --wait done
  {forewarn} maintenance schedule --evacuate --host kvm-a --wait done    # moves its guests live
  {forewarn} maintenance schedule --in-place --host kvm-b --wait done    # shuts its guests down meanwhile
  virsh --connect '{uri}' list --all
A scope gets notice once its guests have booted and asked: `{forewarn} scope list` shows it as enabled.
Ctrl-C removes everything.
"""
# As a user of this checkout calls it: `make demo-kvm` runs in its folder.
PROGRAM = os.path.relpath(Path(sys.executable).parent / "forewarn")
CHUNK_BYTES = 65_536


def main() -> None:
    parser = argparse.ArgumentParser(description="Two KVM hosts, four guests and forewarn on this machine.")
    parser.add_argument("--port", type=int, default=PORT, help="the port of the portal on 127.0.0.1; 0 chooses one")
    parser.add_argument("--paused", action="store_true", help="start the guests paused: none boots")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    listening = socket.create_server((HOST, arguments.port))
    port = listening.getsockname()[1]
    print("starting two hosts and four guests", flush=True)
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="forewarn-kvm-") as folder:
        bed = start_bed()
        try:
            _run(bed, Path(folder), listening, port, paused=arguments.paused)
        finally:
            bed.close()


def _run(bed: Bed, folder: Path, listening: socket.socket, port: int, *, paused: bool) -> None:
    fleet = folder / "fleet.toml"
    guests = [
        bed.add_guest(name, host, {"agent.toml": AGENT}, extra=METADATA.format(scope, number), start=False)
        for name, (scope, number, host) in GUESTS.items()
    ]
    for name, (_, _, host) in GUESTS.items():
        bed.virsh(host, "start", name, *(["--paused"] if paused else []))
    uris = [f"--uri={uri}" for uri in bed.hosts.values()]
    text = subprocess.run(
        _forewarn("fleet", "import", "libvirt", *uris), check=True, capture_output=True, text=True
    ).stdout
    for guest in guests:  # they have fixed addresses, which libvirt does not know
        line = f'instance_id = "{guest.uuid}"'
        text = text.replace(line, f'{line}\naddresses = ["{guest.address}"]')
    fleet.write_text(text)
    config = folder / "serve.toml"
    config.write_text(SETTINGS.format(port=port))
    token = secrets.token_urlsafe(16)
    environment = {**os.environ, "FOREWARN_TOKEN": token, "FOREWARN_STATE_DIR": str(folder / "state")}
    command = _forewarn("serve", "--config", str(config), "--fleet", str(fleet))
    with bed.network():
        service = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        if not any(line.startswith("ready ") for line in service.stdout):
            raise SystemExit("forewarn did not start")
        threading.Thread(target=_forward_all, args=(bed, listening, port), daemon=True).start()
        print(f"ready operator=http://{HOST}:{port}", flush=True)
        names = {"host": HOST, "port": port, "token": token, "uri": bed.hosts["kvm-a"], "forewarn": PROGRAM}
        print(WELCOME.format_map(names), flush=True)
        service.wait()
    finally:
        service.terminate()
        service.communicate()


def _forewarn(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forewarn", *arguments]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# -- from loopback into the network of the hosts


def _forward_all(bed: Bed, listening: socket.socket, port: int) -> None:
    while True:
        outside, _ = listening.accept()
        try:
            with bed.network():
                inside = socket.create_connection((HOST, port))
        except OSError:
            outside.close()
            continue
        for source, target in ((outside, inside), (inside, outside)):
            threading.Thread(target=_forward, args=(source, target), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, then end the target."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
