"""What a guest sees, byte for byte. `pytest tests/core --rewrite` writes the golden files; read them before committing."""

import json
import locale
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.document import (
    MAX_BODY_BYTES,
    MAX_START_REQUESTS,
    NEWEST,
    VERSIONS,
    api_version,
    parse_start_requests,
    render,
    rfc1123,
    visible,
)
from forewarn.core.errors import Invalid, NotFound
from forewarn.core.model import Event, EventType, ScopeKind, Source, Status
from tests.support.builders import event, guid, scope

GOLDEN = Path(__file__).parent / "golden"
SEVEN = ["2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01"]
FIRST_KEYS = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"]
NOT_BEFORE = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)

FREEZE, REBOOT, REDEPLOY = EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY
PREEMPT, TERMINATE = EventType.PREEMPT, EventType.TERMINATE


def shown(number: int, type_: EventType, status: Status, *resources: str, **facts: Any) -> Event:
    return event(number, type=type_, status=status, resources=resources, not_before=NOT_BEFORE, **facts)


# Every type, waiting and under way, from both sources; what is not visible is strewn in between.
IAAS = [
    shown(
        1,
        FREEZE,
        Status.SCHEDULED,
        "web-0",
        "web-1",
        description="Réseau : nouveau pilote, coupure de 9 s",
        duration_s=9,
    ),
    shown(2, FREEZE, Status.STARTED, "web-2", description='A "quoted" \\ thing </b>', duration_s=0),
    shown(11, REBOOT, Status.PLANNED, "web-3"),
    shown(3, REBOOT, Status.SCHEDULED, "web-3", source=Source.USER, description="重启 🛠"),
    shown(4, REBOOT, Status.STARTED, "web-4", source=Source.USER),
    shown(12, REBOOT, Status.COMPLETED, "web-4"),
    shown(5, REDEPLOY, Status.SCHEDULED, "web-5", source=Source.USER),
    shown(6, REDEPLOY, Status.STARTED, "web-6", duration_s=600),
    shown(13, REDEPLOY, Status.CANCELLED, "web-5"),
    shown(7, PREEMPT, Status.SCHEDULED, "web-7"),
    shown(8, PREEMPT, Status.STARTED, "web-8"),
    shown(14, PREEMPT, Status.ABANDONED, "web-8"),
    shown(9, TERMINATE, Status.SCHEDULED, "web-9"),
    shown(10, TERMINATE, Status.STARTED, "web-10"),
]
CLOUD_SERVICE = [
    shown(1, REBOOT, Status.SCHEDULED, "BackEnd_IN_0", "FrontEnd_IN_0", description="Größere Wartung", duration_s=60),
    shown(2, REDEPLOY, Status.STARTED, "FrontEnd_IN_1"),
]


def documents() -> Iterator[tuple[str, bytes]]:
    """Every golden file's name and what it must hold."""
    group = scope("pool", kind=ScopeKind.PLACEMENT_GROUP, incarnation=42)
    service = scope("service", kind=ScopeKind.CLOUD_SERVICE, incarnation=7)
    for name, version in VERSIONS.items():
        yield f"iaas-{name}.json", render(group, IAAS, version)
        yield f"cloud-service-{name}.json", render(service, CLOUD_SERVICE, version)
    yield "empty.json", render(scope(), [], VERSIONS[NEWEST])


# -- the bytes


@pytest.mark.parametrize("name, seen", [pytest.param(name, seen, id=name) for name, seen in documents()])
def test_document_is_the_golden_one(name: str, seen: bytes, request: pytest.FixtureRequest) -> None:
    """A document is the same, byte for byte, for ever: "Old versions keep working for ever"."""
    if request.config.getoption("--rewrite"):
        (GOLDEN / name).write_bytes(seen)
    assert seen == (GOLDEN / name).read_bytes()


def test_there_is_a_golden_document_for_every_version() -> None:
    """There are golden files for seven versions of two scopes and for the empty document, and no others."""
    expected = {f"{kind}-{version}.json" for kind in ("iaas", "cloud-service") for version in SEVEN} | {"empty.json"}
    assert {path.name for path in GOLDEN.iterdir()} == expected


