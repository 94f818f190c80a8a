"""Real HAProxy and nginx in front of small services, all on Unix sockets in a folder."""

import contextlib
import os
import queue
import shutil
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forewarn.guest.handlers.haproxy_runtime import ServerState, server_states
from forewarn.guest.sockets import Deadline, ask
from tests.support.waiting import PATIENCE_S, until

BACKENDS = ("web-0", "web-1")
# The requests that a service holds, in the order in which they came: the service's name, and what lets the request go.
Requests = queue.Queue[tuple[str, threading.Event]]
HAPROXY = """
global
  stats socket {folder}/{name}.sock level {level}
defaults
  mode http
  retries 0
  timeout connect 2s
  timeout client 10m
  timeout server 10m
frontend all
  bind unix@{folder}/{name}.front
  default_backend web
backend web
  balance roundrobin
  server web-0 unix@{folder}/web-0 check inter 200ms
  server web-1 unix@{folder}/web-1 check inter 200ms
"""
NGINX = """
user root;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log notice;
worker_processes 2;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/tmp; proxy_temp_path {folder}/tmp; fastcgi_temp_path {folder}/tmp;
  uwsgi_temp_path {folder}/tmp; scgi_temp_path {folder}/tmp;
  upstream web {{ include {folder}/web.conf; }}
  server {{ listen unix:{folder}/nginx.front; location / {{ proxy_pass http://web; proxy_next_upstream off; }} }}
}}
"""


