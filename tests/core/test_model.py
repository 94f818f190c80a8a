"""What a thing may be at all: frozen data that refuses to be wrong."""

from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_address
from typing import Any

import pytest

from forewarn.core.change import Change
from forewarn.core.errors import Invalid
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.model import (
    ENDED,
    MAX_CHECKED_NAMES,
    MAX_DURATION_S,
    MAX_NOTICE_S,
    OPEN,
    UNSTARTED,
    VISIBLE,
    CheckedNames,
    EventType,
    Host,
    HostMode,
    Machine,
    MaintenanceRequest,
    Scope,
    ScopeKind,
    Source,
    Status,
    Targets,
)
from tests.support.builders import START, at, event, machine, request, scope


def only(key: str, value: Any) -> dict[str, Any]:
    """One keyword argument by name."""
    return {key: value}


# -- names


@pytest.mark.parametrize("name", ["a", "7", "web-0", "FrontEnd_IN_0", "a.b.c", "A" * 64])
def test_names(name: str) -> None:
    """A name has 1 to 64 letters, digits, dots, underscores and hyphens, and starts with a letter or digit."""
    assert Machine(scope=name, name=name).key == (name, name)
    assert scope(name).name == name


@pytest.mark.parametrize(
    "name", ["", "-web", ".web", "_web", "web 0", "web/0", "wéb", "web\n", "A" * 65, "web\x00", None, 7, ["web"]]
)
def test_a_bad_name_is_refused(name: Any) -> None:
    """The message states the rule, for machines and for scopes."""
    for make in (
        lambda: Machine(scope="shop", name=name),
        lambda: Machine(scope=name, name="web-0"),
        lambda: Scope(name=name, kind=ScopeKind.STANDALONE),
    ):
        with pytest.raises(Invalid, match=r"is not a name: use 1 to 64 letters, digits, '\.', '_' or '-'"):
            make()


# -- machines


@pytest.mark.parametrize("key", ["update_domain", "fault_domain"])
def test_domains_are_small_numbers(key: str) -> None:
    """Update and fault domains are 0 to 999."""
    for good in (0, 999):
        assert getattr(machine(**only(key, good)), key) == good
    for bad in (-1, 1_000):
        with pytest.raises(Invalid, match=f"{key} is {bad}: use a whole number from 0 to 999"):
            machine(**only(key, bad))


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"name": "rack 1"}, "host 'rack 1' is not a name"),
        ({"fault_domain": -1}, "fault_domain is -1: use a whole number from 0 to 999"),
        ({"fault_domain": 1_000}, "fault_domain is 1000: use a whole number from 0 to 999"),
        ({"labels": {f"k{n}": "" for n in range(33)}}, "33 labels: at most 32 are allowed"),
        ({"labels": {"a b": "x"}}, "label 'a b' is not a name"),
        ({"labels": {"rack": "x" * 129}}, "label rack is 129 characters long: at most 128 are allowed"),
        ({"labels": {"rack": "a\nb"}}, "label rack holds control characters"),
        ({"connection": "qemu:///\x00"}, "connection holds control characters"),
        ({"connection": "x" * 513}, "connection is 513 characters long: at most 512 are allowed"),
    ],
)
def test_a_host_that_cannot_be(fact: dict[str, Any], message: str) -> None:
    """A host has a name, a fault domain, a few short labels and a connection of one line."""
    with pytest.raises(Invalid, match=message):
        Host(**{"name": "kvm-07", **fact})


def test_a_host() -> None:
    """The largest host that is allowed."""
    labels = {f"k{n}": "x" * 128 for n in range(32)}
    assert Host(name="kvm-07", labels=labels, fault_domain=999, connection="x" * 512).labels == labels


def test_a_host_is_a_name_or_nothing() -> None:
    """The host of a machine may be empty; otherwise it is a name."""
    assert machine(host="").host == ""
    assert machine(host="rack-1.h7").host == "rack-1.h7"
    with pytest.raises(Invalid, match="host 'rack 1' is not a name"):
        machine(host="rack 1")


