"""An agent and its clients on a manual clock: what clients see, and when the agent approves."""

import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forewarn.guest import status
from forewarn.guest.agent import SERVING_POLL_S
from forewarn.guest.errors import JournalError, NoAnswer, NotReady, Refused
from forewarn.guest.journal import Journal
from forewarn.guest.serving import clients as served_clients
from forewarn.guest.serving.clients import MAX_AGE_S, MAX_WAITING
from forewarn.guest.serving.settings import ServedClient
from forewarn.guest.serving.upstream import Upstream
from tests.guest.in_process_agent import step
from tests.guest.serving.local_agent import ServingHarness, approving, endpoint, harness
from tests.support.fake_endpoint import E1, E2, ManualTime, Reply, ScriptedTransport, answer
from tests.support.guest_service import get, post
from tests.support.waiting import until

SIX = ("one", "two", "three", "four", "five", "six")
READER = ServedClient("reader", port=0)


def why(served: ServingHarness, event_id: str = E1) -> str:
    return str(
        next(each for each in status.describe(served.agent)["events"] if each["id"] == event_id)["why_not_approved"]
    )


def statuses(served: ServingHarness, name: str, *requests: bytes) -> list[int]:
    client = served.connect(name)
    return [int(client.ask(request).split()[1]) for request in requests]


@pytest.mark.parametrize("long_poll", [True, False])
def test_six_clients_cost_the_endpoint_no_request(tmp_path: Path, long_poll: bool) -> None:
    """In 60 s the endpoint gets at most 60 GETs, however often six clients poll."""
    with harness(tmp_path, *approving(*SIX), endpoint=endpoint(long_poll=long_poll)) as served:
        served.run(for_s=1)
        before, clients = len(served.endpoint.transport.requests), [served.connect(name) for name in SIX]

        def poll() -> None:
            for client in clients:
                assert client.ask(get()).startswith(b"HTTP/1.1 200")

        for second in range(60):
            served.endpoint.at(second, poll)
        served.endpoint.at(30, served.endpoint.announce)
        served.run(for_s=60)
        requests = served.endpoint.transport.requests[before:]
        assert sum(method == "GET" for method, *_ in requests) <= (6 if long_poll else 60)
        assert served.endpoint.plan == []


def test_a_long_poll_of_the_agent_ends_before_its_document_is_too_old(tmp_path: Path) -> None:
    """An agent with clients waits for a shorter time at the endpoint, so that a failure is noticed in time."""
    with harness(tmp_path, READER) as served:

        class Enough(Exception):
            pass

        def third() -> None:
            raise Enough

        served.endpoint.at(2.5 * SERVING_POLL_S, third)
        with pytest.raises(Enough):
            served.agent.run()
        waits = [headers.get("Prefer", "") for method, path, headers, *_ in served.endpoint.transport.requests]
        assert [each for each in waits if each][1:] == [f"wait={SERVING_POLL_S:.0f}"] * 2
        assert 2 * SERVING_POLL_S <= MAX_AGE_S


def test_approval_only_after_the_slowest_awaited_client(tmp_path: Path) -> None:
    """The agent approves when its steps are done and each of six clients has approved, also after a restart."""
    toml = step(tmp_path, "one", more="required = true")
    with harness(tmp_path, *approving(*SIX), READER, toml=toml) as served:
        served.endpoint.announce()
        served.run(for_s=5)
        assert served.actions == ["prepare one"]
        for name in SIX[:-1]:
            served.sdk(name).approve(E1.lower())
            served.run(for_s=5)
            assert served.endpoint.approved == []
        assert why(served) == "client 'six' has not approved it"
        served.listener.close()
        served.restart()
        served.run(for_s=5)
        assert served.endpoint.approved == []
        assert why(served) == "client 'six' has not approved it"
        served.sdk("six").approve(E1)
        served.run(for_s=5)
        assert served.endpoint.approved == [E1]
        assert served.kinds.count("client-approved") == 6


