"""A hostile endpoint: what it sends is bounded, cannot forge output, and fills neither disk nor log."""

import json
import logging
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.guest import status
from forewarn.guest.clock import Time
from forewarn.guest.decide import _compared_fields
from forewarn.guest.document import (
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_RESOURCES,
    MAX_TEXT_CHARS,
    MAX_WORD_CHARS,
    event_json,
    parse_document,
    parse_event,
)
from forewarn.guest.handlers import notify
from forewarn.guest.journal import Journal, read
from forewarn.guest.main import _history_line, log_formatter
from forewarn.guest.printable import MAX_LINE_CHARS, printable
from forewarn.guest.state import MAX_ENDED_EVENTS, MAX_MESSAGES, fold_records, state_record
from forewarn.guest.steps import Run
from tests.guest.in_process_agent import AgentHarness, step
from tests.support.agent_command import agent_command
from tests.support.fake_endpoint import E1, E2, document, event, http_server, respond

LONG = "x" * 200_000
ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\n2030-01-01T00:00:00.000Z approved ids=[]\x9b\u202e"


# -- bounds


def test_every_field_is_bounded() -> None:
    """Texts are cut; an id that is too long cannot be approved, so its event is left out."""
    fields = (
        "EventStatus",
        "EventType",
        "ResourceType",
        "EventSource",
        "Description",
        "NotBefore",
        "DurationInSeconds",
    )
    read = parse_event({**event(), **dict.fromkeys(fields, LONG), "Resources": [LONG] * 20_000})
    assert {len(each) for each in (read.status, read.type, read.resource_type, read.source)} == {MAX_WORD_CHARS}
    assert len(read.description) == MAX_TEXT_CHARS
    assert (len(read.resources), len(read.resources[0])) == (MAX_RESOURCES, MAX_NAME_CHARS)
    assert (read.not_before, read.duration_s) == (None, -1)
    assert len(json.dumps(event_json(read))) < 256 * 1024
    whole = parse_document(document({**event(), "EventId": LONG}, event(E2), incarnation=LONG), etag=LONG)
    assert [each.id for each in whole.events] == [E2]
    assert len(whole.incarnation) < 100
    assert whole.etag == ""
    # Upper case can be longer than what was sent.
    assert parse_document(document({**event(), "EventId": "ß" * MAX_ID_CHARS})).events == ()


def test_a_number_of_any_length_is_read_at_once() -> None:
    """Turning digits into a number takes more than linear time, and old versions of Python have no limit for it."""
    body = document(event(), incarnation="LONG").replace(b'"LONG"', b"7" * 500_000)
    body = body.replace(b'"DurationInSeconds": -1', b'"DurationInSeconds": ' + b"9" * 400_000)
    read = parse_document(body)
    assert [each.duration_s for each in read.events] == [-1]
    assert len(read.incarnation) < 100


def test_a_long_event_type_does_not_fail_a_required_step(tmp_path: Path) -> None:
    """The program starts, although the system limits the length of a variable, and the event is approved."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"))
    harness.endpoint.announce(EventType=LONG, EventSource=LONG, Description=LONG)
    harness.endpoint.announce(E2)
    harness.run()
    assert harness.actions == ["prepare one"]
    assert sorted(harness.endpoint.approved) == [E1, E2]


def test_unreadable_events_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A document full of them does not fill the log."""
    assert parse_document(document(*[event(E1, EventId=1)] * 900)).events == ()
    (record,) = caplog.records
    assert record.getMessage().startswith("an event cannot be read and is ignored: ")
    assert record.getMessage().endswith("(and 899 more)")