@pytest.mark.parametrize("key, limit", [("interface", 64), ("instance_id", 128)])
def test_texts_of_a_machine_have_a_limit(key: str, limit: int) -> None:
    """interface and instance_id are plain text of bounded length."""
    assert getattr(machine(**only(key, "x" * limit)), key) == "x" * limit
    with pytest.raises(Invalid, match=f"{key} is {limit + 1} characters long: at most {limit} are allowed"):
        machine(**only(key, "x" * (limit + 1)))
    with pytest.raises(Invalid, match=f"{key} holds control characters"):
        machine(**only(key, "tap\x07"))


def test_addresses_are_normalized() -> None:
    """Addresses are in their shortest form, sorted, each once."""
    known = machine(addresses=("fd00:0:0::4", "10.0.0.9", "10.0.0.4", "FD00::4"))
    assert known.addresses == ("10.0.0.4", "10.0.0.9", "fd00::4")


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.256", "10.0.0.4/24", "web-0", "010.0.0.4", "fd00::4::1"])
def test_a_bad_address_is_refused(text: str) -> None:
    """The message quotes the address and shows a good one."""
    with pytest.raises(Invalid) as refusal:
        machine(addresses=(text,))
    assert str(refusal.value) == f"addresses: {text!r} is not an IP address: write it like 10.0.0.4 or fd00::4"


@pytest.mark.parametrize("text", ["0.0.0.0", "9.10.99.100", "199.200.249.250", "255.255.255.255", "fd00::4"])
def test_an_address_in_its_usual_form_is_kept(text: str) -> None:
    """It is the form in which `ipaddress` writes it."""
    assert machine(addresses=(text,)).addresses == (text,) == (str(ip_address(text)),)


def test_machines_share_the_objects_of_names_and_of_no_labels() -> None:
    """A fleet may have a million machines, and few scopes and hosts."""
    one, other = (
        Machine(scope="".join("shop"), name="".join("web"), host="".join("rack-1"), labels={}) for _ in range(2)
    )
    assert (one.scope is other.scope, one.name is other.name, one.host is other.host) == (True, True, True)
    assert one.labels is other.labels is machine().labels


def test_sixteen_addresses_fit_a_machine() -> None:
    """At most 16 addresses."""
    sixteen = tuple(f"10.0.0.{number}" for number in range(16))
    assert len(machine(addresses=sixteen).addresses) == 16
    with pytest.raises(Invalid, match="17 addresses: at most 16 are allowed"):
        machine(addresses=(*sixteen, "10.0.1.0"))


@pytest.mark.parametrize(
    "facts, identities",
    [
        ({}, ()),
        ({"addresses": ("10.0.0.4", "fd00::4")}, (("", "10.0.0.4"), ("", "fd00::4"))),
        ({"interface": "tap0", "addresses": ("10.0.0.4",)}, (("tap0", "10.0.0.4"),)),
        ({"interface": "tap0"}, (("tap0", ""),)),
    ],
)
def test_how_a_caller_is_identified(facts: dict[str, Any], identities: tuple[tuple[str, str], ...]) -> None:
    """Pairs of interface and address identify a machine; an interface without addresses does so alone."""
    assert machine(**facts).identities == identities


def test_a_machine_is_known_as_scope_and_name() -> None:
    """A machine is written as `scope/name`."""
    assert str(machine("shop/web-0")) == "shop/web-0"


# -- scopes


@pytest.mark.parametrize("type_", EventType)
def test_the_minimum_notice_of_a_scope(type_: EventType) -> None:
    """The protocol's minimum of each type, unless the scope has a higher one."""
    expected = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Preempt": 30, "Terminate": 300}
    assert scope().notice_s(type_) == expected[type_] == EVENT_TYPES[type_].minimum_notice_s


