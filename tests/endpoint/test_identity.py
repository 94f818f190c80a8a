"""Identification of callers by address, interface, signed instance id or one name, and what the audit says of it."""

import hashlib
import hmac
from pathlib import Path

import pytest

from forewarn.core.errors import InvalidSettings
from forewarn.core.fleet import parse_fleet
from forewarn.core.model import Machine, Scope, ScopeKind
from forewarn.endpoint import identity
from forewarn.endpoint.callers import Callers
from forewarn.endpoint.connection import _plain_address
from forewarn.endpoint.document_state import DocumentState, Moment, ScopeView
from forewarn.store import AuditQuery, MachineIdentity
from tests.support.builders import START
from tests.support.guest_service import (
    FLEET,
    OPERATOR,
    STRANGER,
    URL,
    VM,
    WEB_0,
    WEB_1,
    Serving,
    body,
    get,
    post,
    serving,
    status,
)
from tests.support.waiting import until

NAME = "/metadata/instance/compute/name?api-version=2020-09-01&format=text"
SECRET = "a secret of more than sixteen bytes"
PROXY = "127.0.0.50"


def sign(instance_id: str, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), instance_id.encode(), hashlib.sha256).hexdigest()


def signed(instance_id: str, *more: str, url: str = NAME) -> bytes:
    return get(url, f"X-Instance-ID: {instance_id}", f"X-Instance-ID-Signature: {sign(instance_id)}", *more)


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def approvals(served: Serving) -> list[tuple[str, str]]:
    entries = served.store.audit(AuditQuery(limit=100))
    return [(e.who, e.origin) for e in entries if e.action == "event approved"]


def test_a_machine_is_identified_by_its_address() -> None:
    """Each address is one machine, an unknown address gets 404, and the audit names the address."""
    with serving() as served:
        assert [body(served.client(address).ask(get(NAME))) for address in (WEB_0, WEB_1, VM)] == [
            b"web-0",
            b"web-1",
            b"vm",
        ]
        assert status(served.client(STRANGER).ask(get(NAME))) == 404
        client = served.client(WEB_1)
        assert status(client.ask(get())) == 200
        assert status(client.ask(post(served.reboot("shop", "web-0")))) == 200
        assert approvals(served) == [("shop/web-1", "127.0.0.11 by address")]


def test_addresses_are_normalised() -> None:
    """IPv4 through an IPv6 socket is IPv4, and a zone is no part of an address."""
    hosts = ["::ffff:10.0.0.4", "fe80::1%eth0", "fd00::4", "10.0.0.5"]
    assert [_plain_address(host) for host in hosts] == ["10.0.0.4", "fe80::1", "fd00::4", "10.0.0.5"]


INTERFACE_FLEET = """
[[scopes]]
name = "tenant"
kind = "availability-set"
[[machines]]
scope = "tenant"
name = "tap"
interface = "lo"
[[machines]]
scope = "tenant"
name = "tap-with-address"
interface = "lo"
addresses = ["127.0.0.60"]
[[machines]]
scope = "tenant"
name = "elsewhere"
addresses = ["127.0.0.61"]
"""


def callers_at_bridge() -> tuple[Callers, MachineIdentity, MachineIdentity, ScopeView]:
    """A machine that has a whole interface and one that has an address there; the first is loaded, the second is not yet."""
    callers, view = Callers(), ScopeView(DocumentState(Scope(name="lab", kind=ScopeKind.STANDALONE), ()), Moment(START))
    router = MachineIdentity.of(Machine(scope="lab", name="router", interface="br0"))
    web = MachineIdentity.of(Machine(scope="lab", name="web", interface="br0", addresses=("10.0.0.5",)))
    callers.put(router, view)
    return callers, router, web, view


def test_no_other_machine_is_taken_for_one_that_is_not_loaded() -> None:
    """A machine with a whole interface answers for its addresses only when all machines are loaded."""
    callers, _, web, view = callers_at_bridge()
    assert callers.at("br0", "10.0.0.5") is None
    callers.put(web, view)
    callers.complete = True
    found, other = callers.at("br0", "10.0.0.5"), callers.at("br0", "10.0.0.6")
    assert found is not None
    assert other is not None
    assert (found.name, other.name) == ("web", "router")


