"""Plays conversations: text files that show every byte a guest sends and receives, against a running listener.

    # a comment
    @ COMMAND            an act outside the connection: a command of the stories, or one of those below
    + a line of its input
    : a line of its output
    @ shop/web-0         which client sends from here on: a machine or an address; `shop/web-0#2` is its second connection
    > a line it sends    with CR LF at its end; `>> text` without, `>* 3 text` three times over
                         without, where `\\s` is a space and `\\r\\n` the end of a line
    < a line it receives with CR LF at its end; `<< text` without
    <...                 nothing arrives yet
    <!                   the connection is closed

The lines up to the next `<` are sent in one piece. Dates are the service clock's, which stands still at
2030-01-01 00:00:00 until a command moves it; ids are numbered. The time of a wait is real unless `watch` stops it.
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
    """The lines of one command or one exchange of bytes; `lead` are the comments and empty lines before it."""

    lead: list[str] = field(default_factory=list)
    command: str = ""
    body: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)


def parse(text: str) -> Iterator[Turn]:
    turn = Turn()
    for line in text.splitlines():
        started = bool(turn.command or turn.sent or turn.received)
        if line[:1] in ("", "#", "@") or (line[:1] == ">" and turn.received) or (line[:1] == ">" and turn.command):
            if started:
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
            (turn.sent if line[:1] == ">" else turn.received).append(line)
    yield turn


def play(text: str, *, rewrite: bool = False) -> str:
    """Play a conversation; return the same text with the bytes that were really received."""
    lines: list[str] = []
    with ConversationPlayer() as player:
        for turn in parse(text):
            lines += turn.lead
            if turn.command:
                lines += [f"@ {turn.command}", *(f"+ {line}" for line in turn.body)]
                lines += player.do(turn.command, turn.body)
            else:
                lines += [*turn.sent, *player.exchange(turn, rewrite=rewrite)]
        lines += player.left_over()
    return "".join(f"{line}\n" for line in lines)


class ConversationPlayer(Player):
    """The stories' player with a guest server, and clients of it."""

    def __init__(self) -> None:
        self.store = WatchedStore()
        super().__init__(self.store)
        self._flags: dict[str, object] = {}
        self._server: GuestServer | None = None
        self._clients: dict[str, Client] = {}
        self._addresses: dict[str, str] = {}
        self._client_name = ""
        self._monotonic = SteeredClock()

    def __enter__(self) -> "ConversationPlayer":
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
            self._server = GuestServer(self._service, stop_within_s=PATIENCE_S, last_writes_within_s=PATIENCE_S)
            self._server.endpoint.max_queued_s = PATIENCE_S
            self._server.start()
        return self._service

    def do(self, command: str, body: Iterable[str]) -> list[str]:
        """Carry out a command; return the lines of its output, each marked."""
        who = command.partition("#")[0]
        if " " not in command and (who in self._addresses or who.startswith("127.")):
            self._client_name = command
            return []
        output = self.play(command, body)
        return [] if output == "ok\n" else [f": {line}" for line in output.splitlines()]

    def exchange(self, turn: Turn, *, rewrite: bool) -> list[str]:
        """Send what the turn sends; return what was received, as lines of the text."""
        client = self._client()
        if turn.sent:
            client.send(b"".join(_sent(line) for line in turn.sent))
        if turn.received == ["<..."]:
            self._wait_until_handled(client)
            return ["<..."] if client.quiet(QUIET_S) else _as_lines(client.unread, closed=False)
        if rewrite:
            data, closed = _receive_everything(client)
        else:
            data, closed = _receive_expected(client, turn.received)
        if closed:
            self._clients.pop(self._client_name).socket.close()
        if not self.store.away:
            self.service.ticker.cycle_until_idle()
        return _as_lines(data, closed=closed)

    def left_over(self) -> list[str]:
        """Return what the text does not expect: unread bytes, and connections that were closed."""
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
                lines += [f"@ {who}", *_as_lines(more, closed=not more)]
        return lines

    def _wait_until_handled(self, client: Client) -> None:
        """Wait until the listener has read what the client sent, and the writer has done the writes that follow."""
        assert self._server is not None
        client.arrived()
        turn(self._server.endpoint.loop)
        self._server._writer.submit(lambda: None).result(PATIENCE_S)
        turn(self._server.endpoint.loop)

    def _client(self) -> Client:
        client = self._clients.get(self._client_name)
        if client is None:
            who = self._client_name.partition("#")[0]
            assert self.service
            assert self._server is not None
            port = int(self._server.listener.urls[0].rpartition(":")[2])
            client = self._clients[self._client_name] = Client(port, self._addresses.get(who, who))
        return client

    def _stop(self) -> None:
        for client in self._clients.values():
            client.socket.close()
        self._clients.clear()
        if self._server is not None and self._service is not None:
            self._monotonic.run()
            self._server.stop()
            self._service.close()
        self._server = self._service = None

    # -- commands beside those of the stories

    def _do_fleet(self, *, body: tuple[str, ...] = (), prune: str = "no") -> Iterable[str]:
        """Apply a fleet as the stories do, with `address=`, `instance_id=` and `fd=` for machines."""
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
        """Start the service, or start it again on the same store, with these settings."""
        self._flags |= options
        self._stop()
        assert self.service

    def _do_store(self, state: str) -> None:
        self.store.away = state == "away"

    def _do_watch(self, state: str) -> None:
        """Stop the monotonic clock, which measures rates and waits, or move it, like `+200ms`."""
        if state == "stopped":
            self._monotonic.stop()
            return
        assert self._server is not None
        moved_s = float(state[1:-2]) / 1000 if state.endswith("ms") else parse_duration(state[1:])
        self._monotonic.move(moved_s, self._server.endpoint.loop)

    def _do_hang_up(self) -> None:
        """Close the connection, and wait until the listener has noticed."""
        assert self._server is not None
        connections = self._server.endpoint.connections
        before = len(connections)
        self._clients.pop(self._client_name).socket.close()
        until(lambda: len(connections) < before)

    def _do_send_no_more(self) -> None:
        """Close the client's sending half."""
        self._client().socket.shutdown(socket.SHUT_WR)

    def _do_counters(self, *names: str) -> Iterable[str]:
        assert self._server is not None
        return [f"{name} {getattr(self._server.endpoint.counters, name)}" for name in names]

    def _do_origins(self) -> Iterable[str]:
        """List who enabled and approved, from which address, and how the caller was identified."""
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


def _bytes_of(received: Iterable[str]) -> bytes:
    lines = [line for line in received if line[:2] in ("< ", "<<") or line == "<"]
    return b"".join(_sent(line.replace("<", ">", 2 if line.startswith("<<") else 1)) for line in lines)


def _as_lines(data: bytes, *, closed: bool) -> list[str]:
    lines: list[str] = []
    for answer in _NEXT_ANSWER.split(data) if data else ():
        *whole, rest = answer.split(b"\r\n")
        lines += [f"< {line.decode()}".rstrip(" ") for line in whole]
        lines += [f"<< {rest.decode()}"] if rest else []
    return [*lines, "<!"] if closed else lines


def _receive_everything(client: Client) -> tuple[bytes, bool]:
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


def _receive_expected(client: Client, expected: list[str]) -> tuple[bytes, bool]:
    size, closes = len(_bytes_of(expected)), "<!" in expected
    client.socket.settimeout(PATIENCE_S)
    closed = False
    try:
        while (len(client.unread) < size or closes) and not closed:
            closed = not client._more()
    except TimeoutError:
        pass
    data, client.unread = client.unread, b""
    return data, closed
