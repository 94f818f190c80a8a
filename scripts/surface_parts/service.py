"""The operator's side of a service on a manual clock: the OpenAPI document, roles, one fixed play of calls and commands,
metrics, and the rows that the play leaves in the store.
"""

import json
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from scripts.surface_parts.checkout import (
    FLEET,
    TOKEN,
    Answer,
    Checkout,
    Normal,
    Program,
    Served,
    column,
    shape,
    without_human_text,
)
from scripts.surface_parts.wire import VERSION, exchange, request

NOBODY = "00000000-0000-4000-8000-000000000000"
# Headers of every answer, or that say how long it is.
USUAL = {"date", "content-length", "connection"}
# In rows: hashes of secrets, the command line's idempotency keys, sealed tokens, and sentences in answers that are kept.
_LEFT_OUT = re.compile(
    r"\(secret [0-9]+\)|(?<=\"key\": \")[0-9a-f]{32}|(?<=sealed\\\":\\\")[A-Za-z0-9+/=]+|(?<=message\\\":\\\")[^\\]+"
)


# -- the OpenAPI document


def openapi(document: dict[str, Any]) -> dict[str, Any]:
    """Names, kinds and flags; no human text."""
    schemas = {name: schema_of(each) for name, each in document["components"]["schemas"].items()}
    paths = {
        path: {method: _operation(each) for method, each in methods.items()}
        for path, methods in document["paths"].items()
    }
    return {"schemas": schemas, "paths": paths, "security": json.dumps(document.get("security"))}


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": operation["operationId"],
        "parameters": {
            f"{each['in']} {each['name']}": {"required": each["required"], "schema": schema_of(each["schema"])}
            for each in operation.get("parameters", ())
        },
        "body": _body(operation.get("requestBody")),
        "responses": {status: _content(each) for status, each in operation["responses"].items()},
    }


def _body(body: dict[str, Any] | None) -> Any:
    return None if body is None else {"required": body.get("required", False), **_content(body)}


def _content(holder: dict[str, Any]) -> dict[str, Any]:
    return {kind: schema_of(each["schema"]) for kind, each in holder.get("content", {}).items()}