@pytest.mark.parametrize("type_", [t for t in EventType if t is not EventType.TERMINATE])
def test_minimum_notice_can_only_be_raised(type_: EventType) -> None:
    """A scope's minimum notice is at least the protocol's and at most 30 days."""
    floor_s = EVENT_TYPES[type_].minimum_notice_s
    for good in (floor_s, floor_s + 1, MAX_NOTICE_S):
        assert scope(minimum_notice_s={type_: good}).notice_s(type_) == good
    for bad in (floor_s - 1, 0, MAX_NOTICE_S + 1):
        with pytest.raises(Invalid, match=f"minimum_notice of {type_} is {bad}s: it can only be raised above"):
            scope(minimum_notice_s={type_: bad})


def test_terminate_notice_lies_between_5_and_15_minutes() -> None:
    """Terminate: 5 to 15 min, set per scope by its own setting."""
    for good in (300, 900):
        assert scope(terminate_notice_s=good).notice_s(EventType.TERMINATE) == good
    for bad in (0, 299, 901):
        with pytest.raises(Invalid, match=f"terminate_notice is {bad}s: it must lie between 5m and 15m"):
            scope(terminate_notice_s=bad)
    with pytest.raises(Invalid, match="minimum_notice does not take Terminate: set terminate_notice instead"):
        scope(minimum_notice_s={EventType.TERMINATE: 600})


def test_max_user_operations_is_a_number() -> None:
    """0 means the general limit; a negative number is refused."""
    for good in (0, 10, 1_000_000):
        assert scope(max_user_operations=good).max_user_operations == good
    for bad in (-1, 1_000_001):
        with pytest.raises(
            Invalid, match=rf"max_user_operations is {bad}: use 0 \(the general limit\) or a positive number"
        ):
            scope(max_user_operations=bad)


# -- requests


def test_targets_are_exactly_one_kind() -> None:
    """A maintenance targets machines, a scope, several scopes, hosts, or everything."""
    one: dict[str, Any] = {
        "machines": (("shop", "web-0"),),
        "scope": "shop",
        "scopes": ("shop", "db"),
        "hosts": ("h1",),
        "everything": True,
    }
    for key, value in one.items():
        assert getattr(Targets(**only(key, value)), key) == value
    for wrong in ({}, {k: one[k] for k in ("machines", "scope")}, {k: one[k] for k in ("scope", "scopes")}, one):
        with pytest.raises(
            Invalid, match="targets must be exactly one of machines, a scope, scopes, hosts, or everything"
        ):
            Targets(**wrong)


def test_labels_and_names_choose_among_scopes_or_the_fleet() -> None:
    """They may be combined with each other and with scopes, with nothing else; patterns and labels of hosts choose hosts."""
    chosen = ({"labels": "rack=a3"}, {"names": ("web-*",)}, {"labels": "gpu", "names": ("web-*",)})
    for selector in chosen:
        for scopes in ({}, {"scope": "shop"}, {"scope": "shop", "update_domain": 0}, {"scopes": ("shop", "db")}):
            assert Targets(**selector, **scopes).selects
        for other in (
            {"machines": (("shop", "web-0"),)},
            {"hosts": ("h1",)},
            {"host_labels": "x"},
            {"everything": True},
        ):
            with pytest.raises(Invalid, match="labels and names choose among scopes, or the whole fleet"):
                Targets(**selector, **other)
    with pytest.raises(Invalid, match="targets must be exactly one of"):
        Targets(labels="gpu", scope="shop", scopes=("db",))
    for hosts in (
        Targets(hosts=("h1", "kvm-*")),
        Targets(host_labels="rack=a3"),
        Targets(hosts=("h1",), host_labels="x"),
    ):
        assert hosts.selects
        assert hosts.on_hosts
    assert Targets(everything=True).selects
    for plain in (Targets(hosts=("h1",)), Targets(scope="shop"), Targets(machines=(("shop", "web-0"),))):
        assert not plain.selects


