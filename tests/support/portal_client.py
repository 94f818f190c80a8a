"""A client of the portal without a browser: it logs in, reads pages and submits forms."""

import re
from html import unescape
from urllib.parse import urlencode

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
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class PortalClient:
    """A logged-in client; `proof` is the one in the forms of its pages."""

    def __init__(self, service: RunningService, token: str | None = None) -> None:
        self.service = service
        reply = post_without_login(service, "/login", {"token": service.token if token is None else token})
        assert reply.status == 303, reply.raw
        self.set_cookie = reply.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]
        proof = re.search(r'name="proof" value="(\w+)"', self.get("/").raw.decode())
        assert proof is not None
        self.proof = proof[1]

    def get(self, path: str, **headers: str) -> Reply:
        sent = {"Cookie": self.cookie, "Accept": "text/html", **headers}
        return self.service.request("GET", path, token="", headers=sent)

    def post(self, path: str, form: dict[str, str], *, proof: str | None = None, **headers: str) -> Reply:
        fields = {"proof": self.proof if proof is None else proof, **form}
        return post_without_login(self.service, path, fields, Cookie=self.cookie, **headers)

    def confirm(self, form: dict[str, str], *, key: str = "", accept: str = "yes") -> Reply:
        """Submit the plan form, then confirm its preview and its warnings with the key of the page or another."""
        hidden = hidden_fields(self.post("/plan", form))
        confirmed = {"step": "do", "seal": hidden["seal"], "key": key or hidden["key"], "accept": accept}
        return self.post("/plan", {**form, **confirmed})


def post_without_login(service: RunningService, path: str, form: dict[str, str], **headers: str) -> Reply:
    sent = {"Content-Type": FORM, "Accept": "text/html", **headers}
    return service.request("POST", path, urlencode(form), token="", headers=sent)


def hidden_fields(reply: Reply) -> dict[str, str]:
    """Return the hidden fields of a page's forms."""
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', reply.raw.decode())
    return {name: unescape(value) for name, value in fields}


def page_text(reply: Reply) -> str:
    """Return the text of a page without its markup."""
    text = re.sub(r"<script.*?</script>|<title>.*?</title>", " ", reply.raw.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