def schema_of(schema: Any) -> Any:
    """`required` becomes a flag of each property, so that a newly required one is a change and no addition."""
    if isinstance(schema, list):
        return [schema_of(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            required = schema.get("required", ())
            found[key] = {name: {"required": name in required, **schema_of(each)} for name, each in value.items()}
        elif key not in ("description", "summary", "title", "example", "examples", "required"):
            found[key] = schema_of(value)
    return found


def roles(service: Served, document: dict[str, Any], tokens: dict[str, str]) -> dict[str, Any]:
    """Who may make which call: those whom it is not refused to with 401 or 403."""
    found: dict[str, Any] = {}
    for path, methods in document["paths"].items():
        if path == "/v1/stream":
            continue
        where = path.replace("{scope}", "shop").replace("{name}", "none").replace("{id}", NOBODY)
        for method in methods:
            statuses = {name: service.call(method.upper(), where, token=token).status for name, token in tokens.items()}
            found[f"{method.upper()} {path}"] = {
                name: "refused" if status in (401, 403) else "allowed" for name, status in statuses.items()
            }
    return found


# -- the play


class Play:
    """Makes calls and keeps every answer under a name. Ids, times and secrets are made comparable."""

    def __init__(self, service: Served, normal: Normal, forewarn: Program) -> None:
        self.service, self.normal, self.forewarn = service, normal, forewarn
        self.calls: dict[str, Any] = {}
        self.commands: dict[str, Any] = {}
        self.waiting: set[str] = set()

    def call(self, name: str, method: str, path: str, body: object = None, **more: str) -> Answer:
        """Make a call and keep its answer. When this returns everything due has happened, as in every other run."""
        answer = self.service.call(method, path, body, **more)
        assert name not in self.calls, name
        kind = answer.headers.get("content-type", "")
        content: Any = self.normal.text(answer.body)
        if kind.startswith("application/json"):
            content = without_human_text(json.loads(content))
        elif kind.startswith("text/html"):
            content = "(page)"
        if method != "GET" and answer.status < 300:
            # The ticker may act before the answer is made: only the names of its fields are the same in every run.
            content = sorted(content) if isinstance(content, dict) else content
            self.service.advance()
        headers = {key: self.normal.text(value) for key, value in answer.headers.items() if key not in USUAL}
        self.calls[name] = {"status": answer.status, "headers": headers, "body": content}
        return answer

    def record_state(self, name: str) -> None:
        """Keep every event and order as they are now."""
        found = self.call(f"{name}: events", "GET", "/v1/events?limit=100").json
        self.waiting |= {each["code"] for event in found["items"] for each in event["waiting_for"]}
        self.call(f"{name}: orders", "GET", "/v1/orders?limit=100")

    def schedule(self, name: str, **wanted: Any) -> list[str]:
        """Schedule a maintenance a second after the last; return its id and those of its events."""
        self.service.advance(
            1
        )  # of two with the same NotBefore the one with the lower id comes first, and ids are random
        answer = self.call(name, "POST", "/v1/maintenances", wanted).json
        return [answer["id"], *(event["id"] for wave in answer["waves"] for event in wave["events"])]

    def guest(self, address: str, method: str = "GET", body: str = "") -> None:
        target = f"/metadata/scheduledevents?api-version={VERSION}"
        answer = exchange(self.service.guest, address, request(method, target, body=body or None))
        assert answer.startswith(b"HTTP/1.1 200"), answer

    def command(self, words: str, **variables: str) -> None:
        """Run a command; keep its exit code and the JSON it prints, of long JSON only the shape."""
        given = {"FOREWARN_SERVER": self.service.operator, "FOREWARN_TOKEN": TOKEN, **variables}
        done = self.forewarn(*words.split(), variables=given)
        out: Any = "(text)" if done.out else ""
        if "--json" in words and done.out:
            out = json.loads(done.out)
            if words.startswith("db"):
                out = sorted(out)
            out = without_human_text(self.normal.json(out))
            out = shape(out) if len(json.dumps(out)) > 400 else out
        name = self.normal.text(words)
        assert name not in self.commands, name
        self.commands[name] = {"exit": done.code, "out": out}
        self.service.advance()


def play_errors(play: Play, viewer: str, owner: str) -> None:
    reboot = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}}
    call = play.call
    call("no token", "GET", "/v1/scopes", token="")
    call("wrong token", "GET", "/v1/scopes", token="wrong")
    call("a viewer's writing", "POST", "/v1/maintenances", reboot, token=viewer)
    call("another owner's scope", "POST", "/v1/scopes/desk/machines/pc-0/restart", token=owner)
    call("unknown path", "GET", "/v1/none")
    call("unknown method", "PATCH", "/v1/scopes")
    call("body is not JSON", "POST", "/v1/maintenances", "{")
    call("unknown key", "POST", "/v1/maintenances", {**reboot, "none": 1})
    call("wrong kind", "POST", "/v1/maintenances", {**reboot, "type": "None"})
    call("no targets", "POST", "/v1/maintenances", {"type": "Reboot", "targets": {}})
    call("unknown machine", "POST", "/v1/maintenances", {"type": "Reboot", "targets": {"machines": ["shop/none"]}})
    call("terminate outside a placement group", "POST", "/v1/maintenances", {**reboot, "type": "Terminate"})
    call("unknown parameter", "GET", "/v1/events?none=1")
    call("wrong cursor", "GET", "/v1/events?cursor=none")
    call("wrong limit", "GET", "/v1/events?limit=0")
    call("too large", "POST", "/v1/maintenances", " " * (1024 * 1024 + 1))
    call("wrong media type", "POST", "/v1/fleet", "x", Content_Type="text/csv")
    call("wrong fleet", "POST", "/v1/fleet", "[[scopes]]\nname = 1\n", Content_Type="application/toml")
    for noun in ("scopes", "maintenances", "events", "orders"):
        call(f"unknown {noun}", "GET", f"/v1/{noun}/{NOBODY}")
    call("unknown token", "DELETE", f"/v1/tokens/{NOBODY}")
    call("wrong stream id", "GET", "/v1/stream", Last_Event_ID="none")
    call("wrong advance", "POST", "/v1/clock/advance", {"seconds": -1})
    call("stranger's page", "GET", "/none")
    for page in ("/", "/login", "/healthz", "/readyz", "/v1/docs"):
        call(f"page {page}", "GET", page, token="")


