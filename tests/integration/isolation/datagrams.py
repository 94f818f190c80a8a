"""Datagrams between machines: whether a packet with another machine's address arrives."""

from collections.abc import Iterator

from tests.support.network_lab import Lab, Namespace

_SENDER = """
import socket
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, 19, 1)  # IP_TRANSPARENT
sender.bind(("{source}", 0))
sender.sendto(b"{text}", ("{target}", 5000))
"""
_RECEIVER = """
import socket
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("", 5000))
print("listening", flush=True)
while True:
    data, (source, _) = receiver.recvfrom(100)
    print(data.decode(), "from", source, flush=True)
"""


def send(machine: Namespace, text: str, *, source: str, target: str) -> None:
    """Send a datagram from any source address, also from one that the machine does not have."""
    machine.python(_SENDER.format(text=text, source=source, target=target))


def receive(lab: Lab, machine: Namespace) -> Iterator[str]:
    """Listen for datagrams in a machine; yield each with its source address."""
    process = lab.start(machine, ["python3", "-c", _RECEIVER])
    assert process.stdout is not None
    lines = (line.strip() for line in process.stdout)
    assert next(lines) == "listening"
    return lines
