"""`http` against a fake registrar over HTTP that drains for a while, hangs, trickles or lies."""

import contextlib
import json
import re
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from forewarn.guest.clock import Time
from forewarn.guest.config import parse as parse_config
from forewarn.guest.errors import ConfigError, OutOfTime, StepFailed
from forewarn.guest.handlers import http
from forewarn.guest.handlers.http import Spec
from forewarn.guest.handlers.http_registrar import Expectation
from forewarn.guest.steps import Run
from tests.integration.handlers.agent_process import fast_run, new_run, recorded_timeouts_s
from tests.integration.handlers.agent_with_endpoint import agent_with_endpoint
from tests.support.fake_endpoint import StepTime, event, http_server, respond

ROOT = Path(__file__).parents[3]
MEMBER = "/api/pools/web/members/web-0"


class Registrar:
    """One member of one pool: PUT sets its state, and GET shows the old one for `drains_for` more requests."""

    def __init__(self) -> None:
        self.url = ""
        self.state = "up"
        self.mode = "pass"
        self.hung = threading.Event()  # a request has begun to hang
        self.drains_for = 0
        self.lock_after = ""
        # A status for the next change alone; whether a GET says 404 until then; what befalls the next requests, one each.
        self.refuses = ""
        self.forgets = False
        self.hiccups: list[str] = []
        self.requests: list[tuple[str, str, str, str]] = []
        self.queries: list[str] = []

    def __call__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        path, _, query = handler.path.partition("?")
        self.queries.append(query)
        self.requests.append((handler.command, path, body.decode(), handler.headers.get("X-Key", "")))
        hiccup = self.hiccups.pop(0) if self.hiccups else ""
        if hiccup == "close":
            handler.close_connection = True
        elif hiccup:
            respond(handler, int(hiccup))
        elif self.forgets and handler.command == "GET":
            respond(handler, 404)
        elif self.refuses and handler.command != "GET":
            respond(handler, int(self.refuses))
        elif self.mode == "hang" or (self.mode == "hang at GET" and handler.command == "GET"):
            self.hung.set()
            while self.mode.startswith("hang"):
                time.sleep(0.02)
            handler.close_connection = True
        elif self.mode == "trickle":
            with contextlib.suppress(OSError):
                while self.mode == "trickle":
                    handler.wfile.write(b"H")
                    time.sleep(0.05)
        elif self.mode.isdigit():
            respond(handler, int(self.mode))
        elif handler.command == "GET":
            self._show(handler)
        else:
            self.forgets = False
            if self.mode != "lie":
                self.state = json.loads(body)["state"]
            self.mode = self.lock_after or self.mode  # before the answer, after which the agent asks again
            respond(handler, 204)

    def _show(self, handler: BaseHTTPRequestHandler) -> None:
        shown = self.state
        if self.drains_for:
            self.drains_for -= 1
            shown = "draining"
        respond(handler, 200, json.dumps({"member": {"name": "web-0", "state": shown}}).encode())

    @property
    def changes(self) -> list[str]:
        return [f"{method} {json.loads(body)['state']}" for method, _, body, _ in self.requests if method != "GET"]


@contextmanager
def registering() -> Iterator[Registrar]:
    registrar = Registrar()
    with http_server(registrar) as url:
        registrar.url = url
        try:
            yield registrar
        finally:
            registrar.mode = "pass"


@pytest.fixture
def registrar() -> Iterator[Registrar]:
    with registering() as made:
        yield made


def table_of(url: str, **more: object) -> dict[str, object]:
    return {
        "prepare": {"method": "PUT", "url": f"{url}{MEMBER}?token=hunter2", "body": '{"state": "drained"}'},
        "verify": {"url": f"{url}{MEMBER}?token=hunter2", "pointer": "/member/state", "equals": "drained"},
        "recover": {"method": "PUT", "url": f"{url}{MEMBER}", "body": '{"state": "up"}'},
        **more,
    }


def spec_of(url: str, **more: object) -> Spec:
    return http.parse(table_of(url, **more), "here")