def play_inventory(play: Play) -> None:
    call, scope = play.call, "/v1/scopes/made"
    call(
        "make scope",
        "PUT",
        scope,
        {"kind": "placement-group", "approval": "operator", "minimum_notice_s": {"Reboot": 60}},
    )
    call("change scope", "PUT", scope, {"kind": "placement-group"})
    call("make machine", "PUT", f"{scope}/machines/m", {"addresses": ["127.0.0.50"], "instance_id": "i-1"})
    call("change machine", "PUT", f"{scope}/machines/m", {"host": "rack9", "update_domain": 3, "fault_domain": 2})
    call("address taken", "PUT", f"{scope}/machines/n", {"addresses": ["127.0.0.10"]})
    call("scope in use", "DELETE", scope)
    call("scope's machines", "GET", "/v1/machines?scope=made")
    call("remove machine", "DELETE", f"{scope}/machines/m")
    call("remove scope", "DELETE", scope)
    call("fleet as JSON", "GET", "/v1/fleet")
    call("fleet as TOML", "GET", "/v1/fleet", Accept="application/toml")
    call("fleet dry run", "POST", "/v1/fleet?dry_run=true&prune=true", {"scopes": [], "machines": []})
    call("scopes, a page", "GET", "/v1/scopes?limit=2")
    for version in ("2017-03-01", VERSION, "2099-01-01"):
        call(f"document {version}", "GET", f"/v1/scopes/shop/document?api_version={version}")
    key = {"Idempotency_Key": "one"}
    call("token", "POST", "/v1/tokens", {"name": "t", "role": "viewer"}, **key)
    call("token again", "POST", "/v1/tokens", {"name": "t", "role": "viewer"}, **key)
    call("key reused", "POST", "/v1/tokens", {"name": "u", "role": "viewer"}, **key)


def play_maintenance(play: Play) -> None:
    """Every waiting code that time and people can bring about, every verb, every way an order ends."""
    call, advance, verb = play.call, play.service.advance, "/v1/events/{}/{}"
    for last in (10, 11, 12, 13, 30, 40):
        play.guest(f"127.0.0.{last}")
    call("dry run", "POST", "/v1/maintenances?dry_run=true", {"type": "Reboot", "targets": {"scope": "shop"}})
    rolling, first, second = play.schedule("rolling", type="Reboot", targets={"scope": "shop"}, duration_s=60)
    call("machine in an event", "DELETE", "/v1/scopes/shop/machines/web-0")
    _, host_desk, host_shop = play.schedule(
        "by host", type="Freeze", targets={"hosts": ["rack1"]}, description="a host"
    )
    advance(1)
    user = call("restart", "POST", "/v1/scopes/desk/machines/pc-1/restart").json["id"]
    call("too many user operations", "POST", "/v1/scopes/desk/machines/pc-0/restart")
    play.record_state("scheduled")
    call("pause", "POST", f"/v1/maintenances/{rolling}/pause")
    play.guest("127.0.0.10", "POST", json.dumps({"StartRequests": [{"EventId": first}, {"EventId": host_shop}]}))
    play.record_state("paused, approved")
    call("continue without a pause", "POST", f"/v1/maintenances/{rolling}/continue")
    call("resume", "POST", f"/v1/maintenances/{rolling}/resume")
    play.record_state("first started")
    call("cancel what started", "POST", verb.format(first, "cancel"))
    call("operator approves", "POST", verb.format(host_desk, "approve"))
    play.record_state("machine and queue")
    call("take", "POST", f"/v1/orders/{first}/start")
    call("take again", "POST", f"/v1/orders/{first}/start")
    call("fail", "POST", f"/v1/orders/{first}/fail", {"reason": "a reason", "output": "an output"})
    play.record_state("failed")
    call("retry", "POST", verb.format(first, "retry"))
    call("take the retry", "POST", f"/v1/orders/{first}/start")
    call("late report", "POST", f"/v1/orders/{first}/finish", {"attempt": 1})
    call("finish", "POST", f"/v1/orders/{first}/finish", {"attempt": 2, "new_hosts": {"shop/web-0": "rack7"}})
    play.record_state("second wave")
    call("fail host", "POST", f"/v1/orders/{host_shop}/fail", {"reason": "no"})
    call("finish after all", "POST", verb.format(host_shop, "finish"))
    call("cancel user's", "POST", verb.format(user, "cancel"))
    advance(900)
    play.record_state("second due")
    call("start second", "POST", f"/v1/orders/{second}/start")
    call("fail second", "POST", f"/v1/orders/{second}/fail", {"reason": "no"})
    call("abandon", "POST", verb.format(second, "abandon"))
    call("finish desk", "POST", f"/v1/orders/{host_desk}/finish")
    advance(60)
    now = datetime.fromisoformat(call("clock", "GET", "/v1/clock").json["now"]).timestamp()
    floor = datetime.fromtimestamp(now + 7200).astimezone().isoformat()
    late, one = play.schedule(
        "floor", type="Redeploy", targets={"machines": ["shop/web-0"]}, earliest=floor, on_failure="continue"
    )
    call("approve floor", "POST", verb.format(one, "approve"))
    play.record_state("floor")
    call("cancel", "POST", f"/v1/maintenances/{late}/cancel")
    play.schedule("both domains", type="Freeze", targets={"machines": ["shop/web-1"]}, emergency=True)
    play.schedule("beside", type="Reboot", targets={"machines": ["shop/web-0"]})
    _, busy = play.schedule("same machine", type="Preempt", targets={"machines": ["shop/web-1"]})
    call("approve same", "POST", verb.format(busy, "approve"))
    _, gone = play.schedule("terminate", type="Terminate", targets={"machines": ["pool/vm-0"]})
    call("approve terminate", "POST", verb.format(gone, "approve"))
    _, disabled = play.schedule("disabled", type="Reboot", targets={"scope": "solo"})
    advance(900)
    play.record_state("update domain")
    call("finish terminate", "POST", f"/v1/orders/{gone}/finish")
    call("finish disabled", "POST", f"/v1/orders/{disabled}/finish")
    play.record_state("terminated")
    advance(3600)
    play.record_state("timed out")
    advance(86_400)
    play.record_state("a day later")
    for name, path in (
        ("maintenance", f"/v1/maintenances/{rolling}"), ("event", f"/v1/events/{first}"), ("order", f"/v1/orders/{first}"),
        ("maintenances", "/v1/maintenances"), ("history", "/v1/events?status=Completed&limit=2"), ("counts", "/v1/counts"),
        ("audit", "/v1/audit?limit=500"), ("tokens", "/v1/tokens"), ("machines", "/v1/machines"), ("scopes", "/v1/scopes"),
    ):  # fmt: skip
        call(name, "GET", path)


