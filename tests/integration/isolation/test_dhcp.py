"""DHCP option 245 with the guide's dnsmasq configuration: the endpoint's address in four bytes."""

import json

from tests.integration.isolation.conftest import build_bridge
from tests.support.guide_blocks import block
from tests.support.network_lab import Lab
from tests.support.waiting import until

CLIENT = """
import json, os, socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
link.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
link.bind(("", 68))
mac = bytes.fromhex("525400000001")
head = bytes([1, 1, 6, 0]) + os.urandom(4) + bytes.fromhex("00008000") + bytes(16) + mac + bytes(202)
discover = head + bytes.fromhex("63825363" "350101" "370103" "ff")
link.sendto(discover, ("255.255.255.255", 67))
offer = link.recv(2048)
options, at = {"address": socket.inet_ntoa(offer[16:20])}, 240
while offer[at] != 255:
    options[offer[at]] = list(offer[at + 2 : at + 2 + offer[at + 1]])
    at += 2 + offer[at + 1]
print(json.dumps(options))
"""


def test_dnsmasq_sends_option_245(lab: Lab) -> None:
    """The offer has the four bytes although the client requested the router alone."""
    host, machines = build_bridge(lab)
    lab.write({"dnsmasq.conf": block("DHCP option 245", "dnsmasq.conf")})
    files = ["--pid-file=", f"--dhcp-leasefile={lab.folder}/leases", "--port=0", "--no-ping", "--user=root"]
    lab.start(host, ["dnsmasq", "--keep-in-foreground", "--conf-file=dnsmasq.conf", *files])
    until(lambda: ":67 " in host.run("ss --listening --udp --numeric --no-header"))
    assert json.loads(machines["web"].python(CLIENT))["245"] == [10, 88, 0, 1]