def secret(tmp_path: Path, text: str = "X-Key: hunter2\n\nX-Other:  a b \n") -> str:
    path = tmp_path / "headers"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_out_confirmed_and_in_again(registrar: Registrar, tmp_path: Path) -> None:
    """The member counts as prepared when the registrar shows it; the headers of the file are sent."""
    spec, run = spec_of(registrar.url, headers_file=secret(tmp_path)), new_run()
    assert http.check(spec) == []
    assert http.verify(spec, run) is False
    registrar.drains_for = 3
    http.prepare(spec, run)
    assert http.verify(spec, run) is True
    assert registrar.drains_for == 0
    assert run.kept == {"before": "in"}
    http.prepare(spec, run)
    http.recover(spec, run)
    http.recover(spec, run)
    assert registrar.changes == ["PUT drained", "PUT up"]
    assert {path for _, path, _, _ in registrar.requests} == {MEMBER}
    assert {key for *_, key in registrar.requests} == {"hunter2"}
    assert "token=hunter2" in registrar.queries


def test_in_again_as_the_registrar_shows_it(registrar: Registrar) -> None:
    """With `recovered` it is that which must hold: not being out any more is not yet being in."""
    back = {"url": f"{registrar.url}{MEMBER}", "contains": '"state": "up"'}
    spec, run = spec_of(registrar.url, recovered=back), new_run()
    http.prepare(spec, run)
    registrar.drains_for = 3
    http.recover(spec, run)
    assert registrar.drains_for == 0
    http.prepare(spec, run)
    registrar.mode = "lie"
    with pytest.raises(OutOfTime, match=r'^the request succeeded, but .* does not contain \'"state": "up"\'$'):
        http.recover(spec, fast_run(**run.kept))


def test_what_was_out_before_stays_out(registrar: Registrar) -> None:
    """Nothing is sent on the way out or back, also when preparing was interrupted and done twice."""
    registrar.state = "drained"
    spec, run = spec_of(registrar.url), new_run()
    http.prepare(spec, run)
    http.recover(spec, new_run(**run.kept))
    assert registrar.changes == []
    with pytest.raises(
        StepFailed, match="says that it is out, and this agent did not do it: put it in if it should be"
    ):
        http.recover(spec, new_run())


def test_a_registrar_that_lies_is_not_believed(registrar: Registrar) -> None:
    """It answers 204 and shows something else."""
    registrar.mode = "lie"
    spec = spec_of(registrar.url)
    with pytest.raises(OutOfTime, match=r"^the request succeeded, but .*/web-0 has something else than 'drained' at"):
        http.prepare(spec, fast_run())
    assert http.verify(spec, new_run()) is False
    registrar.state = "drained"
    with pytest.raises(OutOfTime, match="still says that it is out"):
        http.recover(spec, fast_run(before="in"))


@pytest.mark.parametrize("mode", ["hang", "trickle"])
def test_a_slow_registrar_cannot_outlast_the_step(registrar: Registrar, mode: str) -> None:
    """The step ends with its time, and the reason does not contain the query."""
    registrar.mode = mode
    for phase in (http.prepare, http.verify, http.recover):
        with (
            recorded_timeouts_s() as given,
            pytest.raises(StepFailed, match=f"^GET {registrar.url}{MEMBER}: no answer in time$"),
        ):
            phase(spec_of(registrar.url), new_run(share_s=2.0, time=Time()))
        assert max(given) <= 2.0
    assert registrar.changes == []


@pytest.mark.parametrize("status", ["302", "401", "403", "407", "408", "429", "500"])
def test_an_inconclusive_answer_means_neither_in_nor_out(registrar: Registrar, status: str) -> None:
    """The member counts neither as prepared nor as in."""
    spec, message = spec_of(registrar.url), f"^GET {registrar.url}{MEMBER} was answered {status}$"
    registrar.mode, registrar.state = status, "drained"
    assert re.match(message, http.check(spec)[0])
    for phase in (http.prepare, http.verify, http.recover):
        with pytest.raises(StepFailed, match=message):
            phase(spec, fast_run())
    with pytest.raises(StepFailed, match=message):
        http.recover(spec, fast_run(before="in"))
    assert registrar.changes == []


def hanging_in_the_end(registrar: Registrar, mode: str, share_s: float = 10.0, **kept: object) -> Run:
    """Return a Run in whose last two seconds the registrar does not respond, or no longer in this mode."""

    def hang() -> None:
        if run.left_s() < 2 * http.RETRY_S:
            registrar.mode = mode

    announced, time = event(NotBefore="soon"), StepTime(rate=10)
    run = Run(step="one", phase="prepare", event=announced, share_s=share_s, time=time, poll=hang, kept=kept)
    return run