def play_commands(play: Play) -> None:
    """Exit codes 0, 1, 2 and 3, and what --json prints."""
    home = play.normal.folders[0][0]
    fleet = f"{home}/fleet.toml"
    event = play.service.call("GET", "/v1/events?status=Completed").json["items"][0]["id"]
    scheduled = "maintenance schedule --type reboot --machine desk/pc-0"
    for words in (
        "status", "scope list", "scope show shop", "machine list", "machine show shop/web-1", "maintenance list", "event list",
        "event list --all", f"event show {event}", f"event why {event}", "order list", "order list --state all", "audit list",
        "token list", "budget show", "clock show", "clock advance 1s", "clock confirm", f"fleet check {fleet}",
        f"fleet diff {fleet}", f"fleet apply {fleet} --dry-run",
        "scope set shop --approval all", "token create x --role viewer", f"{scheduled} --dry-run", f"{scheduled} --yes",
        f"{scheduled} --yes --no-notice-ok", f"db status --store sqlite:{home}/store.db", "db migrate --store sqlite:new.db",
        f"db backup --store sqlite:{home}/store.db backup.db", "db restore --store sqlite:new.db backup.db --yes",
        "db backup --store sqlite:new.db backup.db", "scenario list", "machine restart desk/pc-1", "event show none",
        "scope show none", f"event approve {event}",
        "order start none", "clock advance soon", "machine list --limit 0", "token create y --role none",
        f"{scheduled} --none", "db status", "db status --store sqlite:none.db",
    ):  # fmt: skip
        play.command(f"{words} --json")
    play.command("scope list --json --server http://127.0.0.1:1")
    for words in ("", "none", "scope", "scope none", "--version", "serve --none", "serve --clock none", "fleet export"):
        play.command(words)
    for words in ("serve --operator 127.0.0.1", "serve --config none.toml", "emulate --machines 0", "conform --list"):
        play.command(words)
    for words in (
        "scenario show user-reboot",
        "scenario show none",
        "scenario run user-reboot --seed 1",
        "fleet apply none.toml",
    ):
        play.command(words)
    play.command("machine list", FOREWARN_TOKEN="wrong-token-wrong-token")
    play.command("agent none")
    listed = play.forewarn("conform", "--list", variables={"COLUMNS": "500"}).out
    play.commands["behaviours of conform"] = sorted(re.findall(r"^[a-z][a-z-]+(?=  )", listed, re.MULTILINE))
    listed = json.loads(play.forewarn("scenario", "list", "--json").out)
    play.commands["scenarios"] = sorted(each["name"] for each in listed)


