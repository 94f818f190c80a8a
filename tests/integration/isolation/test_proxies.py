"""Beside OpenStack's metadata service: the guide's nginx and HAProxy route by path, and only signed requests count."""

import hashlib
import hmac
import json
from collections.abc import Iterator

import pytest

from tests.integration.isolation.conftest import Site, build_bridge, serve_as_printed
from tests.integration.isolation.prepared_store import approvals, prepare
from tests.support.guide_blocks import block
from tests.support.network_lab import URL, Namespace, laboratory
from tests.support.waiting import until

HEADING = "Configure the service"
SECRET = "a secret of more than sixteen bytes"
WEB, DB = "5c2c1a4e-6f0b-4d55-8a2e-0d1f6f4f9a11", "b7d9e2c0-3a41-4f6e-9c55-7e1a2b3c4d12"
NOVA = """
import http.server

class Nova(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"nova " + self.path.encode())

http.server.ThreadingHTTPServer(("127.0.0.1", 8775), Nova).serve_forever()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The bridge, a stand-in for Nova, and a service that trusts the proxy at 127.0.0.1."""
    with laboratory(tmp_path_factory.mktemp("proxies")) as lab:
        host, machines = build_bridge(lab)
        lab.write({name: block(HEADING, name) for name in ("fleet.toml", "serve.toml")})
        lab.write({"proxy.secret": SECRET + "\n", "nova.py": NOVA})
        (lab.folder / "proxy.secret").chmod(0o600)
        site = Site(lab, host, machines, prepare(lab.folder), HEADING)
        lab.start(host, ["python3", "nova.py"])
        serve_as_printed(site, HEADING)
        yield site


def listening(host: Namespace, port: int) -> bool:
    return f":{port} " in host.run("ss --listening --tcp --numeric --no-header")


def test_nginx_signs_for_the_machines_it_knows(site: Site) -> None:
    """Two machines get their own documents, an unknown one 404, a relayed request 400; other paths go to Nova."""
    lab = site.lab
    lab.write({"metadata.conf": block("A proxy at the address itself", "conf.d/metadata.conf")})
    lab.write(
        {
            "nginx.conf": "daemon off; pid nginx.pid; error_log stderr; events {}\n"
            "http { access_log off; client_body_temp_path body; proxy_temp_path proxied; include metadata.conf; }\n"
        }
    )
    site.host.run(block("A proxy at the address itself", "on the host: signatures.map"))
    assert (lab.folder / "signatures.map").stat().st_mode & 0o777 == 0o600
    lab.start(site.host, ["nginx", "-e", "stderr", "-p", str(lab.folder), "-c", "nginx.conf"])
    until(lambda: listening(site.host, 80) and listening(site.host, 8775))

    web, db, stranger = site.machines.values()
    assert web.ask().event_ids == [site.events["web"]]
    assert db.ask("-H", f"X-Instance-ID: {WEB}").event_ids == [site.events["db"]]
    assert stranger.ask().status == 404
    for relayed in ("X-Forwarded-For: 10.88.0.12", "Forwarded: for=10.88.0.12", "Via: 1.1 x", "X-Real-IP: 10.88.0.12"):
        assert web.ask("-H", relayed).status == 400
    assert web.approve(site.events["db"]).status == 400
    assert web.ask("-H", 'If-None-Match: "2"').status == 304
    assert web.approve(site.events["web"]).status == 200
    assert approvals(lab.folder) == [("web", "web/web-0", "127.0.0.1 by proxy")]
    assert web.ask(url="http://169.254.169.254/latest/meta-data/").body == "nova /latest/meta-data/"
    assert web.ask(url="http://169.254.169.254/openstack").body == "nova /openstack"


def test_haproxy_passes_on_what_the_agent_signed(site: Site) -> None:
    """A signed id gets its document without a Metadata header, an answer has a type, a forged id gets 404."""
    lab = site.lab
    lab.write({"haproxy.cfg": block("Behind Neutron's metadata agent", "haproxy.cfg")})
    lab.start(site.host, ["haproxy", "-db", "-f", "haproxy.cfg"])
    until(lambda: listening(site.host, 8774) and listening(site.host, 8775))
    url = URL.replace("169.254.169.254", "127.0.0.1:8774")

    def agent(signed: str, named: str, *options: str, forwarded: int = 1) -> tuple[int, str]:
        """Send a request as the agent does, without the guest's own headers."""
        signature = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).hexdigest()
        headers = ["-H", "Metadata:", "-H", f"X-Instance-ID: {named}", "-H", f"X-Instance-ID-Signature: {signature}"]
        headers += ["-H", "X-Forwarded-For: 10.88.0.11"] * forwarded
        reply = site.host.ask(*headers, *options, url=url)
        return reply.status, reply.body

    status, body = agent(WEB, WEB)
    assert (status, [event["EventId"] for event in json.loads(body)["Events"]]) == (200, [site.events["web"]])
    assert agent(DB, WEB)[0] == 404
    assert agent(WEB, WEB, forwarded=2)[0] == 404
    approval = json.dumps({"StartRequests": [{"EventId": site.events["db"]}]})
    assert agent(WEB, WEB, "--data", approval)[0] == 400
    status, head = agent(DB, DB, "--data", approval, "--include")
    assert status == 200
    assert "content-type: application/json" in head.lower()
    assert approvals(lab.folder)[-1] == ("db", "db/db-0", "127.0.0.1 by proxy")
    assert site.host.ask(url="http://127.0.0.1:8774/openstack/latest").body == "nova /openstack/latest"