@pytest.mark.parametrize(("mode", "reason"), [("408", "was answered 408"), ("404", "answers 404, not 200")])
def test_a_check_that_the_end_of_the_step_cuts_short_says_nothing(registrar: Registrar, mode: str, reason: str) -> None:
    """The step fails with what the registrar answered before, and not with the answer that did not come in time."""
    registrar.mode = mode
    with pytest.raises(OutOfTime, match=f"{reason}$"):
        http.prepare(spec_of(registrar.url), hanging_in_the_end(registrar, "hang"))
    assert registrar.mode == "hang"


@pytest.mark.parametrize("mode", ["hang", "hang at GET"])
def test_a_change_that_the_end_of_the_step_cuts_short(registrar: Registrar, mode: str) -> None:
    """The registrar refused the change for now: that is the reason, whether the next request was a check or a change."""
    registrar.hiccups = ["", "503"] * 20
    with pytest.raises(OutOfTime, match=f"^PUT {registrar.url}{MEMBER} was answered 503$"):
        http.prepare(spec_of(registrar.url), hanging_in_the_end(registrar, mode, before="in"))
    assert registrar.mode == mode
    assert registrar.state == "up"


def test_no_change_is_requested_after_a_check_without_response(registrar: Registrar) -> None:
    """An old response is no reason to change anything, and a registrar that cannot be reached is the reason of the failure."""
    registrar.hiccups = ["", "503", *["close"] * 50]
    with pytest.raises(OutOfTime, match="the answer broke off"):
        http.prepare(spec_of(registrar.url), fast_run(before="in"))
    assert len(registrar.changes) == 1


@pytest.mark.parametrize("status", ["302", "403", "409"])
def test_a_change_that_is_refused(registrar: Registrar, status: str) -> None:
    """Any status but 2xx means that nothing was changed, and a refused request is not repeated."""
    registrar.refuses = status
    with pytest.raises(StepFailed, match=f"^PUT {registrar.url}{MEMBER} was answered {status}$"):
        http.prepare(spec_of(registrar.url), new_run())
    assert len(registrar.changes) == 1


def test_a_missing_member_is_not_in(registrar: Registrar) -> None:
    """With 404 instead of a value the member is not changed in prepare, and is requested in recover."""
    spec, run = spec_of(registrar.url), new_run()
    registrar.mode = "404"
    with pytest.raises(OutOfTime, match=f"^{registrar.url}{MEMBER} answers 404, not 200$"):
        http.prepare(spec, fast_run())
    assert http.check(spec) == [f"{registrar.url}{MEMBER} answers 404, not 200: this says neither in nor out"]
    assert registrar.changes == []
    registrar.mode = "pass"
    http.prepare(spec, run)
    registrar.forgets = True
    http.recover(spec, run)
    assert registrar.changes == ["PUT drained", "PUT up"]


@pytest.mark.parametrize("hiccup", ["503", "429", "close"])
def test_a_request_that_fails_once_is_repeated(registrar: Registrar, hiccup: str) -> None:
    """One failure at the first check, the change or the check after it is repeated while there is time."""
    spec, run = spec_of(registrar.url), new_run()
    for phase, state in ((http.prepare, "drained"), (http.recover, "up")):
        registrar.hiccups = [hiccup, "", hiccup, "", hiccup]
        phase(spec, run)
        assert registrar.hiccups == []
        assert registrar.state == state


def test_an_unreachable_registrar() -> None:
    """`check` reports it too, without the query."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        spec = spec_of(url)
        with pytest.raises(StepFailed, match=f"^GET {url}{MEMBER}: no connection to {url}: Connection refused$"):
            http.prepare(spec, fast_run())
        assert "hunter2" not in http.check(spec)[0]


def test_an_unknown_host_name() -> None:
    """The look-up is limited by the step's time."""
    with recorded_timeouts_s() as given, pytest.raises(StepFailed, match="no connection to"):
        http.prepare(spec_of("http://registrar.invalid"), new_run(share_s=1.0, time=Time()))
    assert max(given) <= 1.0


