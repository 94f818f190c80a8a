"""How the tests use the portal: as a browser does, and as somebody with nothing but HTTP."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import unescape
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Page

from tests.support.running_service import Reply, RunningService

FORM = "application/x-www-form-urlencoded"
MAINTENANCE = {
    "kind": "maintenance",
    "type": "Reboot",
    "target": "scope",
    "scope": "shop",
    "source": "Platform",
    "on_failure": "hold",
}


def log_in(page: Page, url: str, token: str) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Now", exact=True).wait_for()


class Caller:
    """Somebody logged in who sends what they like: `proof` is the one their pages have."""

    def __init__(self, house: RunningService, token: str | None = None) -> None:
        self.house = house
        reply = self._send("POST", "/login", {"token": house.token if token is None else token}, "")
        assert reply.status == 303, reply.raw
        self.set_cookie = reply.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]
        found = re.search(r'name="proof" value="(\w+)"', self.get("/").raw.decode())
        assert found is not None
        self.proof = found[1]

    def get(self, path: str, **headers: str) -> Reply:
        return self.house.request(
            "GET", path, token="", headers={"Cookie": self.cookie, "Accept": "text/html", **headers}
        )

    def post(self, path: str, form: dict[str, str], *, proof: str | None = None, **headers: str) -> Reply:
        return self._send(
            "POST", path, {"proof": self.proof if proof is None else proof, **form}, self.cookie, **headers
        )

    def confirm(self, form: dict[str, str], *, key: str = "") -> Reply:
        """What `form` asks for, looked at and then confirmed, with the key of the page or another."""
        hidden = fields(self.post("/plan", form))
        return self.post("/plan", {**form, "step": "do", "seal": hidden["seal"], "key": key or hidden["key"]})

    def _send(self, method: str, path: str, form: dict[str, str], cookie: str, **headers: str) -> Reply:
        sent = {"Content-Type": FORM, "Accept": "text/html", **({"Cookie": cookie} if cookie else {}), **headers}
        return self.house.request(method, path, urlencode(form), token="", headers=sent)


def stranger_posts(house: RunningService, path: str, form: dict[str, str], **headers: str) -> Reply:
    sent = {"Content-Type": FORM, "Accept": "text/html", **headers}
    return house.request("POST", path, urlencode(form), token="", headers=sent)


def fields(reply: Reply) -> dict[str, str]:
    """The hidden fields of a page's forms."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', reply.raw.decode())
    return {name: unescape(value) for name, value in found}


def words(reply: Reply) -> str:
    """A page as it reads."""
    text = re.sub(r"<script.*?</script>|<title>.*?</title>", " ", reply.raw.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


class Wire:
    """A way to the service that can be cut and mended, and that can hold answers back: its `url` stays."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._target = (str(place.hostname), int(place.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._cut = threading.Event()
        self._answers_flow = threading.Event()
        self._answers_flow.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut.set()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._cut.clear()

    @contextmanager
    def answers_held(self) -> Iterator[None]:
        """Requests reach the service; its answers reach the browser at the end of the block."""
        self._answers_flow.clear()
        try:
            yield
        finally:
            self._answers_flow.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut.is_set():
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                for one, other, answers in ((near, far, False), (far, near, True)):
                    self._open.add(one)
                    threading.Thread(target=self._pump, args=(one, other, answers), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while piece := one.recv(65_536):
                if answers:
                    self._answers_flow.wait()
                other.sendall(piece)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.discard(one)
        one.close()
