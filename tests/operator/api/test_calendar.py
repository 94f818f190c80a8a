"""The calendar: what it shows at each moment of a maintenance, who may read it, and that its token is written nowhere."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import icalendar
import pytest
import vobject  # type: ignore[import-untyped]

from forewarn.core.model import Maintenance, Status
from forewarn.core.operator_model import MAX_CALENDAR_TOKENS, MAX_CALENDAR_TOKENS_PER_SCOPE, Role
from forewarn.operator.api.calendar import KEPT_DAYS, MAX_ENTRIES, MAX_NAMES, calendar_of, entries_of
from forewarn.operator.api.icalendar import EntryStatus
from forewarn.store import MaintenanceQuery
from forewarn.store.memory import MemoryStore
from tests.support.records import at, change, event, maintenance, scope, token
from tests.support.running_service import START, Reply, RunningService, running_service

SHOP = {"type": "Reboot", "targets": {"scope": "shop"}, "duration_s": 600, "description": "kernel; 6.1, new"}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def token_of(service: RunningService, *scopes: str, **more: object) -> str:
    body = {"name": "wall", "role": "calendar", "scopes": list(scopes), **more}
    return str(service.post("/v1/tokens", body, 201)["token"])


def read(service: RunningService, token: str, method: str = "GET", **headers: str) -> Reply:
    return service.request(method, f"/v1/calendar.ics?token={token}", token="", headers=headers)


def entries(service: RunningService, token: str) -> dict[str, Any]:
    """Return the entries by UID; the second parser must find the same."""
    reply = read(service, token)
    assert reply.status == 200, reply.raw
    found: dict[str, Any] = {str(each["UID"]): each for each in icalendar.Calendar.from_ical(reply.raw).walk("VEVENT")}
    others = {each.uid.value: each for each in vobject.readOne(reply.raw.decode()).contents.get("vevent", [])}
    assert found.keys() == others.keys()
    for uid, each in found.items():
        assert others[uid].dtstart.value == each.start
        assert others[uid].summary.value == each["SUMMARY"]
    return found


def facts(entry: Any) -> tuple[object, ...]:
    return str(entry["STATUS"]), entry["SEQUENCE"], entry.start


# -- what it shows


def test_a_maintenance_from_its_announcement_to_its_end(service: RunningService) -> None:
    """One entry per wave. Its UID stays, its sequence grows; the time of a wave that is not announced is an estimate."""
    token = token_of(service, "shop")
    assert entries(service, token) == {}
    made = service.post("/v1/maintenances", SHOP, 201)
    first, second = (f"{made['id']}-{wave}@forewarn" for wave in (1, 2))
    notice, work = timedelta(minutes=15), timedelta(minutes=10)
    found = entries(service, token)
    assert list(found) == [first, second]
    assert facts(found[first]) == ("CONFIRMED", 1, START + notice)
    assert found[first].end == START + notice + work
    assert facts(found[second]) == ("TENTATIVE", 4, START + notice + work + notice)
    assert found[first]["SUMMARY"] == "Reboot: shop/web-0"
    assert found[second]["SUMMARY"] == "Reboot: shop/web-1 (not announced yet)"
    assert found[first]["DESCRIPTION"].startswith("kernel; 6.1, new\nIt is announced.")
    assert found[first]["TRANSP"] == "TRANSPARENT"

    started = START + notice
    service.post("/v1/clock/advance", {"seconds": 900})
    assert facts(entries(service, token)[first]) == ("CONFIRMED", 2, started)
    service.post("/v1/clock/advance", {"seconds": 180})
    order = service.get("/v1/orders")["items"][0]["id"]
    service.post(f"/v1/orders/{order}/start")
    service.post(f"/v1/orders/{order}/finish")
    service.post("/v1/clock/advance", {"seconds": 0})
    found = entries(service, token)
    assert (*facts(found[first]), found[first].end) == ("CONFIRMED", 3, started, started + timedelta(minutes=3))
    assert facts(found[second]) == ("CONFIRMED", 5, started + timedelta(minutes=3) + notice)
    assert found[first]["DTSTAMP"].dt == found[first]["LAST-MODIFIED"].dt == started + timedelta(minutes=3)

    service.post(f"/v1/maintenances/{made['id']}/cancel")
    assert facts(entries(service, token)[second])[:2] == ("CANCELLED", 7)
    service.clock.move_to(started + timedelta(days=KEPT_DAYS, minutes=4))
    assert entries(service, token) == {}


def test_a_token_shows_its_scopes_alone(service: RunningService) -> None:
    """Without scopes it shows the whole fleet, a wave in one entry."""
    made = service.post("/v1/maintenances", {"type": "Reboot", "targets": {"hosts": ["rack1-a"]}}, 201)
    uid = f"{made['id']}-1@forewarn"
    for scopes, summary in (
        ((), "Reboot: blog/db, shop/web-0"),
        (("shop",), "Reboot: shop/web-0"),
        (("blog",), "Reboot: blog/db"),
    ):
        (found,) = entries(service, token_of(service, *scopes)).values()
        assert (found["UID"], found["SUMMARY"]) == (uid, summary)
        assert all(f"{scope}/" not in found["DESCRIPTION"] for scope in {"shop", "blog"} - set(scopes) if scopes)


def test_a_later_earliest_start_counts() -> None:
    """The hard earliest start, and the requested start of a wave that is not announced."""
    events = [event("E1", "M1", status=Status.SCHEDULED, published=at(0), not_before=at(900), duration_s=60)]
    events.append(event("E2", "M1", wave=2, position=1, status=Status.PLANNED))
    assert [e.start for e in entries_of(events, {"M1": maintenance("M1", earliest=at(9_000))})] == [
        at(9_000),
        at(9_060),
    ]
    assert [e.start for e in entries_of(events, {"M1": maintenance("M1")}, {"M1"})] == [at(900)]
    raised = [replace(each, minimum_notice_s=7_200) for each in events]
    assert [e.start for e in entries_of(raised, {})] == [at(900), at(900 + 60 + 7_200)]
    unknown = entries_of([event("E2", "M2", status=Status.PLANNED)], {"M2": maintenance("M2", not_before=at(5_000))})
    assert [(e.start, e.end, e.status) for e in unknown] == [(at(5_000), None, EntryStatus.TENTATIVE)]
    assert entries_of([event("E2", "M2", status=Status.PLANNED)], {}) == []
    assert entries_of([event("E2", "M2", status=Status.PLANNED)], {"M2": maintenance("M2")}) == []


def test_a_wave_with_a_cancelled_event_shows_the_others() -> None:
    """It is cancelled only when all its events are; one that was abandoned says so."""
    shown = {"status": Status.SCHEDULED, "published": at(0), "not_before": at(900)}
    kept = event("E1", "M1", scope="a", **shown)
    gone = event("E2", "M1", scope="b", position=1, **{**shown, "status": Status.CANCELLED, "ended": at(5)})
    (found,) = entries_of([kept, gone], {})
    assert (found.status, found.summary, found.changed) == (EntryStatus.CONFIRMED, "Reboot: a/web-0", at(5))
    (found,) = entries_of([gone], {})
    assert (found.status, found.sequence) == (EntryStatus.CANCELLED, 7)
    (found,) = entries_of(
        [event("E3", "M3", status=Status.ABANDONED, published=at(0), started=at(9), ended=at(99))], {}
    )
    assert (found.start, found.end, "abandoned" in found.description) == (at(9), at(99), True)


def test_the_sequence_does_not_decrease_when_events_are_cancelled_one_by_one(service: RunningService) -> None:
    """A client ignores an entry with a lower sequence than it has: it would keep a cancelled wave."""
    token = token_of(service)
    made = service.schedule("shop/web-0", "blog/db")
    ids = [each["id"] for each in made["waves"][0]["events"]]
    found = []
    for cancelled in (None, *ids):
        if cancelled is not None:
            service.post(f"/v1/events/{cancelled}/cancel")
        (entry,) = entries(service, token).values()
        found.append((entry["SEQUENCE"], str(entry["STATUS"])))
    assert [status for _, status in found] == ["CONFIRMED", "CONFIRMED", "CANCELLED"]
    assert found[0][0] <= found[1][0] < found[2][0]


def test_the_sequence_grows_when_a_wave_is_planned_again() -> None:
    """A wave that missed its window has new events in the same wave: announced, planned again, announced, cancelled."""
    announced = {"status": Status.SCHEDULED, "published": at(0), "not_before": at(900)}
    later = {**announced, "position": 1, "replaces": "E1", "published": at(9_000), "not_before": at(9_900)}
    missed = event("E1", "M1", **{**announced, "status": Status.CANCELLED, "ended": at(950), "replaced_by": "E2"})
    waiting = event("E2", "M1", status=Status.PLANNED, position=1, replaces="E1")
    cancelled = event("E2", "M1", **{**later, "status": Status.CANCELLED, "ended": at(9_500)})
    known = {"M1": maintenance("M1", not_before=at(800))}
    found = []
    for wave in ([event("E1", "M1", **announced)], [missed, waiting], [missed, event("E2", "M1", **later)],
                 [missed, cancelled], [cancelled]):  # fmt: skip
        (entry,) = entries_of(wave, known)
        found.append((entry.uid, entry.sequence, entry.start, entry.status))
    uid, tentative, confirmed = "M1-1@forewarn", EntryStatus.TENTATIVE, EntryStatus.CONFIRMED
    assert found == [
        (uid, 1, at(900), confirmed),
        (uid, 4, at(800), tentative),
        (uid, 5, at(9_900), confirmed),
        (uid, 7, at(9_900), EntryStatus.CANCELLED),
        (uid, 7, at(9_900), EntryStatus.CANCELLED),
    ]


def test_it_is_bounded() -> None:
    """However much is open: so many entries, so many names, and it says that something is missing."""
    many = [
        event(
            f"E{n}", f"M{n}", status=Status.SCHEDULED, published=at(0), not_before=at(900), description="ß" * 1_024,
            resources=tuple(f"{'web' * 20}-{m:02}" for m in range(50)),
        )
        for n in range(MAX_ENTRIES + 1)
    ]  # fmt: skip
    found = entries_of(many, {})
    assert "and 30 more" in found[0].description
    assert found[0].summary == "Reboot: 50 machines of shop"
    assert len(found[0].description) < 100 * MAX_NAMES
    store = MemoryStore()
    maintenances = [maintenance(each.maintenance_id) for each in many]
    store.apply(change(scopes=[scope("shop")], maintenances=maintenances, events=many))
    content = calendar_of(store, ("shop",), at(0))
    assert content.count(b"BEGIN:VEVENT") == MAX_ENTRIES
    assert b"X-WR-CALDESC:" in content
    assert b"Only 500" in content.replace(b"\r\n ", b"")
    assert len(content) < 2 * 1024 * 1024
    two = [
        event(f"E{n}", "M", scope=f"s{n}", position=n, not_before=at(9), published=at(0), status=Status.SCHEDULED)
        for n in range(4)
    ]
    assert entries_of(two, {})[0].summary == "Reboot: 4 machines of 4 scopes"


def test_waves_of_many_events_keep_their_order() -> None:
    """Every wave is read, however many events are planned. If they are too many, none has the time of another wave."""
    store = MemoryStore()
    waiting = {"published": None, "not_before": None, "status": Status.PLANNED, "duration_s": 60}
    first = {
        "published": at(0),
        "not_before": at(900),
        "status": Status.SCHEDULED,
        "duration_s": 60,
        "minimum_notice_s": 900,
    }
    events = [
        event(f"{m}-{n}", m, wave=n + 1, position=n, resources=(f"{m}-{n}",), **(waiting if n else first))
        for m in ("M0", "M1")
        for n in range(6)
    ]
    store.apply(change(scopes=[scope("shop")], maintenances=[maintenance("M0"), maintenance("M1")], events=events))

    def starts(content: bytes) -> dict[str, Any]:
        found: list[Any] = icalendar.Calendar.from_ical(content).walk("VEVENT")
        return {str(each["UID"]): each.start for each in found}

    everything = calendar_of(store, None, at(0), page=4)
    found = starts(everything)
    # Each wave of a minute follows 15 minutes of notice.
    assert found == {f"{m}-{n + 1}@forewarn": at(900 + n * 960) for m in ("M0", "M1") for n in range(6)}
    assert b"too much" not in everything
    cut = calendar_of(store, None, at(0), page=4, max_events=9)
    assert starts(cut) == {uid: start for uid, start in found.items() if uid.startswith("M1") or uid == "M0-1@forewarn"}
    assert b"There is too much to show all of it here" in cut.replace(b"\r\n ", b"")


# -- who may read it


def test_only_its_own_kind_of_token_reads_it(service: RunningService) -> None:
    """Other tokens get 403 there, unknown ones 401; in a header no token counts. It is read, not written."""
    token = token_of(service)
    for role in Role:
        if role is not Role.CALENDAR:
            reply = read(service, service.token_of(role, *(["shop"] if role is Role.OWNER else [])))
            assert (reply.status, "not for the calendar" in reply.message) == (403, True)
    assert read(service, "fw_unknown").status == 401
    assert service.request("GET", "/v1/calendar.ics", token=token).status == 401
    assert service.request("GET", f"/v1/calendar.ics?token={token}&token={token}", token="").status == 401
    assert service.request("POST", f"/v1/calendar.ics?token={token}", token="").status == 405
    head = read(service, token, "HEAD")
    assert (head.status, head.raw) == (200, b"")


def test_it_works_for_nothing_else(service: RunningService) -> None:
    """Neither in a header nor in an address: no call, no stream, no login."""
    token = token_of(service, "shop")
    for path in ("/v1/scopes", "/v1/stream", "/v1/tokens", "/v1/none", "/v1/clock"):
        reply = service.request("GET", path, token=token)
        assert (reply.status, reply.message) == (
            403,
            "this token reads the calendar and nothing else: use another token",
        )
        assert service.request("GET", f"{path}?token={token}", token="").status == 401
    login = service.request(
        "POST", "/login", f"token={token}", token="", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert login.status == 403
    assert "set-cookie" not in login.headers


def test_a_token_ends_and_is_revoked_as_others_are(service: RunningService) -> None:
    """Its use is recorded, too."""
    ends, revoked = (
        token_of(service, valid_for_s=3_600),
        service.post("/v1/tokens", {"name": "x", "role": "calendar"}, 201),
    )
    assert read(service, revoked["token"]).status == 200
    service.access_recorder.save()
    assert service.get(f"/v1/tokens/{revoked['id']}")["last_used"] == "2030-01-01T00:00:00Z"
    assert service.request("DELETE", f"/v1/tokens/{revoked['id']}").status == 204
    assert read(service, revoked["token"]).status == 401
    service.clock.move_to(START + timedelta(seconds=3_600))
    assert (read(service, ends).status, "expired" in read(service, ends).message) == (401, True)


def test_an_owner_manages_the_calendars_of_its_own_scopes(service: RunningService) -> None:
    """It creates, sees and revokes such tokens and no others; none outlives its own token."""
    owner = service.post("/v1/tokens", {"name": "o", "role": "owner", "scopes": ["shop"], "valid_for_s": 3_600}, 201)[
        "token"
    ]
    others = service.post("/v1/tokens", {"name": "all", "role": "calendar"}, 201)["id"]
    for body, message in (
        ({"role": "viewer"}, "use the role calendar"),
        ({"role": "owner", "scopes": ["shop"]}, "use the role calendar"),
        ({"role": "calendar"}, "with --scope; yours are shop"),
        ({"role": "calendar", "scopes": ["blog"]}, "scope blog is not among yours: shop"),
        ({"role": "calendar", "scopes": ["none"]}, "scope none is not among yours: shop"),
    ):
        refused = service.request("POST", "/v1/tokens", {"name": "n", **body}, token=owner)
        assert (refused.status, message in refused.message) == (403, True), refused.message
    for valid_for_s, expires in ((None, "01:00"), (60, "00:01"), (86_400, "01:00")):
        wanted = {"name": "mine", "role": "calendar", "scopes": ["shop"], "valid_for_s": valid_for_s}
        made = service.post("/v1/tokens", wanted, 201, token=owner)
        assert made["expires"] == f"2030-01-01T{expires}:00Z"
    assert read(service, made["token"]).status == 200
    assert {each["name"] for each in service.get("/v1/tokens", token=owner)["items"]} == {"mine"}
    assert service.request("GET", f"/v1/tokens/{others}", token=owner).status == 404
    assert service.request("DELETE", f"/v1/tokens/{others}", token=owner).status == 404
    assert service.get("/v1/resolve?text=all&kind=token", token=owner)["matches"] == []
    assert service.request("DELETE", f"/v1/tokens/{made['id']}", token=owner).status == 204
    assert read(service, made["token"]).status == 401


def test_tokens_for_the_calendar_are_limited(service: RunningService) -> None:
    """For each scope, created by owners or operators, and in all; a revoked one makes room."""

    def add(number: int, *scopes: str) -> None:
        many = [token(f"{scopes}-{n}", role=Role.CALENDAR, scopes=scopes) for n in range(number)]
        service.service.store.apply(change(tokens=many))

    add(MAX_CALENDAR_TOKENS_PER_SCOPE - 2, "shop")
    owner = service.token_of("owner", "shop", "blog")
    body = {"name": "c", "role": "calendar", "scopes": ["shop"]}
    first = service.post("/v1/tokens", body, 201, token=owner)
    service.post("/v1/tokens", {**body, "scopes": ["blog", "shop"]}, 201, token=owner)
    for secret in (owner, service.token):
        refused = service.request("POST", "/v1/tokens", body, token=secret)
        assert (refused.status, refused.message) == (
            409, "scope shop has 20 tokens for the calendar already: revoke one first",
        )  # fmt: skip
    assert service.request("DELETE", f"/v1/tokens/{first['id']}", token=owner).status == 204
    service.post("/v1/tokens", body, 201, token=owner)
    add(MAX_CALENDAR_TOKENS - MAX_CALENDAR_TOKENS_PER_SCOPE - 1)
    service.post("/v1/tokens", {**body, "scopes": []}, 201)
    refused = service.request("POST", "/v1/tokens", {**body, "scopes": ["blog"]}, token=owner)
    assert (refused.status, "there are 1000 tokens for the calendar already" in refused.message) == (409, True)
    service.post("/v1/tokens", {"name": "v", "role": "viewer"}, 201)


def test_without_tokens_everybody_here_reads_it() -> None:
    """As the API of such a service: programs and pages of this machine, no pages of other sites."""
    with running_service(token_free="true") as service:
        assert service.request("GET", "/v1/calendar.ics").status == 200
        assert service.request("GET", "/v1/calendar.ics", headers={"Origin": "https://other.example"}).status == 403


# -- HTTP


def test_what_calendar_programs_insist_on(service: RunningService) -> None:
    """The rules of RFC 5545 that Thunderbird and Google Calendar check, in a calendar of every status and awkward texts.

    Thunderbird asks for the type with HEAD before it subscribes, and names what it accepts.
    """
    token = token_of(service)
    texts = ("kernel; 6.1, new", "ß" * 200 + "😀\\n", "x" * 300)
    made = [service.post("/v1/maintenances", {**SHOP, "description": text}, 201) for text in texts]
    service.post(f"/v1/maintenances/{made[1]['id']}/cancel")
    service.post("/v1/clock/advance", {"seconds": 900})
    accepted = {"Accept": "text/calendar,text/plain;q=0.8,*/*;q=0.5"}
    assert read(service, token, "HEAD", **accepted).headers["content-type"] == "text/calendar; charset=utf-8"
    raw = read(service, token, **accepted).raw
    assert raw.endswith(b"END:VCALENDAR\r\n")
    assert b"\n" not in raw.replace(b"\r\n", b"")
    assert max(len(line) for line in raw.split(b"\r\n")) <= 75
    lines = raw.decode().replace("\r\n ", "").split("\r\n")
    # Every time is in UTC, so no zone need be defined; without a METHOD nothing is an invitation.
    assert [line for line in lines if "TZID" in line or line.startswith(("METHOD", "ORGANIZER", "ATTENDEE"))] == []
    first = icalendar.Calendar.from_ical(raw)
    assert (first["VERSION"], str(first["PRODID"])) == ("2.0", "-//forewarn//maintenance//EN")
    assert [component.errors for component in first.walk()] == [[]] * len(first.walk())
    vobject.readOne(raw.decode()).validate(raiseException=True)
    events: list[Any] = first.walk("VEVENT")
    assert {str(each["STATUS"]) for each in events} == {"CONFIRMED", "TENTATIVE", "CANCELLED"}
    assert len({str(each["UID"]) for each in events}) == len(events) == 6
    for each in events:
        assert (each["SEQUENCE"] >= 0, each.start < each.end) == (True, True)
        for name in ("DTSTAMP", "DTSTART", "DTEND", "LAST-MODIFIED"):
            moment: Any = each[name]
            assert (moment.dt.utcoffset(), moment.to_ical()[-1:]) == (timedelta(0), b"Z")


def test_an_unchanged_calendar_is_not_sent_again(service: RunningService) -> None:
    """Its ETag changes with its content only; caches of others must not keep it, and nothing refers to its address."""
    token = token_of(service)
    first = read(service, token)
    assert first.headers["content-type"] == "text/calendar; charset=utf-8"
    assert first.headers["cache-control"] == "private, max-age=300"
    assert first.headers["referrer-policy"] == "no-referrer"
    assert read(service, "fw_unknown").headers["referrer-policy"] == "no-referrer"
    service.clock.move_to(START + timedelta(hours=5))
    again = read(service, token, **{"If-None-Match": first.headers["etag"]})
    assert (again.status, again.raw, again.headers["etag"]) == (304, b"", first.headers["etag"])
    service.post("/v1/maintenances", SHOP, 201)
    changed = read(service, token, **{"If-None-Match": first.headers["etag"]})
    assert (changed.status, changed.headers["etag"] == first.headers["etag"]) == (200, False)


class FaultyStore(MemoryStore):
    """Fails with a defect while `faulty`, when maintenances are listed."""

    faulty = False

    def maintenances(self, query: MaintenanceQuery) -> list[Maintenance]:
        if self.faulty:
            raise ZeroDivisionError
        return super().maintenances(query)


def test_its_token_is_written_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a log, nor in the audit, in metrics or in a response: when it works, when it does not, and at a fault."""
    store = FaultyStore()
    with running_service(in_store=store) as service:
        token, wrong = token_of(service, "shop"), "fw_wrong-but-secret"
        replies = []
        with caplog.at_level(logging.DEBUG):
            for each in (token, wrong):
                replies += [read(service, each), read(service, each, "POST"), read(service, each, "HEAD")]
                replies.append(service.request("GET", f"/v1/none?token={each}"))
                replies.append(service.request("GET", f"/v1/scopes?token={each}"))
                replies.append(service.request("GET", f"/v1/calendar.ics/?token={each}"))
            store.faulty = True
            failed = read(service, token)
            store.faulty = False
            assert (failed.status, failed.code) == (500, "internal")
        service.access_recorder.save()
        written = [caplog.text, str(service.get("/v1/audit?limit=500"))]
        written += [service.request("GET", "/metrics").raw.decode()]
        written += [each.raw.decode() + str(each.headers) for each in (*replies, failed)]
        assert "authentication failed" in caplog.text
        assert "a call of the API failed: GET /v1/calendar.ics" in caplog.text
        for secret in (token, wrong, token.removeprefix("fw_")):
            assert not [text for text in written if secret in text]