@pytest.mark.parametrize(
    ("look", "holds"),
    [
        ({"status": 200}, True),
        ({"status": 404}, False),
        ({"contains": "web-0"}, True),
        ({"contains": "web-1"}, False),
        ({"pointer": "/member/state", "equals": "up"}, True),
        ({"pointer": "/member/nothing", "equals": "up"}, None),
        ({"pointer": "/member/state/0", "equals": "u"}, None),
        ({"status": 404, "contains": "web-0"}, None),
        ({"pointer": "/list/1/a~1b", "equals": 1}, True),
        ({"pointer": "/list/1/a~1b", "equals": True}, False),
        ({"pointer": "/list/9", "equals": 1}, None),
        ({"pointer": "/true", "equals": True}, True),
        ({"pointer": "", "equals": "x"}, False),
    ],
)
def test_what_an_expectation_checks(look: dict[str, object], holds: bool | None) -> None:
    """Status, text and JSON value are checked; a missing value is inconclusive."""
    whole = {"member": {"name": "web-0", "state": "up"}, "list": [0, {"a/b": 1}], "true": True}

    def reply(handler: BaseHTTPRequestHandler, body: bytes) -> None:
        respond(handler, 200, json.dumps(whole).encode())

    with http_server(reply) as url:
        expectation = http.parse(table_of(url, verify={"url": url, **look}), "here").verify
        assert isinstance(expectation, Expectation)
        good, seen = expectation.check({}, 5)
        assert good is holds
        assert bool(seen) is (not holds)


@pytest.mark.parametrize("text", ["no colon hunter2", "X-Key:", "X Key: hunter2", "X-Key: hunter2\x00", "a: b\n" * 51])
def test_a_file_of_headers_that_is_none(tmp_path: Path, text: str) -> None:
    """The message shows nothing of its content. A file that other users may read is refused in the same way."""
    path = secret(tmp_path, text)
    spec = spec_of("http://127.0.0.1:9", headers_file=path)
    assert http.check(spec) == [f"{path} must have lines like `Authorization: Bearer …`, at most 50"]
    Path(path).chmod(0o644)
    assert http.check(spec) == [f"other users may read {path}, which holds a secret: chmod 600 it"]


U = "http://a/b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prepare": None}, "here.prepare: write a table with method, url, body"),
        ({"prepare": {"url": U}}, "here.prepare.method: None is unknown: use one of PUT, POST, DELETE, PATCH"),
        ({"verify": {"url": U, "pointer": "/a"}}, "here.verify: `pointer` and `equals` go together"),
        ({"verify": {"url": U, "pointer": "a", "equals": 1}}, "here.verify.pointer: 'a' is not a JSON pointer"),
        ({"verify": {"url": U, "pointer": "/a", "equals": [1]}}, "here.verify.equals: write a text, a number"),
        ({"verify": {"url": "ftp://a"}}, "here.verify.url: this is not an http:// or https:// address"),
        ({"verify": {"url": "http://a:b/"}}, "here.verify.url: this is not an http:// or https:// address"),
        ({"verify": {"url": "http://a/ b"}}, "here.verify.url: this is not an http:// or https:// address"),
        ({"verify": {"url": "http://me:hunter2@a/"}}, "here.verify.url: a password is a secret"),
        ({"headers": "x"}, "here.headers: unknown key"),
    ],
)
def test_what_the_configuration_may_not_say(change: dict[str, object], message: str) -> None:
    """With where it stands and what to write instead."""
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        http.parse({**table_of("http://a"), **change}, "here")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="here: verify is missing"):
        http.parse({"prepare": {}}, "here")


# -- with a real agent, which is killed


def _inline(table: object) -> str:
    """As TOML writes it."""
    assert isinstance(table, dict)
    return "{ " + ", ".join(f"{key} = {value!r}" for key, value in table.items()) + " }"


def step(url: str, headers: str, timeout: str = "10s") -> str:
    lines = [f"{key} = {_inline(value)}" for key, value in table_of(url).items()]
    top = f'[[steps]]\nname = "leave the pool"\nrequired = true\ntimeout = "{timeout}"\n[steps.http]\n'
    return top + "\n".join(lines) + f'\nheaders_file = "{headers}"\n'