class Service(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers every request with its name; a request for /hold waits until it is released."""

    daemon_threads = True
    request_queue_size = 1024  # of all health checks that come while this process stands still

    def __init__(self, folder: Path, name: str, held: Requests) -> None:
        self.name = name
        self.held = held
        self.waiting: list[threading.Event] = []
        super().__init__(f"{folder}/{name}", _Answer)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        for let_go in self.waiting:
            let_go.set()
        self.shutdown()
        self.server_close()


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Service)
        first = self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        if b"/hold" in first:
            let_go = threading.Event()
            self.server.waiting.append(let_go)
            self.server.held.put((self.server.name, let_go))
            let_go.wait()
        body = self.server.name.encode()
        with contextlib.suppress(OSError):
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )


def get(front: Path, path: str = "/") -> str:
    """Return the name of the service that answered, or the status when it is not 200."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(PATIENCE_S)
        asking.connect(str(front))
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        whole = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
    status = whole.split()[1]
    return whole.rpartition("\r\n\r\n")[2] if status == "200" else status


class OpenRequest:
    """A request that stays open until its service releases it."""

    def __init__(self, front: Path, service: Service) -> None:
        """Send requests until this service has exactly one open."""
        self._answers = list[str]()
        self._threads: list[threading.Thread] = []
        while True:
            ask_ = threading.Thread(target=lambda: self._answers.append(get(front, "/hold")), daemon=True)
            ask_.start()
            self._threads.append(ask_)
            name, self._let_go = service.held.get(timeout=PATIENCE_S)
            if name == service.name:
                return
            self._let_go.set()

    def answers(self) -> list[str]:
        self._let_go.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return sorted(self._answers)


class Pool:
    """Two services in a folder, and the proxies in front of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        held: Requests = queue.Queue()
        self.services = {name: Service(folder, name, held) for name in BACKENDS}
        self._started: list[subprocess.Popen[bytes]] = []

    # -- HAProxy

    def haproxy(self, name: str = "one", level: str = "admin") -> str:
        """Start an HAProxy, wait until it uses both services, and return its runtime socket."""
        proxy = self.start_haproxy(name, level)
        until(lambda: all(seen.usable for seen in server_states(proxy, "web", Deadline(PATIENCE_S)).values()))
        return proxy

    def start_haproxy(self, name: str = "one", level: str = "admin") -> str:
        """Start an HAProxy and return its runtime socket. A step that waits for the proxy may change it at once."""
        (self.folder / f"{name}.cfg").write_text(HAPROXY.format(folder=self.folder, name=name, level=level))
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(["haproxy", "-db", "-f", f"{self.folder}/{name}.cfg"], stdout=log, stderr=log)
        self._started.append(process)
        proxy = f"{self.folder}/{name}.sock"
        until(lambda: self._answers(proxy), detail=(self.folder / f"{name}.log").read_text)
        return proxy

    def stop(self, name: str = "one") -> None:
        for process in self._started:
            if f"{self.folder}/{name}.cfg" in process.args:  # type: ignore[operator]
                process.kill()
                process.wait()

    @staticmethod
    def _answers(proxy: str) -> bool:
        try:
            return "web-0" in ask(proxy, "show servers state web", Deadline(PATIENCE_S))
        except OSError:
            return False

    @staticmethod
    def server_state(proxy: str, name: str = "web-0") -> ServerState:
        return server_states(proxy, "web", Deadline(PATIENCE_S))[name]

    @staticmethod
    def set_state(proxy: str, state: str, name: str = "web-0") -> None:
        assert ask(proxy, f"set server web/{name} state {state}", Deadline(PATIENCE_S)).strip() == ""

    def front(self, name: str = "one") -> Path:
        return self.folder / f"{name}.front"

    # -- nginx

    @property
    def include(self) -> Path:
        return self.folder / "web.conf"

    @property
    def nginx_command(self) -> list[str]:
        return ["nginx", "-c", f"{self.folder}/nginx.conf", "-e", f"{self.folder}/nginx.log"]

    def nginx(self) -> None:
        """Start nginx, which becomes a daemon."""
        (self.folder / "nginx.conf").write_text(NGINX.format(folder=self.folder))
        lines = [f"  server unix:{self.folder}/{name} max_fails=0;\n" for name in BACKENDS]
        if not self.include.exists():
            self.include.write_text("# the pool, one a line\r\n" + "".join(lines))
        subprocess.run(self.nginx_command, check=True, timeout=PATIENCE_S)
        until(lambda: len(self.nginx_pids()) >= 3)

    def nginx_pids(self) -> list[int]:
        """Return the pids of the master and its workers."""
        from forewarn.guest.handlers.pid_files import running_pid
        from forewarn.guest.processes import alive, children

        master = running_pid(f"{self.folder}/nginx.pid", "")
        return [master, *(pid for pid, _ in children(master))] if master and alive(master) else []

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for pid in self.nginx_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for service in self.services.values():
            service.close()


@contextmanager
def pool() -> Iterator[Pool]:
    """Run a pool in a folder with a short name, because socket paths are limited."""
    folder = Path(tempfile.mkdtemp(prefix="fw-"))
    made = Pool(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


class Relay:
    """Relays between the agent and a proxy's runtime socket, and misbehaves on demand.

    pass: everything goes through; hang: nothing is answered; trickle: a byte now and then; lie: `set` is answered as if it
    had been done; garble, nothing: so are the answers. `hang_at` hangs at the first command after one that has this text in it;
    `scur` is what a count of sessions reads instead, and "": web-0 has no line. `passed` is set once an answer went through.
    """

    def __init__(self, proxy: str) -> None:
        self.address = f"{proxy}.relay"
        self.mode = "pass"
        self.hang_at = ""
        self.scur: str | None = None
        self.hung, self.passed = threading.Event(), threading.Event()
        self._proxy, self._over = proxy, threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, talking: socket.socket) -> None:
        with talking, contextlib.suppress(OSError):
            line = talking.makefile().readline().strip()
            if self.mode == "hang":
                self.hung.set()
                self._over.wait()
            elif self.mode == "trickle":
                while not self._over.wait(0.1):
                    talking.sendall(b"#")
            elif self.mode in ("garble", "nothing"):
                talking.sendall(b"# scur,srv_admin_state srv_admin_state\n1 1\n" if self.mode == "garble" else b"")
            elif self.mode == "lie" and line.startswith("set "):
                talking.sendall(b"\n")
            else:
                answer = ask(self._proxy, line, Deadline(PATIENCE_S))
                self.passed.set()
                if self.hang_at and self.hang_at in line:  # before the answer, after which the next command comes
                    self.mode, self.hang_at = "hang", ""
                talking.sendall((self._miscounted(answer) if line.startswith("show stat") else answer).encode())

    def _miscounted(self, answer: str) -> str:
        if self.scur is None:
            return answer
        titles, *rows = answer.splitlines()
        at = titles.split(",").index("scur")
        cells = [row.split(",") for row in rows if "web-0" not in row or self.scur]
        return "\n".join(
            [titles, *(",".join([*row[:at], self.scur or "0", *row[at + 1 :]]) for row in cells if row[1:])]
        )

    def heal(self) -> None:
        """Stop misbehaving, and release what hangs."""
        self.mode = "pass"

    def close(self) -> None:
        self._over.set()
        # Wakes up whoever waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        Path(self.address).unlink(missing_ok=True)


@contextmanager
def relay(proxy: str) -> Iterator[Relay]:
    made = Relay(proxy)
    try:
        yield made
    finally:
        made.close()