def test_steps_are_waited_for_as_well(tmp_path: Path) -> None:
    """Approvals of all clients do not replace a required step that failed."""
    toml = step(tmp_path, "one", more="required = true", prepare="false")
    with harness(tmp_path, *approving("one"), toml=toml) as served:
        served.endpoint.announce()
        served.run(for_s=5)
        served.sdk("one").approve(E1)
        served.run(for_s=60)
        assert served.endpoint.approved == []
        assert "required step 'one' is not prepared" in why(served)


def test_an_approval_during_a_step_counts(tmp_path: Path) -> None:
    """A client may approve before the agent's own thread has seen the event."""
    with harness(tmp_path, *approving("one")) as served:
        served.endpoint.announce()
        served.agent.poll(1.0)
        assert E1 not in served.agent.state.events
        served.sdk("one").approve(E1)
        served.run(for_s=5)
        assert served.endpoint.approved == [E1]


def test_a_silent_client_is_not_waited_for(tmp_path: Path) -> None:
    """A client counts from its last request, or from the start of the agent, for `client_timeout`."""
    fast, slow = approving("fast", timeout_s=60), approving("slow", timeout_s=120)
    with harness(tmp_path, *fast, *slow) as served:
        served.run(for_s=50)
        assert statuses(served, "slow", get()) == [200]
        served.endpoint.announce()
        served.run(for_s=9)
        assert why(served) == "client 'fast' has not approved it"
        served.run(for_s=2)
        assert why(served) == "client 'slow' has not approved it"
        served.run(lambda: bool(served.endpoint.approved), for_s=300)
        assert 1_000 + 50 + 120 <= served.clock.now_s <= 1_000 + 50 + 121, "the wait ends at that moment"
        assert [each["awaited"] for each in status.describe(served.agent)["clients"]] == [False, False]


def test_an_open_long_poll_is_no_silence(tmp_path: Path) -> None:
    """A client that waits for a change is there, however short its time-out; it is silent once it is gone."""
    with harness(tmp_path, *approving("one", timeout_s=5)) as served:
        served.run(for_s=1)
        client = served.connect("one")
        etag = client.ask(get()).partition(b"ETag: ")[2].partition(b"\r\n")[0].decode()
        client.send(get(get_url(), f"If-None-Match: {etag}", "Prefer: wait=60"))
        until(lambda: served.clients._contacts["one"].waiting == 1)
        served.run(for_s=30)
        assert list(served.clients.awaited()) == ["one"]
        client.socket.close()
        until(lambda: served.clients._contacts["one"].waiting == 0)
        served.clock.now_s += 6
        assert list(served.clients.awaited()) == []


def get_url() -> str:
    return "/metadata/scheduledevents?api-version=2020-07-01"


def test_a_change_ends_the_long_polls_of_all_clients(tmp_path: Path) -> None:
    """Each gets the new document with Preference-Applied; the agent needed one request for it."""
    with harness(tmp_path, *approving(*SIX)) as served:
        served.run(for_s=1)
        clients = [served.connect(name) for name in SIX]
        for client in clients:
            etag = client.ask(get()).partition(b"ETag: ")[2].partition(b"\r\n")[0].decode()
            client.send(get(get_url(), f"If-None-Match: {etag}", "Prefer: wait=60"))
        until(lambda: all(contact.waiting for contact in served.clients._contacts.values()))
        served.endpoint.announce()
        served.run(for_s=1)
        for client in clients:
            response = client.answer()
            assert response.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"\r\nPreference-Applied: wait=60\r\n" in response
            assert E1.encode() in response