@pytest.mark.parametrize("version", SEVEN)
def test_an_empty_document_is_the_same_in_every_version(version: str) -> None:
    """No events: `"Events":[]`."""
    assert render(scope(), [], VERSIONS[version]) == (GOLDEN / "empty.json").read_bytes()


# -- what the bytes say, version by version


def golden(version: str, kind: str = "iaas") -> list[dict[str, Any]]:
    """The events of a golden document."""
    events: list[dict[str, Any]] = json.loads((GOLDEN / f"{kind}-{version}.json").read_bytes())["Events"]
    return events


@pytest.mark.parametrize(
    "version, newer",
    [
        ("2017-03-01", []),
        ("2017-08-01", []),
        ("2017-11-01", []),
        ("2019-01-01", []),
        ("2019-04-01", ["Description"]),
        ("2019-08-01", ["Description", "EventSource"]),
        ("2020-07-01", ["Description", "EventSource", "DurationInSeconds"]),
    ],
)
def test_fields_of_a_version(version: str, newer: list[str]) -> None:
    """A field newer than the requested version is absent, not null, and the keys keep their order."""
    for kind in ("iaas", "cloud-service"):
        assert [list(each) for each in golden(version, kind)] == [FIRST_KEYS + newer] * len(golden(version, kind))


@pytest.mark.parametrize(
    "version, types",
    [
        ("2017-03-01", {"Freeze", "Reboot", "Redeploy"}),
        ("2017-08-01", {"Freeze", "Reboot", "Redeploy"}),
        ("2017-11-01", {"Freeze", "Reboot", "Redeploy", "Preempt"}),
        ("2019-01-01", {"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}),
        ("2019-04-01", {"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}),
        ("2019-08-01", {"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}),
        ("2020-07-01", {"Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"}),
    ],
)
def test_types_of_a_version(version: str, types: set[str]) -> None:
    """An event type newer than the requested version is not listed; the incarnation is the scope's all the same."""
    assert [(each["EventType"], each["EventStatus"]) for each in golden(version)] == [
        (type_, status)
        for type_ in ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
        if type_ in types
        for status in ("Scheduled", "Started")
    ]
    assert json.loads((GOLDEN / f"iaas-{version}.json").read_bytes())["DocumentIncarnation"] == 42


@pytest.mark.parametrize("version", SEVEN)
def test_not_before_of_a_version(version: str) -> None:
    """NotBefore is ISO 8601 in the preview and RFC 1123 ever after, and empty once the event is Started."""
    waiting = "2016-09-19T18:29:47Z" if version == "2017-03-01" else "Mon, 19 Sep 2016 18:29:47 GMT"
    for each in golden(version) + golden(version, "cloud-service"):
        assert each["NotBefore"] == (waiting if each["EventStatus"] == "Scheduled" else "")


@pytest.mark.parametrize("version", SEVEN)
def test_names_of_a_version(version: str) -> None:
    """Only the preview prepends an underscore, and only to IaaS VMs: role instances never had it."""
    underscore = "_" if version == "2017-03-01" else ""
    assert golden(version)[0]["Resources"] == [f"{underscore}web-0", f"{underscore}web-1"]
    assert golden(version, "cloud-service")[0]["Resources"] == ["BackEnd_IN_0", "FrontEnd_IN_0"]


@pytest.mark.parametrize("kind", ScopeKind)
def test_the_underscore_is_for_every_kind_but_cloud_services(kind: ScopeKind) -> None:
    """Machines of sets, placement groups and standalone machines are IaaS VMs."""
    document = json.loads(render(scope(kind=kind), [event()], VERSIONS["2017-03-01"]))
    expected = "web-0" if kind is ScopeKind.CLOUD_SERVICE else "_web-0"
    assert document["Events"][0]["Resources"] == [expected]


def test_values_of_the_newest_version() -> None:
    """Text is UTF-8, numbers are numbers, EventSource has two values and ResourceType one."""
    text = (GOLDEN / "iaas-2020-07-01.json").read_text("utf-8")
    first, second, third = golden("2020-07-01")[:3]
    assert '"Description":"重启 🛠","EventSource":"User","DurationInSeconds":-1}' in text
    assert first["DurationInSeconds"] == 9
    assert second["DurationInSeconds"] == 0
    assert (first["EventSource"], third["EventSource"]) == ("Platform", "User")
    assert {each["ResourceType"] for each in golden("2020-07-01")} == {"VirtualMachine"}
    assert [each["EventId"] for each in golden("2020-07-01")] == [guid(number) for number in range(1, 11)]


def test_the_json_is_compact() -> None:
    """The document has no space outside of strings."""
    for path in GOLDEN.iterdir():
        again = json.dumps(json.loads(path.read_bytes()), separators=(",", ":"), ensure_ascii=False)
        assert path.read_bytes() == again.encode("utf-8")


# -- order


def test_events_are_in_order_of_publication() -> None:
    """Events are in order of publication; events published together keep their planned order."""
    later = event(1, sequence=2, position=0)
    together = event(2, sequence=1, position=1)
    first = event(3, sequence=1, position=0)
    assert [e.id for e in visible([later, together, first])] == [guid(3), guid(2), guid(1)]


@pytest.mark.parametrize("status", Status)
def test_guests_see_scheduled_and_started_only(status: Status) -> None:
    """A document shows no Planned and no ended event."""
    expected = [event(status=status)] if status in ("Scheduled", "Started") else []
    assert visible([event(status=status)]) == expected


# -- which version


def test_seven_versions_ascending() -> None:
    """The versions are the seven of the protocol, the newest last."""
    assert list(VERSIONS) == SEVEN
    assert NEWEST == "2020-07-01"


@pytest.mark.parametrize("version", SEVEN)
def test_a_published_version_is_found(version: str) -> None:
    """Each version's row has its name."""
    assert api_version(version).name == version


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "latest",
        "{latest}",
        "2017-08",
        "2017-8-1",
        "17-08-01",
        "2017-08-01 ",
        " 2017-08-01",
        "2017-08-01\n",
        "2017-08-01T00:00:00Z",
        "20200701",
        "2021-13-01",
        "2021-00-10",
        "2021-01-00",
        "2021-01-32",
        "٢٠٢١-٠١-٠١",
        "2016-12-31",
        "2017-08-02",
        "2020-06-30",
        "9999",
        "v2020-07-01",
    ],
)
def test_a_version_that_never_was(text: str | None) -> None:
    """Missing, malformed, `latest`, or a date never published: 400 with the protocol's sentence."""
    with pytest.raises(Invalid) as refusal:
        api_version(text)
    assert str(refusal.value) == "Bad request. api-version is invalid or was not specified in the request."
    assert refusal.value.status == 400


@pytest.mark.parametrize("text", ["2020-07-02", "2021-01-01", "2099-12-31", "9999-12-31"])
def test_a_version_of_the_future(text: str) -> None:
    """A well-formed date later than the newest version: 404, because clients fall back on it."""
    with pytest.raises(NotFound) as refusal:
        api_version(text)
    assert str(refusal.value) == "Not found. api-version is not available"
    assert refusal.value.status == 404


# -- times

RFC_1123 = [
    ((2024, 1, 1, 0, 0, 0), "Mon, 01 Jan 2024 00:00:00 GMT"),
    ((2024, 2, 6, 1, 2, 3), "Tue, 06 Feb 2024 01:02:03 GMT"),
    ((2024, 3, 6, 23, 59, 59), "Wed, 06 Mar 2024 23:59:59 GMT"),
    ((2024, 4, 4, 12, 0, 0), "Thu, 04 Apr 2024 12:00:00 GMT"),
    ((2024, 5, 3, 12, 0, 0), "Fri, 03 May 2024 12:00:00 GMT"),
    ((2024, 6, 8, 12, 0, 0), "Sat, 08 Jun 2024 12:00:00 GMT"),
    ((2024, 7, 7, 12, 0, 0), "Sun, 07 Jul 2024 12:00:00 GMT"),
    ((2024, 8, 1, 12, 0, 0), "Thu, 01 Aug 2024 12:00:00 GMT"),
    ((2016, 9, 19, 18, 29, 47), "Mon, 19 Sep 2016 18:29:47 GMT"),
    ((2024, 10, 1, 12, 0, 0), "Tue, 01 Oct 2024 12:00:00 GMT"),
    ((2024, 11, 1, 12, 0, 0), "Fri, 01 Nov 2024 12:00:00 GMT"),
    ((2024, 12, 31, 23, 59, 59), "Tue, 31 Dec 2024 23:59:59 GMT"),
]


@pytest.mark.parametrize("moment, text", RFC_1123)
def test_rfc_1123(moment: tuple[int, int, int, int, int, int], text: str) -> None:
    """Days and months have their English names, every number its full width."""
    assert rfc1123(datetime(*moment, tzinfo=UTC)) == text


def test_rfc_1123_in_every_locale() -> None:
    """The names are English in every locale of this machine."""
    moments = {name: datetime(*moment, tzinfo=UTC) for moment, name in RFC_1123}
    before = locale.setlocale(locale.LC_ALL)
    tried = 0
    try:
        for name in ("C", *locale.locale_alias.values()):
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
            tried += 1
            assert {text: rfc1123(moment) for text, moment in moments.items()} == {text: text for text in moments}
    finally:
        locale.setlocale(locale.LC_ALL, before)
    assert tried >= 1


# -- StartRequests


def body(*ids: str, **more: Any) -> bytes:
    return json.dumps({**more, "StartRequests": [{"EventId": each} for each in ids]}).encode()


def test_start_requests_name_events() -> None:
    """The ids come out in the order given."""
    assert parse_start_requests(body(guid(2), guid(1))) == (guid(2), guid(1))


def test_ids_are_read_in_any_case() -> None:
    """EventId: upper-case; "Input in any case"."""
    lower = "602d9444-d2cd-49c7-8624-8643e7171297"
    mixed = "602D9444-d2cd-49C7-8624-8643e7171297"
    assert parse_start_requests(body(lower, mixed)) == (lower.upper(),)


def test_repeats_count_once() -> None:
    """Repeats in one request count once."""
    assert parse_start_requests(body(guid(1), guid(2), guid(1))) == (guid(1), guid(2))


@pytest.mark.parametrize("incarnation", [5, "5", "", None, -1, 1.5, [], {"deep": [1]}, True])
def test_the_incarnation_in_the_body_is_not_checked(incarnation: object) -> None:
    """DocumentIncarnation in the body is optional, a number or a string, and not checked."""
    assert parse_start_requests(body(guid(1), DocumentIncarnation=incarnation)) == (guid(1),)


def test_other_keys_are_tolerated() -> None:
    """A client may send more than is needed, beside the list and in its entries."""
    text = f'{{"Extra":1,"StartRequests":[{{"EventId":"{guid(1)}","Extra":[]}}]}}'
    assert parse_start_requests(text.encode()) == (guid(1),)


def test_a_mark_before_the_body_is_tolerated() -> None:
    """Some clients write a UTF-8 byte order mark before their JSON."""
    assert parse_start_requests(b"\xef\xbb\xbf" + body(guid(1))) == (guid(1),)


def test_a_hundred_ids_fit_one_request() -> None:
    """At most 100 ids: the hundredth is taken, the hundred and first is refused."""
    hundred = [guid(number) for number in range(100)]
    assert parse_start_requests(body(*hundred)) == tuple(hundred)
    with pytest.raises(Invalid, match="more than 100 entries"):
        parse_start_requests(body(*hundred, guid(100)))


def test_the_limits_are_those_of_the_protocol() -> None:
    """At most 100 ids and 64 KiB, and a hundred ids fit into that."""
    assert (MAX_START_REQUESTS, MAX_BODY_BYTES) == (100, 65_536)
    assert len(body(*[guid(number) for number in range(100)])) < MAX_BODY_BYTES


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b" ",
        b"{",
        b"StartRequests",
        b"{'StartRequests':[]}",
        b'{"StartRequests":[],}',
        b'{"StartRequests":[]}{}',
        b"\xff\xfe\xfd",
        body(guid(1)).decode().encode("utf-16"),
        body(guid(1)).decode().encode("utf-32-le"),
        b'{"StartRequests":"\xc3"}',
        b'{"StartRequests":NaN}',
        f'{{"DocumentIncarnation":NaN,"StartRequests":[{{"EventId":"{guid(1)}"}}]}}'.encode(),
        f'{{"DocumentIncarnation":-Infinity,"StartRequests":[{{"EventId":"{guid(1)}"}}]}}'.encode(),
        b'{"DocumentIncarnation":' + b"9" * 10_000 + b',"StartRequests":[]}',
        b"[" * MAX_BODY_BYTES,
        b'{"a":' * 13_000,
        b"[" * 30_000 + b"]" * 30_000,
    ],
    ids=range(18),
)
def test_a_body_that_is_not_json(sent: bytes) -> None:
    """Anything that is not JSON, however deep or long, is a bad request and never a crash."""
    with pytest.raises(Invalid, match=r"^Bad request\. The body is not JSON$"):
        parse_start_requests(sent)


@pytest.mark.parametrize("sent", [b"null", b"1", b'"StartRequests"', b"true", b"[]", b'[{"EventId":"x"}]'])
def test_a_body_that_is_not_an_object(sent: bytes) -> None:
    """The body must be a JSON object."""
    with pytest.raises(Invalid, match=r"^Bad request\. The body is not a JSON object$"):
        parse_start_requests(sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"{}",
        b'{"startrequests":[{"EventId":"x"}]}',
        b'{"StartRequests":null}',
        b'{"StartRequests":[]}',
        b'{"StartRequests":{}}',
        b'{"StartRequests":"x"}',
        b'{"StartRequests":1}',
        b'{"StartRequests":{"EventId":"602D9444-D2CD-49C7-8624-8643E7171297"}}',
    ],
)
def test_start_requests_are_a_non_empty_list(sent: bytes) -> None:
    """A missing, empty or misshapen StartRequests is a bad request."""
    with pytest.raises(Invalid, match=r"^Bad request\. StartRequests must be a non-empty list$"):
        parse_start_requests(sent)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        1,
        "602D9444-D2CD-49C7-8624-8643E7171297",
        [],
        ["602D9444-D2CD-49C7-8624-8643E7171297"],
        {},
        {"eventid": "602D9444-D2CD-49C7-8624-8643E7171297"},
        {"EventId": None},
        {"EventId": 1},
        {"EventId": ["602D9444-D2CD-49C7-8624-8643E7171297"]},
        {"EventId": ""},
        {"EventId": "602D9444D2CD49C786248643E7171297"},
        {"EventId": "{602D9444-D2CD-49C7-8624-8643E7171297}"},
        {"EventId": "602D9444-D2CD-49C7-8624-8643E717129"},
        {"EventId": "602D9444-D2CD-49C7-8624-8643E7171297 "},
        {"EventId": "602D9444-D2CD-49C7-8624-8643E7171297\n"},
        {"EventId": "602D9444-D2CD-49C7-8624-8643E717129G"},
        {"EventId": "602D9444-D2CD-49C7-8624-8643E717129７"},
        {"EventId": "\ud800"},
    ],
)
def test_each_entry_holds_a_guid(entry: object) -> None:
    """One entry without a GUID as EventId refuses the whole request, with the index of the entry."""
    sent = json.dumps({"StartRequests": [{"EventId": guid(1)}, entry]}).encode()
    with pytest.raises(Invalid, match=r"^Bad request\. StartRequests\[1\] has no EventId that is a GUID$"):
        parse_start_requests(sent)
