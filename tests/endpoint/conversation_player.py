"""Conversations: text files that show every byte a guest sends and gets, held with a listener that really runs.

    # for the reader
    @ COMMAND            something done outside the wire: a command of the stories, or one of those below
    + a line of its input
    : what it shows
    @ shop/web-0         who speaks from here on: a machine, or any address; `shop/web-0#2` is its second connection
    > a line it sends    with CR LF at its end; `>> text` without, `>* 3 text` three times over
                         without, where `\\s` is a space and `\\r\\n` the end of a line
    < a line it gets     with CR LF at its end; `<< text` without
    <...                 nothing comes yet
    <!                   the connection is closed

What is sent up to the next `<` goes out in one piece. Dates are the service clock's, which stands still at
2030-01-01 00:00:00 until it is moved; ids are counted. The time of a wait is real unless `watch` stops it.
"""

import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from forewarn.app.guest_server import GuestServer
from forewarn.app.node import Times
from forewarn.app.service import Service
from forewarn.core.durations import parse_duration
from forewarn.core.fleet import Fleet
from forewarn.core.model import Machine
from forewarn.service.settings import load
from forewarn.store import AuditQuery
from forewarn.testing.stories import Player
from forewarn.testing.story_text import scope_of
from tests.support.guest_service import Client, SteeredClock, WatchedStore, turn
from tests.support.waiting import PATIENCE_S, until

QUIET_S = 0.06
REWRITE_QUIET_S = 0.25
FIRST_S = 1.4
_NEXT_ANSWER = re.compile(rb"(?<=.)(?=HTTP/1\.[01] [0-9]{3} )")


@dataclass(slots=True)
class Turn:
    """What is sent and what is seen of it; `lead` are the lines before, kept as they are."""

    lead: list[str] = field(default_factory=list)
    command: str = ""
    body: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


def parse(text: str) -> Iterator[Turn]:
    turn = Turn()
    for line in text.splitlines():
        begun = bool(turn.command or turn.sent or turn.seen)
        if line[:1] in ("", "#", "@") or (line[:1] == ">" and turn.seen) or (line[:1] == ">" and turn.command):
            if begun:
                yield turn
                turn = Turn()
        elif line[:1] == "<" and turn.command:
            yield turn
            turn = Turn()
        if line[:1] in ("", "#"):
            turn.lead.append(line)
        elif line[:1] == "@":
            turn.command = line[2:]
        elif line[:1] == "+":
            turn.body.append(line[2:])
        else:
            (turn.sent if line[:1] == ">" else turn.seen).append(line)
    yield turn


def hold(text: str, *, rewrite: bool = False) -> str:
    """Hold a conversation; the same text with what was really seen."""
    told: list[str] = []
    with Talk() as talk:
        for turn in parse(text):
            told += turn.lead
            if turn.command:
                told += [f"@ {turn.command}", *(f"+ {line}" for line in turn.body)]
                told += talk.do(turn.command, turn.body)
            else:
                told += [*turn.sent, *talk.speak(turn, rewrite=rewrite)]
        told += talk.left_over()
    return "".join(f"{line}\n" for line in told)