def test_the_answer_to_a_poll(tmp_path: Path) -> None:
    """A matching tag, in any form, gives 304; another gives the document; the service's date is on both."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)
        client = served.connect("reader")
        first = client.ask(get())
        head, _, body = first.partition(b"\r\n\r\n")
        assert json.loads(body) == {"DocumentIncarnation": 1, "Events": []}
        assert b"\r\nDate: Wed, 05 Feb 2031 00:" in head
        etag = head.partition(b"ETag: ")[2].partition(b"\r\n")[0].decode()
        for tag in (etag, f"W/{etag}", etag.strip('"')):
            again = client.ask(get(get_url(), f"If-None-Match: {tag}"))
            assert again.startswith(b"HTTP/1.1 304 Not Modified\r\nETag: ")
            assert b"Content-Length" not in again
        assert client.ask(get(get_url(), 'If-None-Match: "x"', "Prefer: wait=60")).startswith(b"HTTP/1.1 200")
        assert client.ask(get(get_url(), f"If-None-Match: {etag}", "Prefer: wait=60", method="HEAD")).startswith(
            b"HTTP/1.1 304"
        )
        assert client.ask(get(get_url(), f"If-None-Match: {etag}", "Prefer: wait=1")).startswith(b"HTTP/1.1 304")


def test_more_waiting_requests_than_allowed_are_answered_at_once(tmp_path: Path) -> None:
    """One client cannot hold more than four."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)
        clients = [served.connect("reader") for _ in range(MAX_WAITING + 1)]
        etag = clients[0].ask(get()).partition(b"ETag: ")[2].partition(b"\r\n")[0].decode()
        waits = get(get_url(), f"If-None-Match: {etag}", "Prefer: wait=60")
        for number, client in enumerate(clients[:-1], 1):
            client.send(waits)
            until(lambda number=number: served.clients._contacts["reader"].waiting == number)  # type: ignore[misc]
        last = clients[-1].ask(waits)
        assert last.startswith(b"HTTP/1.1 304")
        assert b"Preference-Applied" not in last


def test_without_a_fresh_document_there_is_none(tmp_path: Path) -> None:
    """Before the first document, and when none was confirmed for 60 s, every client gets 503, and then the next document."""
    with harness(tmp_path, *approving("one")) as served:
        assert statuses(served, "one", get(), post(E1)) == [503, 503]
        served.endpoint.announce()
        served.run(for_s=1)
        served.endpoint.fails = NoAnswer("no answer")
        served.run(for_s=MAX_AGE_S - 1)
        assert statuses(served, "one", get()) == [200]
        served.run(for_s=10)
        assert statuses(served, "one", get(), post(E1)) == [503, 503]
        assert served.kinds.count("client-approved") == 0
        served.endpoint.fails = None
        served.run(for_s=10)
        assert statuses(served, "one", get(), post(E1)) == [200, 200]


def test_what_may_be_approved(tmp_path: Path) -> None:
    """Ours is held, another machine's is forwarded unchanged, an unknown id is refused with all others of its request."""
    with harness(tmp_path, *approving("one"), READER) as served:
        served.endpoint.announce()
        served.endpoint.announce(E2, Resources=["web-1"])
        served.run(for_s=1)
        assert statuses(served, "reader", post(E1), post(E2)) == [405, 405]
        assert statuses(served, "one", post(E1, "00000009-0000-4000-8000-000000000000")) == [400]
        assert served.kinds.count("client-approved") == 0
        assert statuses(served, "one", post(E2.lower())) == [200]
        (sent,) = [request for request in served.endpoint.transport.requests if request[0] == "POST"]
        assert sent[1] == get_url()
        assert sent[3] == post(E2.lower()).partition(b"\r\n\r\n")[2]
        assert served.endpoint.approved == [E2.lower()]
        assert statuses(served, "one", post(E1, E1.lower(), E2), post(E1)) == [200, 200]
        assert served.endpoint.approved == [E2.lower(), E2]
        assert served.agent.state.client_approvals == {E1: ["one"]}
        assert served.kinds.count("client-approved") == 1, "a repeated approval is not recorded again"