def test_a_machine_that_gets_an_address_gets_its_connections() -> None:
    """The machine with the whole interface gets a new record, so that open connections are identified again."""
    callers, router, web, view = callers_at_bridge()
    callers.complete = True
    before = callers.at("br0", "10.0.0.5")
    assert before is not None
    callers.put(web, view)
    assert before.view is None
    after = callers.at("br0", "10.0.0.6")
    assert after is not None
    assert (after.name, after.view, callers.named("lab", "router")) == ("router", view, after)
    callers.put(web, view)
    callers.put(router, view)
    assert callers.at("br0", "10.0.0.6") is after


def test_a_machine_is_identified_by_its_interface() -> None:
    """The interface counts alone or with an address; an address of another interface does not count."""
    try:
        with serving(INTERFACE_FLEET, guest="127.0.0.1:0@lo") as served:
            assert body(served.client("127.0.0.60").ask(get(NAME))) == b"tap-with-address"
            assert body(served.client("127.0.0.61").ask(get(NAME))) == b"tap"
            client = served.client("127.0.0.62")
            assert status(client.ask(get())) == 200
            assert status(client.ask(post(served.reboot("tenant", "tap")))) == 200
            assert approvals(served) == [("tenant/tap", "127.0.0.62@lo by interface")]
    except InvalidSettings as error:
        pytest.fail(f"this system cannot bind a socket to an interface: {error}")


def test_a_machine_is_identified_by_a_signed_instance_id(secret_file: Path) -> None:
    """A proxy names the machine of each request on one connection, and may add the headers of proxies."""
    with serving(trusted_proxies=PROXY, proxy_secret_file=str(secret_file)) as served:
        proxy = served.client(PROXY)
        assert body(proxy.ask(signed("i-web-0", "X-Forwarded-For: 10.0.0.4"))) == b"web-0"
        assert body(proxy.ask(signed("i-web-1"))) == b"web-1"
        relayed = ("Forwarded: for=10.0.0.4", "Via: 1.1 proxy", "X-Real-IP: 10.0.0.4")
        assert body(proxy.ask(signed("i-web-1", *relayed))) == b"web-1"
        assert status(proxy.ask(signed("i-web-0", url=URL))) == 200
        event_id = served.reboot("shop", "web-0")
        headers = ("X-Instance-ID: i-web-0", f"X-Instance-ID-Signature: {sign('i-web-0').upper()}")
        assert status(proxy.ask(post(event_id, headers=headers))) == 200
        assert approvals(served) == [("shop/web-0", f"{PROXY} by proxy")]
        assert body(served.client(WEB_1).ask(get(NAME))) == b"web-1"


PROXY_FLEET = f"""
[[scopes]]
name = "shop"
kind = "availability-set"
[[machines]]
scope = "shop"
name = "web-0"
addresses = ["{PROXY}"]
instance_id = "i-web-0"
[[machines]]
scope = "shop"
name = "web-1"
instance_id = "i-web-1"
"""


@pytest.mark.parametrize(
    "request_",
    [
        get(NAME),
        get(NAME, "X-Forwarded-For: 10.0.0.4"),
        get(NAME, "X-Instance-ID: i-web-0"),
        get(NAME, f"X-Instance-ID-Signature: {sign('i-web-0')}"),
        get(NAME, "X-Instance-ID: i-web-0", f"X-Instance-ID-Signature: {sign('i-web-1')}"),
        get(NAME, "X-Instance-ID: i-web-0", f"X-Instance-ID-Signature: {sign('i-web-0', 'another secret, also long')}"),
        get(NAME, "X-Instance-ID: i-web-0", "X-Instance-ID-Signature:"),
        get(NAME, "X-Instance-ID: i-web-0", "X-Instance-ID-Signature: \xe9"),
        signed("i-nobody"),
        signed("i-web-0", "X-Instance-ID: i-web-1"),
        signed("i-web-0", f"X-Instance-ID-Signature: {sign('i-web-0')}"),
        signed("i-web-0", "X-Forwarded-For: 10.0.0.4", "X-Forwarded-For: 10.0.0.5"),
        signed("i-web-0", "X-Forwarded-For: 10.0.0.4, 10.0.0.5"),
    ],
)
def test_a_proxys_request_without_a_valid_signature_is_refused(request_: bytes, secret_file: Path) -> None:
    """A missing, forged or repeated id gets 404, even if the proxy's address is a machine's; forgeries are counted."""
    with serving(PROXY_FLEET, trusted_proxies=PROXY, proxy_secret_file=str(secret_file)) as served:
        assert status(served.client(PROXY).ask(request_)) == 404
        assert served.endpoint.counters.unknown == 1
        assert served.endpoint.counters.forged == (b"X-Instance-ID" in request_)


