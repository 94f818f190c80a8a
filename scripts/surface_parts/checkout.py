"""A checkout of forewarn with its `.venv`: run its programs, start its services, make their output comparable.

Nothing here imports forewarn. Programs are found by the names of their console scripts, never by module.
"""

import base64
import http.client
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

WITHIN_S = 60.0
TOKEN = "a-token-of-the-surface-script"
FLEET = """
[[scopes]]
name = "shop"
kind = "availability-set"
[[scopes]]
name = "desk"
kind = "availability-set"
approval = "all"
max_user_operations = 1
[[scopes]]
name = "pool"
kind = "placement-group"
[[scopes]]
name = "cloud"
kind = "cloud-service"
[[scopes]]
name = "solo"
kind = "standalone"
""" + "".join(
    f'[[machines]]\nscope = "{scope}"\nname = "{name}"\nhost = "{host}"\n'
    f'update_domain = {domain}\naddresses = ["127.0.0.{last}"]\n'
    for scope, name, host, domain, last in (
        ("shop", "web-0", "rack1", 0, 10), ("shop", "web-1", "rack2", 1, 11), ("desk", "pc-0", "rack1", 0, 12),
        ("desk", "pc-1", "rack3", 0, 13), ("pool", "vm-0", "rack4", 0, 30), ("cloud", "FrontEnd_IN_0", "rack5", 0, 40),
        ("solo", "vm", "rack6", 0, 20),
    )
)  # fmt: skip

# Loads a console script once, then runs it in a fork for each request: starting Python anew takes a hundred times longer.
FORK_SERVER = """
import importlib.metadata, json, os, sys, tempfile
name = sys.argv[1]
(script,) = [e for e in importlib.metadata.entry_points(group="console_scripts") if e.name == name]
main = script.load()
def run(request):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.chdir(request["folder"])
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.argv = [name, *request["words"]]
            code = 0
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException as error:
                print("traceback:", repr(error), file=sys.stderr)
                code = 70
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0), err.seek(0)
        return {"code": code, "out": out.read().decode(), "err": err.read().decode()}
answers = os.fdopen(os.dup(1), "w")
errors = os.dup(2)
for number in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
for words in json.loads(sys.argv[2]):
    sys.argv = [name, *words]
    try:
        main()
    except SystemExit:
        pass
sys.stdout.flush()
os.dup2(errors, 2)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line))), file=answers, flush=True)
"""
# Run before the first fork, so that their modules are loaded once for all.
FIRST = {"forewarn": [["--help"], ["db", "status"]], "forewarn-agent": [["--help"]]}


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str