def test_an_event_of_this_machine_is_not_forwarded_while_only_the_host_name_is_known(tmp_path: Path) -> None:
    """The agent then asks the endpoint which machine this is, and forwards nothing while the endpoint does not say."""
    with harness(tmp_path, *approving("one", "two")) as served:
        reply, instance = served.endpoint.transport.reply, [answer(b"", 429)]

        def without_a_name(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
            return instance[0] if "/instance/" in path else reply(method, path, headers, body)

        served.endpoint.transport.reply = without_a_name
        served.endpoint.announce()
        served.endpoint.announce(E2, Resources=["web-1"])
        served.run(for_s=1)
        assert served.agent.me is not None
        assert served.agent.me.origin == "hostname"
        assert statuses(served, "one", post(E1), post(E2)) == [503, 503]
        instance[0] = answer(b'{"name":"web-0"}')
        assert statuses(served, "one", post(E1, E2)) == [200]
        assert served.endpoint.approved == [E2]
        assert served.agent.state.client_approvals == {E1: ["one"]}


def test_an_endpoint_that_names_no_machine_gets_the_approvals_of_other_events(tmp_path: Path) -> None:
    """Then the host name is all there is; with `name` in its configuration the agent needs no host name."""
    with harness(tmp_path, *approving("one")) as served:
        reply = served.endpoint.transport.reply

        def without_instance(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
            return answer(b"{}", 404) if "/instance/" in path else reply(method, path, headers, body)

        served.endpoint.transport.reply = without_instance
        served.endpoint.announce(E2, Resources=["web-1"])
        served.run(for_s=1)
        assert statuses(served, "one", post(E2)) == [200]
        assert served.endpoint.approved == [E2]


def test_nothing_is_held_if_forwarding_fails(tmp_path: Path) -> None:
    """The endpoint's error is passed on, and the approvals of the same request are not recorded."""
    with harness(tmp_path, *approving("one")) as served:
        served.endpoint.announce()
        served.endpoint.announce(E2, Resources=["web-1"])
        served.run(for_s=1)
        reply = served.endpoint.transport.reply
        served.endpoint.transport.reply = lambda *_: answer(b'{"error":"no"}', 409, retry_after="7")
        client = served.connect("one")
        refused = client.ask(post(E1, E2))
        assert refused.startswith(b"HTTP/1.1 409 Conflict\r\n")
        assert b"\r\nRetry-After: 7\r\n" in refused
        assert refused.endswith(b'{"error":"no"}')
        served.endpoint.transport.reply = lambda *_: NoAnswer("late")
        assert client.ask(post(E2)).startswith(b"HTTP/1.1 503")
        served.endpoint.transport.reply = reply
        assert served.kinds.count("client-approved") == 0


def test_repeating_an_approval_is_safe(tmp_path: Path) -> None:
    """An event that has started or is over may be approved; nothing happens."""
    with harness(tmp_path, *approving("one")) as served:
        served.endpoint.announce()
        served.run(for_s=1)
        served.endpoint.start()
        served.run(for_s=1)
        assert statuses(served, "one", post(E1)) == [200]
        served.endpoint.end()
        served.run(for_s=1)
        assert statuses(served, "one", post(E1)) == [200]
        assert served.kinds.count("client-approved") == 0


def test_an_event_that_ends_while_the_agent_is_down_may_be_approved(tmp_path: Path) -> None:
    """The client does not know that the event is over, and the other ids of its request count."""
    with harness(tmp_path, *approving("one", "two")) as served:
        served.endpoint.announce()
        served.run(for_s=1)
        served.listener.close()
        served.endpoint.end()
        served.restart()
        served.endpoint.announce(E2)
        served.run(for_s=1)
        assert statuses(served, "one", post(E1, E2)) == [200]
        assert served.agent.state.client_approvals == {E2: ["one"]}


class FullJournal(Journal):
    """Takes no record while `full`."""

    full = False

    def append(self, record: Mapping[str, Any]) -> dict[str, Any]:
        if self.full:
            raise JournalError("no space left")
        return super().append(record)


def test_an_approval_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    """A client is answered 200 only when its approval is on the disk."""
    with harness(tmp_path, *approving("one"), journal_type=FullJournal) as served:
        journal = served.journal
        assert isinstance(journal, FullJournal)
        served.endpoint.announce()
        served.run(for_s=1)
        journal.full = True
        assert statuses(served, "one", post(E1)) == [503]
        journal.full = False
        assert served.agent.state.client_approvals == {}
        assert statuses(served, "one", post(E1)) == [200]


def test_approvals_end_with_the_event(tmp_path: Path) -> None:
    """An event that is gone and listed again must be approved again; the journal keeps approvals when it is compacted."""
    with harness(tmp_path, *approving("one", "two")) as served:
        served.endpoint.announce()
        served.run(for_s=1)
        served.sdk("one").approve(E1)
        served.journal.max_bytes = 0
        served.run(for_s=1)
        served.endpoint.announce(E2, Resources=["web-0"])
        served.run(for_s=1)
        assert served.kinds[0] == "state"
        served.listener.close()
        served.restart()
        assert served.agent.state.client_approvals == {E1: ["one"]}
        served.endpoint.end()
        served.run(for_s=1)
        assert served.agent.state.client_approvals == {}


def test_an_approval_that_comes_when_its_event_ends_is_not_kept(tmp_path: Path) -> None:
    """The thread of a connection may record it after the agent recorded the end; the event may be listed again."""
    with harness(tmp_path, *approving("one")) as served:
        served.endpoint.announce()
        served.run(for_s=1)
        served.endpoint.end()
        served.run(for_s=1)
        served.agent.record_client_approval("one", [E1])
        assert served.agent.state.client_approvals == {}
        served.endpoint.announce()
        served.run(for_s=5)
        assert why(served) == "client 'one' has not approved it"
        assert served.endpoint.approved == []


def test_what_the_instance_is_comes_from_the_endpoint(tmp_path: Path) -> None:
    """It is passed through; the same request of six clients is one request to the endpoint."""
    with harness(tmp_path, *approving(*SIX)) as served:
        served.run(for_s=1)
        before = len(served.endpoint.transport.requests)
        names = [served.sdk(name).me() for name in SIX]
        assert {(me.name, me.origin) for me in names} == {("web-0", "instance")}
        assert len(served.endpoint.transport.requests) == before + 1
        served.clock.now_s += 60
        served.sdk("one").me()
        assert len(served.endpoint.transport.requests) == before + 2
        served.endpoint.fails = NotReady(503, "away")
        assert statuses(served, "one", get("/metadata/instance?api-version=2017-08-01")) == [503]


def test_a_request_to_the_endpoint_does_not_keep_the_agent_from_ending() -> None:
    """The agent ends at once, also while clients ask the endpoint one after another."""

    def ends(*_: object) -> Reply:
        upstream.close()
        return answer(b"{}")

    upstream = Upstream(lambda: "http://10.0.0.1", ScriptedTransport(ends), ManualTime())
    assert upstream.instance("/metadata/instance").status == 200


@pytest.mark.parametrize("path", ["../identity", "%2e%2e/identity", ".", "compute//name", "compute\\name"])
def test_no_other_path_is_passed_through(tmp_path: Path, path: str) -> None:
    """A client of the agent gets nothing else of the endpoint, such as tokens."""
    with harness(tmp_path, READER) as served:
        served.run(for_s=1)
        before = len(served.endpoint.transport.requests)
        assert statuses(served, "reader", get(f"/metadata/instance/{path}?api-version=2020-07-01")) == [404]
        assert len(served.endpoint.transport.requests) == before


def test_status_and_metrics_list_the_clients(tmp_path: Path) -> None:
    """`status` shows who is awaited and who approved; a silent approving client is counted."""
    with harness(tmp_path, *approving("one", "two", timeout_s=60), READER) as served:
        served.endpoint.announce()
        served.run(for_s=1)
        served.sdk("one").approve(E1)
        lines = status.terminal_lines(status.describe(served.agent), served.clock.wall(), running=True)
        port = served.listener.ports()
        assert port["one"] > 0
        assert lines[-3:] == [
            f"client     one at 127.0.0.1:0: heard, its approval is awaited, approved {E1}",
            "client     two at 127.0.0.1:0: not heard yet, its approval is awaited",
            "client     reader at 127.0.0.1:0: not heard yet, only reads",
        ]
        served.clock.now_s += 61
        described = status.describe(served.agent)["clients"]
        assert [each["state"] for each in described] == ["silent", "not heard yet", "not heard yet"]
        lines = status.terminal_lines(status.describe(served.agent), served.clock.wall(), running=True)
        assert lines[-2] == "client     two at 127.0.0.1:0: not heard yet, NOT WAITED FOR"
        status.write(served.agent, tmp_path, tmp_path / "agent.prom")
        assert "forewarn_agent_silent_clients 2\n" in (tmp_path / "agent.prom").read_text()


def test_status_shows_when_a_client_that_never_came_is_no_longer_awaited(tmp_path: Path) -> None:
    """The agent writes status and metrics again at that moment, although nothing else changes."""
    with harness(tmp_path, *approving("one", timeout_s=60)) as served:
        shown: list[bool] = []
        served.agent._on_change = lambda agent: shown.append(status.describe(agent)["clients"][0]["awaited"])
        served.run(for_s=59)
        assert set(shown) == {True}
        served.run(for_s=32)
        assert shown[-1] is False


def test_a_client_may_approve_while_the_agent_reads_the_approvals(tmp_path: Path) -> None:
    """The agent's thread writes its status from the approvals of before, and goes on."""
    with harness(tmp_path, *approving("one", "two")) as served:
        served.endpoint.announce()
        served.endpoint.announce(E2, Resources=["web-0"])
        served.run(for_s=1)
        assert statuses(served, "one", post(E1)) == [200]
        before = served.agent.state.client_approvals
        reading = iter(before.items())
        assert statuses(served, "two", post(E1, E2)) == [200]
        assert list(reading) == [(E1, ["one"])]
        assert served.agent.state.client_approvals == {E1: ["one", "two"], E2: ["two"]}


def test_a_client_never_compacts_the_journal(tmp_path: Path) -> None:
    """Its thread could read a state that the agent's thread changes; the agent compacts with its next record."""
    with harness(tmp_path, *approving("one")) as served:
        served.endpoint.announce()
        served.run(for_s=1)
        served.journal.max_bytes = 0
        assert statuses(served, "one", post(E1)) == [200]
        assert served.kinds[-1] == "client-approved"
        served.run(for_s=5)
        assert served.kinds[0] == "state"
        assert served.endpoint.approved == [E1]


def test_approvals_of_many_threads_are_all_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and the agent's own thread write one journal."""
    # A long poll of the agent takes a minute of the manual clock at once: a thread may then find the document too old.
    monkeypatch.setattr(served_clients, "MAX_AGE_S", math.inf)
    with harness(tmp_path, *approving(*SIX, timeout_s=1e9)) as served:
        ids = [f"{number:08X}-0000-4000-8000-000000000000" for number in range(20)]
        for event_id in ids:
            served.endpoint.announce(event_id, in_s=1e9)
        served.agent.poll(1.0)

        def approve(name: str) -> None:
            client = served.sdk(name)
            for event_id in ids:
                client.approve(event_id)

        threads = [threading.Thread(target=approve, args=(name,)) for name in SIX]
        for thread in threads:
            thread.start()
        served.run(lambda: not any(thread.is_alive() for thread in threads), for_s=1e8)
        for thread in threads:
            thread.join()
        served.run(for_s=60)
        assert sorted(set(served.endpoint.approved)) == ids
        for names in served.agent.state.client_approvals.values():
            assert sorted(names) == sorted(SIX)


def test_an_unknown_id_is_refused_in_the_sdks_words(tmp_path: Path) -> None:
    """A client that approves what it never saw has a fault, and hears of it."""
    with harness(tmp_path, *approving("one")) as served:
        served.run(for_s=1)
        with pytest.raises(Refused, match=r"400: Bad request\. EventId .* is not an event of this machine's scope"):
            served.sdk("one").approve(E1)