def test_a_request_checks_the_hosts_that_its_selectors_choose() -> None:
    """The machines of an evacuated host cannot go to a host that is evacuated too."""
    request = MaintenanceRequest(
        type=EventType.FREEZE, targets=Targets(host_labels="rack=a3"), host_mode=HostMode.EVACUATE, to_host="kvm-2"
    )
    assert request.named_targets == request.targets
    resolved = replace(request, resolved=Targets(hosts=("kvm-1",)))
    assert resolved.named_targets.hosts == ("kvm-1",)
    with pytest.raises(Invalid, match="machines cannot go to kvm-2: it is one of the hosts to evacuate"):
        replace(request, resolved=Targets(hosts=("kvm-1", "kvm-2")))


def test_an_update_domain_needs_a_scope() -> None:
    """An update domain without a scope is refused; 0 is a valid update domain."""
    assert Targets(scope="shop", update_domain=0).update_domain == 0
    with pytest.raises(Invalid, match="update_domain needs a scope: name the scope that contains it"):
        Targets(hosts=("h1",), update_domain=0)


@pytest.mark.parametrize("type_", EventType)
def test_a_user_restarts_or_redeploys(type_: EventType) -> None:
    """User-initiated restart -> Reboot, redeploy -> Redeploy, and nothing else."""
    if type_ in ("Reboot", "Redeploy"):
        assert request("shop/web-0", type=type_, source=Source.USER).type is type_
    else:
        with pytest.raises(Invalid, match=f"a User event can be of type Reboot or Redeploy, not {type_}"):
            request("shop/web-0", type=type_, source=Source.USER)


@pytest.mark.parametrize("type_", EventType)
def test_an_emergency_is_a_platform_event(type_: EventType) -> None:
    """An emergency is a Platform Freeze, Reboot or Redeploy."""
    if type_ in ("Freeze", "Reboot", "Redeploy"):
        assert request("shop/web-0", type=type_, emergency=True).emergency
    else:
        with pytest.raises(
            Invalid, match=f"must be a Platform event of type Freeze or Reboot or Redeploy, not Platform {type_}"
        ):
            request("shop/web-0", type=type_, emergency=True)
    with pytest.raises(Invalid):
        request("shop/web-0", emergency=True, source=Source.USER)


@pytest.mark.parametrize("key", ["not_before", "earliest"])
def test_an_emergency_starts_at_once(key: str) -> None:
    """An emergency takes no not_before and no earliest."""
    with pytest.raises(Invalid, match="an emergency starts at once: leave out not_before and earliest"):
        request("shop/web-0", emergency=True, **only(key, START))


@pytest.mark.parametrize("key", ["not_before", "earliest"])
def test_the_deadline_is_later_than_every_requested_start(key: str) -> None:
    """Nothing could start otherwise."""
    assert request("shop/web-0", not_after=at(1), **only(key, START)).not_after == at(1)
    with pytest.raises(Invalid, match=f"not_after must be later than {key}"):
        request("shop/web-0", not_after=START, **only(key, START))


@pytest.mark.parametrize("key", ["not_before", "earliest", "not_after"])
def test_times_are_utc(key: str) -> None:
    """A time is aware and in UTC: a naive one, or another zone's, is refused."""
    assert getattr(request("shop/web-0", **only(key, START)), key) == START
    zone = timezone(timedelta(hours=1))
    for wrong in (START.replace(tzinfo=None), START.astimezone(zone)):
        with pytest.raises(Invalid, match=f"{key} must be a time in UTC, like 2030-01-01T12:00:00Z"):
            request("shop/web-0", **only(key, wrong))