class Program:
    """A console script of a checkout, loaded once and run as often as needed."""

    def __init__(self, checkout: "Checkout", name: str) -> None:
        self._checkout = checkout
        self._process = subprocess.Popen(
            [checkout.python, "-c", FORK_SERVER, name, json.dumps(FIRST[name])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=checkout.environment(),
        )

    def __call__(self, *words: str, folder: Path | None = None, variables: Mapping[str, str] | None = None) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = self._checkout.environment(**(variables or {}))
        request = {"words": words, "folder": str(folder or self._checkout.home), "environment": environment}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


class Checkout:
    """`home` is a new folder that stands for the user's home while the programs run."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root, self.home = root.resolve(), home
        self._bin = self.root / ".venv" / "bin"
        self.python = str(self._bin / "python")

    def environment(self, **variables: str) -> dict[str, str]:
        """Nothing of the caller's but what Python needs."""
        fixed = {"HOME": str(self.home), "LANG": "C.UTF-8", "PATH": f"{self._bin}:/usr/sbin:/usr/bin:/sbin:/bin"}
        return {**fixed, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}

    def command(self, name: str) -> str:
        return str(self._bin / name)

    def evaluate(self, code: str, *words: str) -> Any:
        """The JSON that a piece of Python prints, run by the checkout's own interpreter."""
        done = subprocess.run(
            [self.python, "-c", code, *words],
            capture_output=True, text=True, timeout=WITHIN_S, check=False, env=self.environment(), cwd=self.home,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def program(self, name: str) -> Iterator[Program]:
        started = Program(self, name)
        try:
            yield started
        finally:
            started.close()

    @contextmanager
    def serving(self, *words: str, **variables: str) -> Iterator["Served"]:
        """`forewarn serve` or `emulate`, ready; killed at the end unless it ended before."""
        process = subprocess.Popen(
            [self.command("forewarn"), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment(**variables), cwd=self.home,
        )  # fmt: skip
        try:
            yield Served(process)
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Answer:
    """An answer of the operator's listener."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A running service: where guests and operators ask."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("ready ")), "")
        assert line, f"it ended before it was ready: {process.stderr.read() if process.stderr else ''}"
        addresses = dict(word.split("=", 1) for word in line.split()[1:])
        self.guest, self.operator = addresses["guest"], addresses["operator"]

    def call(self, method: str, path: str, body: object = None, *, token: str = TOKEN, **headers: str) -> Answer:
        """One call of the API; a body that is no text is sent as JSON."""
        place = urlsplit(self.operator)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=WITHIN_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        data = None if body is None else body if isinstance(body, str) else json.dumps(body)
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=None if data is None else data.encode(), headers=sent)
            raw = connection.getresponse()
            return Answer(raw.status, dict(raw.getheaders()), raw.read().decode())
        finally:
            connection.close()

    def wait_ready(self) -> None:
        until(lambda: self.call("GET", "/readyz").status == 200, "the service is ready")

    def advance(self, seconds: int = 0) -> None:
        """Move the clock; when this returns everything that is due has happened."""
        answer = self.call("POST", "/v1/clock/advance", {"seconds": seconds})
        assert answer.status == 200, answer.body

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(WITHIN_S)


@dataclass
class Normal:
    """Replaces what differs from run to run: ids and secrets by their order of appearance, times by their distance to `start`.

    Without a `start` (a clock that nobody can hold) every time is the same.
    """

    start: datetime | None = None
    folders: Sequence[tuple[str, str]] = ()
    _seen: dict[str, str] = field(default_factory=dict)

    _GUID = re.compile(r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b")
    _SECRET = re.compile(r"\bfw_[A-Za-z0-9_-]{43}|\b[0-9a-f]{64}\b")
    _NODE = re.compile(r"\b[A-Za-z0-9._-]+:[0-9]+-[0-9a-f]{8}\b")
    _ISO = re.compile(r"\b20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]+)?(Z|\+00:00)")
    _RFC = re.compile(r"\b[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} 20[0-9]{2} [0-9:]{8} GMT")
    _ADDRESS = re.compile(r"\b(127\.0\.0\.1|\[::1\]):[0-9]{4,5}\b")
    _CURSOR = re.compile(r'(?<="next_cursor":")[A-Za-z0-9_=-]+')

    def text(self, text: str) -> str:
        for folder, name in self.folders:
            text = text.replace(folder, name)
        text = self._GUID.sub(lambda found: self._id(found[0]), text)
        text = self._SECRET.sub(lambda found: self._name("secret", found[0]), text)
        text = self._NODE.sub("(node)", text)
        text = self._CURSOR.sub("(cursor)", text)
        text = self._ISO.sub(self._iso, text)
        text = self._RFC.sub(lambda f: self._moment(_rfc(f[0]), "rfc"), text)
        return self._ADDRESS.sub(r"\1:(port)", text)

    def json(self, value: Any) -> Any:
        return json.loads(self.text(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))

    def _iso(self, found: "re.Match[str]") -> str:
        """With its form: how many digits a second has, and how UTC is written."""
        form = f"iso.{len(found[1]) - 1}{found[2]}" if found[1] else f"iso{found[2]}"
        return self._moment(datetime.fromisoformat(found[0]), form)

    def _id(self, found: str) -> str:
        return self._name("id", found.upper()) + ("" if found == found.upper() else " in lower case")

    def _name(self, kind: str, found: str) -> str:
        return self._seen.setdefault(
            found, f"({kind} {sum(v.startswith(f'({kind}') for v in self._seen.values()) + 1})"
        )

    def _moment(self, moment: datetime, form: str) -> str:
        if self.start is None:
            return f"({form} time)"
        return f"({form} T{(moment - self.start).total_seconds():+g}s)"


def _rfc(text: str) -> datetime:
    return datetime.strptime(text, "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)


# Sentences for people. Their words may change; that they are there may not.
HUMAN = frozenset({"message", "lines", "warnings", "title", "told", "why_not_approved", "failing", "doing", "health"})


def without_human_text(value: Any) -> Any:
    """When a guest was last seen is left out as well: it is written every half minute of real time."""
    if isinstance(value, dict):
        value = {**value, "last_seen": "(time)"} if "last_seen" in value else value
        return {key: _emptied(each) if key in HUMAN else without_human_text(each) for key, each in value.items()}
    return [without_human_text(each) for each in value] if isinstance(value, list) else value


def _emptied(value: Any) -> Any:
    if isinstance(value, str):
        return "(text)" if value else ""
    return [_emptied(each) for each in value] if isinstance(value, list) else without_human_text(value)


def shape(value: Any) -> Any:
    """The names and kinds of JSON, without its values."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        found = {json.dumps(shape(each), sort_keys=True) for each in value}
        return [json.loads(each) for each in sorted(found)]
    return {bool: "boolean", int: "number", float: "number", str: "text", type(None): "null"}[type(value)]


def until(true: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < deadline_s, f"not within {WITHIN_S:g} s: {what}"
        time.sleep(0.05)


def listing(folder: Path, normal: Normal) -> dict[str, str]:
    """Every file under a folder, with its mode."""
    found = {}
    for each in sorted(folder.rglob("*")):
        name = normal.text(str(each.relative_to(folder)))
        found[name] = ("folder " if each.is_dir() else "file ") + format(each.stat().st_mode & 0o777, "o")
    return found


def column(value: Any) -> Any:
    """A value of a database as JSON."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