def test_the_second_event_with_the_same_id_is_ignored(tmp_path: Path) -> None:
    """Otherwise the agent would note a change from one to the other without end."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one"))
    harness.endpoint.announce(E1, in_s=900)
    harness.endpoint.announce(E1.lower(), in_s=600)
    harness.run()
    assert harness.kinds.count("seen") == 1
    assert "changed" not in harness.kinds


TEXTS = st.text(max_size=20) | st.sampled_from(
    ["0001-01-01T00:00:00Z", "__x", "9999-12-31T23:59:59Z", "ŉ", "\ud800", LONG]
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.lists(TEXTS, max_size=3)


@given(
    st.fixed_dictionaries({}, optional={key: VALUES for key in event() if key not in ("EventId", "EventStatus")}), TEXTS
)
def test_an_event_is_the_same_after_the_journal(fields: dict[str, Any], event_id: str) -> None:
    """What the journal gives back does not differ from what the endpoint sent, or each poll would note a change."""
    sent = {**event(), **fields, "EventId": event_id}
    for seen in parse_document(json.dumps({"DocumentIncarnation": 1, "Events": [sent]}).encode()).events:
        stored = parse_event(json.loads(json.dumps(event_json(seen))))
        assert (stored.id, stored.status, _compared_fields(stored)) == (seen.id, seen.status, _compared_fields(seen))


# -- output


def test_text_for_a_terminal_has_no_control_characters() -> None:
    """Each character that could move the cursor, end a line or reverse the text is shown as an escape."""
    assert printable("Reboot of wäb-0") == "Reboot of wäb-0"
    shown = printable(ESCAPES)
    assert shown.isprintable()
    assert shown.startswith("\\x1b[2J\\x1b]0;owned\\x07\\r\\n")
    assert shown.endswith("\\x9b\\u202e")
    assert len(printable(LONG)) <= MAX_LINE_CHARS


def test_status_and_history_cannot_be_forged(tmp_path: Path) -> None:
    """Every line is one of the agent's own, whatever the endpoint sends."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"))
    harness.endpoint.name = "web-0"
    odd_type = f"Reboot {E2} Started{ESCAPES}"
    harness.endpoint.announce(f"{E1}{ESCAPES}", EventType=odd_type, EventSource=ESCAPES, Description=ESCAPES)
    harness.run()
    shown = json.loads(json.dumps(status.describe(harness.agent)))
    shown["machine"] = shown["failing"] = shown["health"] = ESCAPES
    lines = status.terminal_lines(shown, 0.0, running=True)
    records = read(tmp_path / "state" / "journal.jsonl")[0]
    history = [_history_line(record) for record in records]
    assert len(history) == len(records) > 5
    for line in [*lines, *history]:
        assert line.isprintable(), line
        assert len(line) <= MAX_LINE_CHARS
    (event_line,) = [line for line in lines if line.startswith("event ")]
    assert f'event      "Reboot {E2} Started\\u001b' in event_line
    assert any(f' seen "Reboot {E2} Started\\u001b' in line for line in history)


def test_log_lines_cannot_be_forged() -> None:
    """On a terminal control characters are escaped, also in a traceback; elsewhere a line is JSON."""
    try:
        raise ValueError(ESCAPES)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "it is %s", (ESCAPES + LONG,), sys.exc_info())
    plain, as_json = (log_formatter(terminal=each).format(record) for each in (True, False))
    assert all(line.isprintable() and len(line) <= MAX_LINE_CHARS + 20 for line in plain.split("\n"))
    assert sum("approved ids" in line for line in plain.split("\n")) == 2, "in the message and in the traceback"
    assert as_json.isprintable()
    assert len(json.loads(as_json)["message"]) <= MAX_LINE_CHARS


def test_a_message_to_a_webhook_has_no_markup() -> None:
    """A description cannot mention all members of a channel, show a link under another name, or begin a line."""
    spec = notify.Spec(url_file="x")
    run = Run(
        step="team", phase="notify", share_s=1, time=Time(), event=event(Description="<!channel> a&b\n<http://x|y>")
    )
    run.change = "scheduled"
    text = notify._message(spec, run)["text"]
    assert ": &lt;!channel&gt; a&amp;b\\n&lt;http://x|y&gt; (" in text


def test_an_odd_id_or_step_name_does_not_prevent_a_message(tmp_path: Path) -> None:
    """Both are part of a header, which takes only printable ASCII."""
    keys: list[str] = []

    def reply(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        keys.append(handler.headers["Idempotency-Key"])
        respond(handler, 200)

    run = Run(step="team → all", phase="notify", share_s=9, time=Time(), event=event(f"{E1}\r\nX: y"))
    run.change = "scheduled"
    with http_server(reply) as url:
        secret = tmp_path / "url"
        secret.write_text(url)
        secret.chmod(0o600)
        notify.notify(notify.Spec(url_file=str(secret)), run)
    (key,) = keys
    assert key.startswith(E1)
    assert key.endswith("/scheduled/team \\u2192 all")


def test_the_machines_name_cannot_be_forged(tmp_path: Path) -> None:
    """The name comes from the endpoint, and `check` prints it."""
    name = json.dumps({"name": ESCAPES + LONG}).encode()
    (tmp_path / "agent.toml").write_text("")
    (tmp_path / "agent.toml").chmod(0o600)
    with http_server(lambda handler, _: respond(handler, 200, name)) as url:
        ended = subprocess.run(
            agent_command("check", "--config", str(tmp_path / "agent.toml")),
            capture_output=True,
            text=True,
            env={**os.environ, "FOREWARN_ENDPOINT": url, "STATE_DIRECTORY": str(tmp_path / "state")},
            check=True,
        )
    assert all(line.isprintable() and len(line) < 1_000 for line in ended.stdout.split("\n"))
    assert "this machine is \\x1b[2J" in ended.stdout


# -- the journal


def sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("journal*.jsonl"))


