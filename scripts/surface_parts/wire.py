"""What guests see, byte by byte: a fixed list of requests on real sockets, to `serve` and to `emulate`, on a manual clock."""

import json
import socket
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from scripts.surface_parts.checkout import FLEET, TOKEN, Checkout, Normal, Served

VERSION = "2020-07-01"
VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", VERSION)
PATH = "/metadata/scheduledevents"
WITHIN_S = 30.0


def request(
    method: str, target: str, *headers: str, body: str | None = None, metadata: str = "true", host: str = "127.0.0.1"
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *([f"Metadata: {metadata}"] if metadata else []), *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body.encode())}")
    return "\r\n".join([*lines, "", body or ""]).encode()


def exchange(guest: str, address: str, sent: bytes) -> bytes:
    """The whole answer to one request, from a connection of its own with that source address."""
    place = urlsplit(guest)
    with socket.create_connection((str(place.hostname), place.port or 80), WITHIN_S, (address, 0)) as connection:
        connection.settimeout(WITHIN_S)
        connection.sendall(sent)
        return answer(connection, b"", head=sent.startswith(b"HEAD"))[0]


def answer(connection: socket.socket, unread: bytes, *, head: bool) -> tuple[bytes, bytes]:
    """One answer, and what came after it."""
    while b"\r\n\r\n" not in unread:
        more = connection.recv(65_536)
        if not more:
            return unread, b""
        unread += more
    end = unread.index(b"\r\n\r\n") + 4
    for line in unread[:end].lower().split(b"\r\n"):
        if line.startswith(b"content-length:") and not head:
            end += int(line.partition(b":")[2])
    while len(unread) < end:
        unread += connection.recv(65_536)
    return unread[:end], unread[end:]


# -- the fixed list