# -- what is left afterwards


def stream(service: Served) -> dict[str, Any]:
    """The kinds of messages of the stream, with the shape of their data."""
    from http.client import HTTPConnection

    connection = HTTPConnection(service.operator.partition("//")[2], timeout=20)
    connection.request("GET", "/v1/stream", headers={"Authorization": f"Bearer {TOKEN}", "Last-Event-ID": "0"})
    answer = connection.getresponse()
    found: dict[str, Any] = {"content type": answer.headers["content-type"]}
    for _ in range(20):
        key, _, value = answer.readline().decode().strip().partition(": ")
        if key:
            found[key] = shape(json.loads(value)) if key == "data" else value if key == "event" else "(text)"
    connection.close()
    return found


def metrics(text: str) -> dict[str, Any]:
    """Names, types and labels."""
    found: dict[str, Any] = {
        name: {"type": kind} for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE)
    }
    for name, labels in re.findall(r"^([a-zA-Z_:]+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        metric = found.setdefault(name, {"type": "sample"})
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            metric.setdefault(label, {})["(number)" if value.isdecimal() or label == "version" else value] = "value"
    return found


def schema_text(sql: str) -> str:
    """Without comments, with single spaces."""
    return " ".join(re.sub(r"--[^\n]*", "", sql).split())


def sqlite_schema(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        tables = [name for kind, name, _ in rows if kind == "table"]
        return {
            **{f"columns of {name}": _columns(database, name) for name in tables},
            **{f"{kind} {name}": schema_text(sql or "") for kind, name, sql in rows},
            "user_version": database.execute("PRAGMA user_version").fetchone()[0],
            "application_id": database.execute("PRAGMA application_id").fetchone()[0],
        }


def _columns(database: sqlite3.Connection, table: str) -> dict[str, str]:
    """Kind, whether it may be null, default and place in the primary key of each column."""
    return {name: f"{kind} {rest}" for _, name, kind, *rest in database.execute(f"PRAGMA table_info({table})")}


def sqlite_rows(path: Path, normal: Normal) -> dict[str, Any]:
    """Every row of every table; texts as they are kept, also those for people."""
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(path)) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = database.execute(f"SELECT * FROM {table}")
            names = [each[0] for each in cursor.description]
            rows = [normal.text(json.dumps(dict(zip(names, map(column, row), strict=True)))) for row in cursor]
            found[table] = [json.loads(row) for row in sorted(_LEFT_OUT.sub("(left out)", row) for row in rows)]
    return found


def described(checkout: Checkout) -> dict[str, Any]:
    folder = checkout.home / "state"
    (checkout.home / "fleet.toml").write_text(FLEET)
    store = checkout.home / "store.db"
    words = ["serve", "--store", f"sqlite:{store}", "--fleet", "fleet.toml", "--clock", "manual"]
    words += ["--state-dir", str(folder), "--guest", "127.0.0.1:0", "--operator", "127.0.0.1:0"]
    with checkout.serving(*words, FOREWARN_TOKEN=TOKEN) as service, checkout.program("forewarn") as forewarn:
        service.wait_ready()
        start = datetime.fromisoformat(service.call("GET", "/v1/clock").json["now"])
        play = Play(service, Normal(start, [(str(checkout.home), "(home)")]), forewarn)
        document = service.call("GET", "/v1/openapi.json").json
        tokens = {"nobody": "", "operator": TOKEN}
        for role in ("viewer", "owner"):
            wanted = {"name": role, "role": role, "scopes": ["shop"] if role == "owner" else []}
            tokens[role] = play.call(f"{role}'s token", "POST", "/v1/tokens", wanted).json["token"]
        play_errors(play, tokens["viewer"], tokens["owner"])
        play_inventory(play)
        play_maintenance(play)
        play_commands(play)
        found: dict[str, Any] = {
            "openapi": openapi(document),
            "roles": roles(service, document, tokens),
            "calls": play.calls,
            "error codes": sorted({c["body"]["error"]["code"] for c in play.calls.values() if "error" in c["body"]}),
            "waiting codes": sorted(play.waiting),
            "commands": play.commands,
            "stream": stream(service),
            "metrics": metrics(service.call("GET", "/metrics").body),
        }
        found["exit after SIGTERM"] = service.stop()
    found["schema"] = sqlite_schema(store)
    found["rows"] = sqlite_rows(store, play.normal)
    return found