def test_the_journal_stays_small_while_an_event_is_open(tmp_path: Path) -> None:
    """An event that changes at every poll does not fill the disk, and the agent forgets nothing that matters."""
    harness = AgentHarness(tmp_path, step(tmp_path, "one", more="required = true"))
    harness.journal.max_bytes = 20_000
    harness.endpoint.announce(E1, in_s=3_600)
    harness.run()
    assert harness.endpoint.approved == [E1]
    names = [f"machine-{number}" for number in range(200)]
    for number in range(100):
        harness.endpoint.events[0]["Resources"] = ["web-0", f"odd-{number}", *names]
        harness.endpoint.incarnation += 1
        harness.run(for_s=1)
        assert sizes(tmp_path / "state") < 2 * 40_000
    assert harness.kinds.count("changed") < 20
    for restart in (False, True):
        if restart:
            harness.restart()
            harness.run(for_s=2)
        assert harness.known().approved
        assert harness.agent.state.step("one").prepared
    harness.endpoint.end()
    harness.run(harness.in_service)
    assert harness.actions == ["prepare one", "recover one"]
    assert harness.endpoint.approved == [E1, E1], "once more after a minute"


def test_ended_events_and_messages_do_not_pile_up(tmp_path: Path) -> None:
    """A machine that is not healthy and sees a new event at every poll remembers the last few."""
    toml = '[health]\ncommand = ["false"]\n' + step(tmp_path, "one", more='when = { type = "Reboot" }')
    toml += f'[[steps]]\nname = "team"\nnotify = {{ url_file = "{tmp_path}/missing" }}\n'
    harness = AgentHarness(tmp_path, toml)
    harness.endpoint.announce(E1)
    harness.run()
    harness.endpoint.end()
    for number in range(3 * MAX_ENDED_EVENTS):
        event_id = f"{number:08}-0000-4000-8000-000000000000"
        harness.endpoint.announce(event_id, EventType="Freeze")
        harness.run(for_s=1)
        harness.endpoint.end(event_id)
        harness.run(for_s=1)
    assert not harness.in_service()
    assert len(harness.agent.state.events) <= MAX_ENDED_EVENTS + 1
    assert len(harness.agent.state.messages) <= MAX_MESSAGES


def test_a_compacted_journal_gives_the_same_state(tmp_path: Path) -> None:
    """At every record of an agent's life, the state in one record equals the state of all records before it."""
    harness = AgentHarness(
        tmp_path,
        '[health]\ncommand = ["test", "-e", "'
        + str(tmp_path / "healthy")
        + '"]\n'
        + step(tmp_path, "one", more="required = true")
        + step(tmp_path, "two", prepare="false")
        + step(tmp_path, "three", more='timeout = "1h"')
        + f'[[steps]]\nname = "team"\nnotify = {{ url_file = "{tmp_path}/missing" }}\n',
    )
    harness.endpoint.announce(E1)
    harness.endpoint.announce(E2, in_s=1_800, EventType="Freeze")
    harness.run()
    harness.endpoint.start(E1)
    harness.run(for_s=2)
    harness.restart("boot-2")
    harness.run(for_s=10)
    harness.endpoint.end(E1)
    harness.run(for_s=10)
    harness.endpoint.end(E2)
    harness.run(for_s=30)
    (tmp_path / "healthy").touch()
    harness.run(harness.in_service, for_s=400)
    records = read(tmp_path / "state" / "journal.jsonl")[0]
    assert {"seen", "begin", "end", "skip", "approved", "started", "over", "health", "telling"} <= set(harness.kinds)
    for count in range(len(records) + 1):
        state = fold_records(records[:count])
        restored = fold_records([json.loads(json.dumps(state_record(state)))])
        assert restored.damaged == 0
        for name in ("boot", "new", "steps", "messages", "tally", "out_of_service", "last_health", "events"):
            assert getattr(restored, name) == getattr(state, name), (count, name)
        assert list(restored.events) == list(state.events)
    later = {**state_record(fold_records(records)), "more": 1}
    later["tally"] = {**later["tally"], "more": 1}
    assert fold_records([later]).damaged == 0, "a field of a later version is ignored"


def test_a_killed_compaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is replaced whole, or stays; a compaction that fails does not stop the agent."""
    journal = Journal(tmp_path, max_bytes=100)
    journal.append({"kind": "old", "text": "x" * 200})
    calls: list[tuple[Any, ...]] = []
    really_replace = os.replace

    def fails(*args: Any, **more: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        really_replace(*args, **more)

    monkeypatch.setattr(os, "replace", fails)
    assert journal.is_large()
    journal.compact({"kind": "state"})
    assert len(calls) == 2
    assert [record["kind"] for record in journal.records] == ["old"]
    assert not journal.is_large(), "it is tried again when the journal has grown as much once more"
    journal.append({"kind": "next", "text": "x" * 200})
    assert journal.is_large()
    journal.compact({"kind": "state"})
    journal.append({"kind": "last"})
    assert [record["kind"] for record in journal.records] == ["state", "last"]
    assert [record["kind"] for record in read(tmp_path / "journal.1.jsonl")[0]] == ["old", "next"]
    journal.close()