@pytest.mark.parametrize("key", ["not_before", "earliest", "not_after"])
def test_times_are_before_the_year_9000(key: str) -> None:
    """Times are added to them, which must not leave the calendar."""
    last = datetime(8999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert getattr(request("shop/web-0", **only(key, last)), key) == last
    with pytest.raises(Invalid, match=f"{key} must be before the year 9000: choose an earlier time"):
        request("shop/web-0", **only(key, last + timedelta(seconds=1)))


def test_utc_by_another_name_is_utc() -> None:
    """A time zone with offset 0 is UTC, whatever its name."""
    moment = datetime(2030, 1, 1, tzinfo=timezone(timedelta(0), "Z"))
    assert request("shop/web-0", not_before=moment).not_before == datetime(2030, 1, 1, tzinfo=UTC)


def test_a_duration_is_unknown_none_or_some() -> None:
    """DurationInSeconds: -1 unknown, 0 no interruption, else a number of seconds up to 30 days."""
    for good in (-1, 0, 9, MAX_DURATION_S):
        assert request("shop/web-0", duration_s=good).duration_s == good
    for bad in (-2, MAX_DURATION_S + 1):
        with pytest.raises(Invalid, match=f"duration_s is {bad}: use -1"):
            request("shop/web-0", duration_s=bad)


def test_a_description_is_plain_text() -> None:
    """Any language, at most 1024 characters, no control characters, nothing that is not UTF-8."""
    for good in ("", "Größe 5 µs, 重启 🛠", "x" * 1_024):
        assert request("shop/web-0", description=good).description == good
    with pytest.raises(Invalid, match="description is 1025 characters long: at most 1024 are allowed"):
        request("shop/web-0", description="x" * 1_025)
    for bad in ("two\nlines", "bell\x07", "\x1b[31mred", "\ud800"):
        with pytest.raises(Invalid, match="description holds control characters or unpaired surrogates"):
            request("shop/web-0", description=bad)


# -- events


def test_a_status_is_open_or_ended() -> None:
    """Planned, Scheduled and Started are open; the other three are ended; guests see two."""
    assert {Status.PLANNED, Status.SCHEDULED, Status.STARTED} == OPEN
    assert {Status.COMPLETED, Status.CANCELLED, Status.ABANDONED} == ENDED
    assert {Status.SCHEDULED, Status.STARTED} == VISIBLE
    assert {Status.PLANNED, Status.SCHEDULED} == UNSTARTED


@pytest.mark.parametrize(
    "facts, bound",
    [
        ({"type": EventType.FREEZE}, True),
        ({"type": EventType.REBOOT}, True),
        ({"type": EventType.REDEPLOY}, True),
        ({"type": EventType.PREEMPT}, False),
        ({"type": EventType.TERMINATE}, False),
        ({"source": Source.USER}, False),
        ({"emergency": True}, False),
    ],
)
def test_which_events_the_update_domain_rule_applies_to(facts: dict[str, Any], bound: bool) -> None:
    """The rule applies to Platform Freeze, Reboot and Redeploy without emergency."""
    assert event(1, **facts).one_domain_at_a_time is bound


# -- changes and frozen things


def test_a_change_is_empty_when_there_is_nothing_to_save() -> None:
    """`at`, `expect` and `begins_work` alone are nothing to save; every other field is."""
    assert Change(at=START, expect=(("shop", 1),)).empty
    for part in fields(Change):
        if part.name not in ("at", "expect", "begins_work"):
            assert not Change(at=START, **only(part.name, ("something",))).empty, part.name


@pytest.mark.parametrize("thing", [scope(), machine(), event(), request("shop/web-0"), Change(at=at(1))])
def test_things_are_frozen(thing: Any) -> None:
    """No field can be assigned."""
    for part in fields(thing):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, part.name, None)


def test_a_description_may_be_in_any_language() -> None:
    """No-break and ideographic spaces are text; a line separator is not."""
    assert request("shop/web-0", description="R\u00e9paration\u00a0: \u4fdd\u5b88\u3000\u4f5c\u696d").description
    with pytest.raises(Invalid, match="control characters"):
        request("shop/web-0", description="one line\u2028another")


def test_checked_names_are_bounded() -> None:
    """A new name is checked, and replaces all names when there are as many as may be kept."""
    names = CheckedNames("machine")
    names.update((str(number), "") for number in range(MAX_CHECKED_NAMES))
    with pytest.raises(Invalid):
        names["no name"]
    assert len(names) == MAX_CHECKED_NAMES
    assert names["web-0"] == "web-0"
    assert names == {"web-0": "web-0"}