FORMS = (
    # name, sent from, request
    ("unknown caller", "127.0.0.99", request("GET", f"{PATH}?api-version={VERSION}")),
    ("unknown path", "127.0.0.10", request("GET", f"/metadata/none?api-version={VERSION}")),
    ("path in capitals", "127.0.0.10", request("GET", f"/Metadata/ScheduledEvents?api-version={VERSION}&format=json")),
    ("PUT", "127.0.0.10", request("PUT", f"{PATH}?api-version={VERSION}", body="{}")),
    ("DELETE", "127.0.0.10", request("DELETE", f"{PATH}?api-version={VERSION}")),
    *(
        (f"relayed, {header}", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", f"{header}: x"))
        for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "Origin", "Sec-Fetch-Site")
    ),
    ("strange host", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", host="metadata.example")),
    ("parameter twice", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}&api-version={VERSION}")),
    ("no Metadata", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", metadata="")),
    ("Metadata: false", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", metadata="false")),
    ("Metadata: TRUE", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", metadata="TRUE")),
    ("Metadata twice", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", "Metadata: false")),
    *(
        (f"api-version {text}", "127.0.0.10", request("GET", f"{PATH}{text}"))
        for text in ("", "?api-version=", "?api-version=latest", "?api-version={latest}", "?api-version=2018-01-01")
    ),
    ("later api-version", "127.0.0.10", request("GET", f"{PATH}?api-version=2099-01-01")),
    *(
        (f"body {text[:40] or 'empty'}", "127.0.0.10", request("POST", f"{PATH}?api-version={VERSION}", body=text))
        for text in (
            "", "{", "[]", "{}", '{"StartRequests":[]}', '{"StartRequests":{}}', '{"StartRequests":[1]}',
            '{"StartRequests":[{"EventId":1}]}', '{"StartRequests":[{"EventId":"none"}]}',
        )
    ),
    ("101 ids", "127.0.0.10", request("POST", f"{PATH}?api-version={VERSION}", body='{"StartRequests":[' + ",".join(
        ['{"EventId":"00000000-0000-4000-8000-000000000000"}'] * 101) + "]}")),
    ("body too large", "127.0.0.10", request("POST", f"{PATH}?api-version={VERSION}", body=" " * 65_537)),
    ("POST without Metadata", "127.0.0.10", request("POST", f"{PATH}?api-version={VERSION}", body="{}", metadata="")),
    ("not HTTP", "127.0.0.10", b"none\r\n\r\n"),
    ("HTTP/1.0", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}").replace(b"HTTP/1.1", b"HTTP/1.0")),
    ("Connection: close", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", "Connection: close")),
    ("header too large", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", "X: " + "x" * 9_000)),
    ("too many headers", "127.0.0.10", request("GET", f"{PATH}?api-version={VERSION}", *["X: x"] * 70)),
    ("versions", "127.0.0.10", request("GET", "/metadata/versions")),
    *(
        (f"instance {path} {address}", address, request("GET", f"/metadata/instance{path}"))
        for path in (
            "", "?api-version=2021-02-01", "/compute?api-version=2021-02-01",
            "/compute/name?api-version=2021-02-01&format=text",
        )
        for address in ("127.0.0.10", "127.0.0.30", "127.0.0.20")
    ),
)  # fmt: skip


class Talk:
    """Asks as a guest and keeps every answer under a name, ids and times made comparable."""

    def __init__(self, service: Served, normal: Normal) -> None:
        self.service, self.normal = service, normal
        self.kept: dict[str, str] = {}

    def ask(self, name: str, address: str, sent: bytes) -> str:
        assert name not in self.kept, name
        got = exchange(self.service.guest, address, sent).decode()
        self.kept[name] = self.normal.text(got)
        return got

    def documents(self, moment: str, address: str = "127.0.0.10") -> str:
        """In every version, with HEAD, and conditional on the ETag: quoted, weak, bare, another. The ETag."""
        for version in VERSIONS:
            got = self.ask(f"{moment}, {address}, {version}", address, request("GET", f"{PATH}?api-version={version}"))
        etag = got.partition("ETag: ")[2].partition("\r\n")[0]
        target = f"{PATH}?api-version={VERSION}"
        self.ask(f"{moment}, {address}, HEAD", address, request("HEAD", target))
        for form in (etag, f"W/{etag}", etag.strip('"'), '"0"', "null", "*"):
            sent = request("GET", target, f"If-None-Match: {form}")
            self.ask(f"{moment}, {address}, If-None-Match: {form}", address, sent)
        return etag

    def schedule(self, *, kind: str = "Reboot", **targets: object) -> list[str]:
        wanted = {"type": kind, "targets": targets, "description": "a “text”", "duration_s": 9}
        answer = self.service.call("POST", "/v1/maintenances", wanted)
        assert answer.status == 201, answer.body
        self.service.advance()
        return [event["id"] for wave in answer.json["waves"] for event in wave["events"]]

    def approve(self, name: str, address: str, *ids: str, version: str = VERSION, metadata: str = "true") -> None:
        body = json.dumps({"StartRequests": [{"EventId": each} for each in ids]}, separators=(",", ":"))
        self.ask(name, address, request("POST", f"{PATH}?api-version={version}", body=body, metadata=metadata))
        self.service.advance()

    def order(self, event: str, verb: str) -> None:
        body = {"reason": "no"} if verb == "fail" else None
        assert self.service.call("POST", f"/v1/orders/{event}/{verb}", body).status == 200
        self.service.advance()


def talk_of_life(talk: Talk) -> None:
    """From the first document through approval, work and its end; every type of event, every kind of scope."""
    for name, address, sent in FORMS:
        talk.ask(name, address, sent)
    for address in ("127.0.0.12", "127.0.0.20", "127.0.0.30", "127.0.0.40"):
        talk.ask(f"first GET, {address}", address, request("GET", f"{PATH}?api-version={VERSION}"))
    etag = talk.documents("empty")
    target = f"{PATH}?api-version={VERSION}"
    talk.ask("long poll ends", "127.0.0.10", request("GET", target, f"If-None-Match: {etag}", "Prefer: wait=1"))
    talk.ask("long poll without a match", "127.0.0.10", request("GET", target, 'If-None-Match: "0"', "Prefer: wait=9"))
    first, second = talk.schedule(scope="shop")
    talk.documents("scheduled")
    for kind, machine in (("Freeze", "pool/vm-0"), ("Preempt", "pool/vm-0"), ("Terminate", "pool/vm-0")):
        talk.schedule(kind=kind, machines=[machine])
    talk.documents("every type", "127.0.0.30")
    talk.schedule(kind="Redeploy", machines=["cloud/FrontEnd_IN_0"])
    talk.documents("cloud service", "127.0.0.40")
    talk.approve("approve a stranger's", "127.0.0.12", first)
    talk.approve("approve one known and one not", "127.0.0.10", first, "00000000-0000-4000-8000-000000000000")
    talk.approve("approve without Metadata, old version", "127.0.0.11", first, version="2017-03-01", metadata="")
    talk.documents("started")
    talk.approve("approve again", "127.0.0.10", first.lower(), first)
    talk.order(first, "fail")
    talk.documents("failed")
    assert talk.service.call("POST", f"/v1/events/{first}/finish").status == 200
    talk.service.advance()
    talk.documents("second wave")
    talk.approve("approve what ended", "127.0.0.10", first)
    talk.service.advance(901)
    talk.documents("second started by time")
    talk.order(second, "finish")
    talk.documents("over")


def rate_limit(service: Served, normal: Normal) -> dict[str, str]:
    """Twelve requests at once from one machine: five are answered, then one is turned away."""
    place = urlsplit(service.guest)
    sent = request("GET", f"{PATH}?api-version={VERSION}")
    answers: list[bytes] = []
    with socket.create_connection((str(place.hostname), place.port or 80), WITHIN_S, ("127.0.0.13", 0)) as connection:
        connection.settimeout(WITHIN_S)
        connection.sendall(sent * 12)
        unread = b""
        while len(answers) < 12 and not (answers and b" 429 " in answers[-1][:20]):
            got, unread = answer(connection, unread, head=False)
            assert got
            answers.append(got)
    statuses = [each.split()[1].decode() for each in answers]
    return {"first five": " ".join(statuses[:5]), "turned away": normal.text(answers[-1].decode())}


def described(checkout: Checkout) -> dict[str, Any]:
    (checkout.home / "fleet.toml").write_text(FLEET)
    common = ("--fleet", "fleet.toml", "--clock", "manual", "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0")
    found: dict[str, Any] = {}
    for name, words, limit in (
        ("serve", ("serve", "--store", "memory:", "--state-dir", "state", *common), "0"),
        ("emulate", ("emulate", "--seed", "1", *common), "0"),
        ("rate limit", ("serve", "--store", "memory:", "--state-dir", "limited", *common), "5"),
    ):
        with checkout.serving(
            *words, FOREWARN_TOKEN=TOKEN, FOREWARN_RATE_LIMIT=limit, FOREWARN_EXECUTOR="external"
        ) as service:
            service.wait_ready()
            normal = Normal(datetime.fromisoformat(service.call("GET", "/v1/clock").json["now"]))
            if name == "rate limit":
                found[name] = rate_limit(service, normal)
                continue
            talk = Talk(service, normal)
            talk_of_life(talk)
            found[name] = talk.kept
            if name == "emulate":
                document = service.call("GET", "/v1/openapi.json").json
                found["calls of the emulator"] = {
                    path: sorted(methods) for path, methods in document["paths"].items() if "emulator" in path
                }
    return found