def test_a_valid_signature_counts_only_from_a_proxy(secret_file: Path) -> None:
    """From a machine a signed request gets 400, from an unknown address 404."""
    with serving(trusted_proxies=PROXY, proxy_secret_file=str(secret_file)) as served:
        assert body(served.client(WEB_1).ask(signed("i-web-0"))) == b'{"error":"Bad request. The request was relayed"}'
        assert status(served.client(STRANGER).ask(signed("i-web-0"))) == 404
        assert served.endpoint.counters.forged == 2


def test_a_proxy_may_have_many_connections(secret_file: Path) -> None:
    """The limit of connections per machine does not apply to a proxy; the rate of each machine does."""
    with serving(trusted_proxies=PROXY, proxy_secret_file=str(secret_file), rate_limit=2, stopped=True) as served:
        clients = [served.client(PROXY) for _ in range(20)]
        seen = [status(client.ask(signed("i-web-0"))) for client in clients[:4]]
        assert seen == [200, 200, 429, 429]
        assert status(clients[19].ask(signed("i-web-1"))) == 200


def test_long_polls_through_a_proxy_count_for_the_machine(secret_file: Path) -> None:
    """A machine has four long polls through any proxy connection, and a closed one makes room."""
    with serving(trusted_proxies=PROXY, proxy_secret_file=str(secret_file)) as served:
        wait = ("Prefer: wait=30", 'If-None-Match: "1"')
        assert status(served.client(PROXY).ask(signed("i-web-0", url=URL))) == 200
        caller = served.server.documents.callers.named("shop", "web-0")
        assert caller is not None
        for _ in range(2):
            clients = [served.client(PROXY).send(signed("i-web-0", *wait, url=URL)) for _ in range(4)]
            until(lambda: caller.waiting == 4)
            assert status(served.client(PROXY).ask(signed("i-web-0", *wait, url=URL))) == 304
            for client in clients:
                client.socket.close()
            until(lambda: caller.waiting == 0)


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a comparison does not reveal how much of a forgery is right."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("forewarn.endpoint.identity.hmac.compare_digest", compare)
    trust = identity.Trust(proxies=frozenset({PROXY}), proxy_secret=SECRET.encode())
    assert trust.signed("i-web-0", sign("i-web-0"))
    assert not trust.signed("i-web-0", sign("i-web-1"))
    assert len(compared) == 2
    assert not identity.Trust().signed("i-web-0", hmac.new(b"", b"i-web-0", hashlib.sha256).hexdigest())


def test_every_caller_can_be_one_named_machine() -> None:
    """With `every_caller` each caller is that machine, without a limit of connections, and the audit says so."""
    with serving(every_caller="shop/web-0") as served:
        clients = [served.client(STRANGER) for _ in range(20)]
        assert {body(client.ask(get(NAME))) for client in clients} == {b"web-0"}
        assert status(clients[0].ask(get())) == 200
        assert status(clients[0].ask(post(served.reboot("shop", "web-0")))) == 200
        assert approvals(served) == [("shop/web-0", f"{STRANGER} by named")]


def test_an_unknown_caller_that_becomes_a_machine_is_known_on_its_open_connection() -> None:
    """The next request on an open connection finds a machine that was added meanwhile."""
    with serving("") as served:
        client = served.client(WEB_0)
        assert status(client.ask(get())) == 404
        served.service.control.apply_fleet(parse_fleet(FLEET, "the test"), OPERATOR)
        assert body(client.ask(get(NAME))) == b"web-0"