@pytest.mark.parametrize("cancelled", [False, True])
def test_killed_between_preparing_and_verifying(registrar: Registrar, tmp_path: Path, cancelled: bool) -> None:
    """The next agent verifies and approves; or finds the event gone and puts the machine back. Nothing is sent twice."""
    registrar.lock_after = "hang at GET"
    toml = step(registrar.url, secret(tmp_path))
    with agent_with_endpoint(tmp_path, toml, lambda: registrar.state == "drained") as (platform, agent):
        platform.announce()
        agent.wait_until(registrar.hung.is_set)
        agent.kill()
        assert registrar.changes == ["PUT drained"]
        assert platform.approvals == []
        registrar.mode, registrar.lock_after = "pass", ""
        if cancelled:
            platform.end()
        agent.up()
        if not cancelled:
            agent.wait_until(lambda: platform.approvals == [True])
            platform.start()
            agent.wait_until(lambda: "started" in agent.kinds)
            platform.end()
        agent.wait_until_back()
        assert platform.approvals == ([] if cancelled else [True])
        assert registrar.changes == ["PUT drained", "PUT up"]
        assert registrar.state == "up"
        for text in (
            agent.log,
            (tmp_path / "state/journal.jsonl").read_text(),
            (tmp_path / "state/status.json").read_text(),
        ):
            assert "hunter2" not in text


def test_killed_while_it_is_put_in_again(registrar: Registrar, tmp_path: Path) -> None:
    """Out no longer is not yet in: a registrar that has forgotten the request meanwhile is sent another."""
    recovered = f"recovered = {_inline({'url': registrar.url + MEMBER, 'contains': 'up'})}\n"
    with agent_with_endpoint(tmp_path, step(registrar.url, secret(tmp_path)) + recovered, lambda: True) as (
        platform,
        agent,
    ):
        platform.announce()
        agent.wait_until(lambda: platform.approvals == [True])
        registrar.lock_after = "hang at GET"
        platform.end()
        agent.wait_until(registrar.hung.is_set)
        agent.kill()
        assert registrar.changes == ["PUT drained", "PUT up"]
        registrar.state, registrar.mode, registrar.lock_after = "unknown", "pass", ""
        agent.up()
        agent.wait_until_back()
    assert registrar.changes == ["PUT drained", "PUT up", "PUT up"]
    assert registrar.state == "up"


@pytest.mark.parametrize("fault", ["500", "hang", "lie"])
def test_a_target_at_fault_means_no_approval(registrar: Registrar, tmp_path: Path, fault: str) -> None:
    """The event is never approved unprepared; while recover fails, the log says so, until it succeeds."""
    registrar.mode = fault
    with agent_with_endpoint(tmp_path, step(registrar.url, secret(tmp_path), "1s"), lambda: False) as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: agent.outcomes("prepare")[:1] == [False])
        platform.end()
        if fault != "lie":  # what lied was never out
            agent.wait_until(lambda: "THE MACHINE IS NOT BACK IN SERVICE" in agent.log)
        registrar.mode = "pass"
        agent.kill()
        agent.up()  # at once, and not after a pause
        agent.wait_until_back()
        assert platform.approvals == []
        assert registrar.state == "up"
        assert "hunter2" not in agent.log


def test_the_worked_example(registrar: Registrar, tmp_path: Path) -> None:
    """The page's own agent.toml, with our registrar's address in it, takes the machine out and brings it back."""
    page = (ROOT / "docs/guide/handlers/http.md").read_text("utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (printed,) = parse_config(tomllib.loads(toml), {}).plan.steps
    assert set(printed.spec._fields) == set(tomllib.loads(toml)["steps"][0]["http"])
    ours = toml.replace("https://lb.internal", registrar.url).replace(printed.spec.headers_file, secret(tmp_path))
    ours = ours.replace(str(tomllib.loads(toml)["health"]["command"]).replace("'", '"'), '["true"]')
    with agent_with_endpoint(tmp_path, ours, lambda: registrar.state == "drained") as (platform, agent):
        platform.announce()
        agent.wait_until(lambda: platform.approvals == [True])
        platform.start()
        agent.wait_until(lambda: "started" in agent.kinds)
        platform.end()
        agent.wait_until_back()
    assert registrar.changes == ["PUT drained", "PUT up"]
    assert {path for _, path, _, _ in registrar.requests} == {MEMBER}