class Talk(Player):
    """The stories' player with a guest side, and clients that speak to it."""

    def __init__(self) -> None:
        self.store = WatchedStore()
        super().__init__(self.store)
        self._flags: dict[str, object] = {}
        self._side: GuestServer | None = None
        self._clients: dict[str, Client] = {}
        self._addresses: dict[str, str] = {}
        self._who = ""
        self._monotonic = SteeredClock()

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.store.away = False
        self._stop()

    @property
    def service(self) -> Service:
        if self._service is None:
            flags = {"store": "memory:", "guest": "127.0.0.1:0", **self._flags}
            self._service = Service(
                load(flags, {}),
                clock=self._clock,
                store=self.store,
                new_id=self._new_id,
                node="here",
                times=Times(monotonic=self._monotonic),
            )
            self._side = GuestServer(self._service)
            self._side.listener.start()
        return self._service

    def do(self, command: str, body: Iterable[str]) -> list[str]:
        """Lines to show, each marked."""
        who = command.partition("#")[0]
        if " " not in command and (who in self._addresses or who.startswith("127.")):
            self._who = command
            return []
        seen = self.play(command, body)
        return [] if seen == "ok\n" else [f": {line}" for line in seen.splitlines()]

    def speak(self, turn: Turn, *, rewrite: bool) -> list[str]:
        client = self._client()
        if turn.sent:
            client.send(b"".join(_sent(line) for line in turn.sent))
        if turn.seen == ["<..."]:
            self._heard(client)
            return ["<..."] if client.quiet(QUIET_S) else _shown(client.unread, closed=False)
        if rewrite:
            data, closed = _all_that_comes(client)
        else:
            data, closed = _as_much_as(client, turn.seen)
        if closed:
            self._clients.pop(self._who).socket.close()
        if not self.store.away:
            self.service.ticker.settle()
        return _shown(data, closed=closed)

    def left_over(self) -> list[str]:
        """What nobody expected: bytes nobody read, a connection closed in silence."""
        lines: list[str] = []
        for who, client in self._clients.items():
            with client.socket:
                client.socket.setblocking(False)
                try:
                    more = client.socket.recv(65_536)
                except BlockingIOError:
                    continue
                except OSError:
                    more = b""
                lines += [f"@ {who}", *_shown(more, closed=not more)]
        return lines

    def _heard(self, client: Client) -> None:
        """Wait until the listener has read what was sent, and has written what it writes because of that."""
        assert self._side is not None
        client.arrived()
        turn(self._side.endpoint.loop)
        self._side._writer.submit(lambda: None).result(PATIENCE_S)
        turn(self._side.endpoint.loop)

    def _client(self) -> Client:
        client = self._clients.get(self._who)
        if client is None:
            who = self._who.partition("#")[0]
            assert self.service
            assert self._side is not None
            port = int(self._side.listener.urls[0].rpartition(":")[2])
            client = self._clients[self._who] = Client(port, self._addresses.get(who, who))
        return client

    def _stop(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self._clients.clear()
        if self._side is not None and self._service is not None:
            self._monotonic.run()
            self._side.stop()
            self._service.close()
        self._side = self._service = None

    # -- commands of our own

    def _do_fleet(self, *, body: tuple[str, ...] = (), prune: str = "no") -> Iterable[str]:
        """As in the stories, with `address=`, `interface=`, `instance_id=` and `fd=` for machines."""
        scopes, machines = {}, {}
        for line in body:
            what, name, *rest = line.split()
            options = dict(pair.split("=", 1) for pair in rest if "=" in pair)
            scope, _, short = name.partition("/")
            if what == "scope":
                scopes[name] = scope_of(name, rest[0], options)
                continue
            self._addresses[name] = options.get("address", "")
            machines[scope, short] = Machine(
                scope=scope,
                name=short,
                update_domain=int(options.get("ud", "0")),
                fault_domain=int(options.get("fd", "0")),
                addresses=(options["address"],) if "address" in options else (),
                instance_id=options.get("instance_id", ""),
            )
        self.service.control.apply_fleet(Fleet(scopes, machines), self._operator, prune=prune == "yes")
        return ()

    def _do_service(self, **options: str) -> None:
        """(Re)start the service, with these settings; what is stored stays."""
        self._flags |= options
        self._stop()
        assert self.service

    def _do_store(self, state: str) -> None:
        self.store.away = state == "away"

    def _do_watch(self, state: str) -> None:
        """What rates and waits are measured with: `stopped`, then moved by hand, like `+200ms`."""
        if state == "stopped":
            self._monotonic.stop()
            return
        assert self._side is not None
        moved_s = float(state[1:-2]) / 1000 if state.endswith("ms") else parse_duration(state[1:])
        self._monotonic.move(moved_s, self._side.endpoint.loop)

    def _do_hang_up(self) -> None:
        """Close the connection; goes on when that was noticed."""
        assert self._side is not None
        connections = self._side.endpoint.connections
        before = len(connections)
        self._clients.pop(self._who).socket.close()
        until(lambda: len(connections) < before)

    def _do_send_no_more(self) -> None:
        """Close the half we send on."""
        self._client().socket.shutdown(socket.SHUT_WR)

    def _do_counters(self, *names: str) -> Iterable[str]:
        assert self._side is not None
        return [f"{name} {getattr(self._side.endpoint.counters, name)}" for name in names]

    def _do_origins(self) -> Iterable[str]:
        """Who approved, from where, known in which way."""
        entries = reversed(self.store.audit(AuditQuery(limit=100)))
        return [
            f"{e.who}: {e.action} from {e.origin or 'here'}"
            for e in entries
            if e.action in ("event approved", "scope enabled")
        ]


def _sent(line: str) -> bytes:
    if line.startswith(">* "):
        times, _, text = line[3:].partition(" ")
        return int(times) * text.replace("\\s", " ").replace("\\r\\n", "\r\n").encode()
    return line[3:].encode() if line.startswith(">>") else line[2:].encode() + b"\r\n"


def _bytes_of(seen: Iterable[str]) -> bytes:
    lines = [line for line in seen if line[:2] in ("< ", "<<") or line == "<"]
    return b"".join(_sent(line.replace("<", ">", 2 if line.startswith("<<") else 1)) for line in lines)


def _shown(data: bytes, *, closed: bool) -> list[str]:
    lines: list[str] = []
    for answer in _NEXT_ANSWER.split(data) if data else ():
        *whole, rest = answer.split(b"\r\n")
        lines += [f"< {line.decode()}".rstrip(" ") for line in whole]
        lines += [f"<< {rest.decode()}"] if rest else []
    return [*lines, "<!"] if closed else lines


def _all_that_comes(client: Client) -> tuple[bytes, bool]:
    client.socket.settimeout(FIRST_S)
    closed = False
    try:
        while client._more():
            client.socket.settimeout(REWRITE_QUIET_S)
        closed = True
    except TimeoutError:
        pass
    client.socket.settimeout(FIRST_S)
    data, client.unread = client.unread, b""
    return data, closed


def _as_much_as(client: Client, seen: list[str]) -> tuple[bytes, bool]:
    size, closes = len(_bytes_of(seen)), "<!" in seen
    client.socket.settimeout(PATIENCE_S)
    closed = False
    try:
        while (len(client.unread) < size or closes) and not closed:
            closed = not client._more()
    except TimeoutError:
        pass
    data, client.unread = client.unread, b""
    return data, closed
