"""Hooks: which entries they get, what a message looks like, how it is signed, when it is tried again, where it may go."""

import ipaddress
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

import forewarn.core
from forewarn.core.errors import Invalid, Refused
from forewarn.core.hooks import (
    ALL_KINDS,
    FLEET_KINDS,
    KINDS,
    MAX_RETRY_S,
    OTHER,
    USUAL_KINDS,
    AllowedTargets,
    check_kinds,
    check_url,
    enable,
    entry_message,
    gap_message,
    hook_state,
    host_of,
    kind_of,
    lost_owner,
    move_cursor,
    refuse_fleet_kinds,
    refuse_more,
    retry_after_s,
    rotate_secret,
    secret_text,
    signed_headers,
    trial_message,
    valid_secrets,
)
from forewarn.core.operator_model import MAX_HOOKS, MAX_HOOKS_PER_SCOPE, HookShape
from forewarn.core.transitions import Verb
from tests.support.records import at, entry, event, hook, token

RESOLVING = (Verb.RETRY, Verb.FINISH, Verb.ABANDON)
OLD, NEW = secret_text(b"o" * 32), secret_text(b"n" * 32)
STARTED = entry(
    id=7, hash="0123456789abcdef", action="event started", scope="shop", maintenance_id="M1", event_id="E1", detail=""
)


# -- kinds


def test_every_action_that_the_core_notes_has_a_kind_of_its_own() -> None:
    """A new action of the core belongs to a kind that `--on` can name."""
    folder = Path(forewarn.core.__file__).parent
    modules = (
        "lifecycle",
        "order_verbs",
        "host_verbs",
        "verb_steps",
        "advance",
        "cancelling",
        "host_work",
        "rescheduling",
    )
    source = "".join((folder / f"{name}.py").read_text() for name in modules)
    noted = set(re.findall(r'note(?:_order)?\(\s*(?:draft, )?"([a-z -]+)"', source)) | {
        "maintenance paused",
        "maintenance resumed",
    }
    noted |= {f"{what} {verb} by operator" for what in ("event", "host") for verb in RESOLVING}
    noted |= {"host cancelled", "host abandoned"}
    assert {action for actions in KINDS.values() for action in actions} == noted | {
        "fleet changed",
        "host cordoned",
        "host uncordoned",
    }


def test_what_no_kind_names_is_other() -> None:
    """A token, a hook, the clock and the store are rarely wanted, and can be had."""
    assert kind_of("token created") == OTHER
    assert kind_of("order failed") == "failed"


def test_kinds_are_checked_and_have_a_default() -> None:
    """Without a choice a hook gets the usual kinds; an unknown kind is refused with the known ones."""
    assert check_kinds((), "") == USUAL_KINDS
    assert check_kinds((), "shop") == tuple(kind for kind in USUAL_KINDS if kind != "ended")  # it belongs to no scope
    assert set(USUAL_KINDS) < set(ALL_KINDS)
    assert check_kinds(["failed", "started", "failed"], "") == ("failed", "started")
    with pytest.raises(Invalid, match=r"'finish' is not a kind of entry: use submitted, published, .*, other"):
        check_kinds(["finish"], "")


def test_a_hook_of_a_scope_asks_for_kinds_that_scopes_have() -> None:
    """It would never get the others: they are refused by name."""
    assert set(FLEET_KINDS) == {
        kind
        for kind, noted in KINDS.items()
        if all(action.startswith(("maintenance ", "fleet ", "host ")) for action in noted)
    }
    refuse_fleet_kinds([kind for kind in ALL_KINDS if kind not in FLEET_KINDS])
    with pytest.raises(Invalid, match=r"the kind paused, ended belong to no scope: leave it out, or create a hook for"):
        refuse_fleet_kinds(["ended", "started", "paused"])


# -- what a hook may be


@pytest.mark.parametrize(
    "url",
    ["https://example.com", "https://example.com:8443/a?b=c", "http://10.0.0.1/x", "https://[2001:db8::1]:80/x?"],
)
def test_a_url_names_a_host(url: str) -> None:
    """A name, an IPv4 or an IPv6 address, with or without a port, a path and a query."""
    assert hook(url=url).url == url
    assert host_of(hook(url=url)) in ("example.com", "10.0.0.1", "2001:db8::1")


@pytest.mark.parametrize(
    "url",
    [
        "example.com",
        "ftp://example.com/",
        "https://",
        "https:///path",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://example.com/a b",
        "https://example.com/\r\nX: y",
        "https://exämple.com/",
        "https://example.com:123456/",
        "https://example.com/" + "x" * 1_024,
    ],
)
def test_another_url_is_refused(url: str) -> None:
    """No user name, which would be a secret in lists; nothing that could end a line of a request."""
    with pytest.raises(Invalid, match="url is"):
        hook(url=url)


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "Hooks-1.example.com.:65535",
        "a_b.c:1",
        "localhost",
        "10.0.0.1:80",
        "[2001:db8::1]:443",
        "1.example",
        "x" * 63,
    ],
)
def test_a_host_and_a_port_that_can_be_reached(host: str) -> None:
    """Names, also with a dot at the end, and addresses."""
    for rest in ("", "/in", "?a=b"):
        check_url(f"https://{host}{rest}")


@pytest.mark.parametrize(
    "host",
    [
        "-", "a..b", ".", ".a", "a-.b", "-a.b", "a.b..", "x" * 64,
        "0", "127.1", "0x7f000001", "1.2.3", "1.2.3.4.5", "256.1.1.1", "127.0.0.1.", "a.0", "[1:2]", "[::::]",
        "example.com:0", "example.com:65536", "example.com:99999",
    ],
)  # fmt: skip
def test_a_host_or_a_port_that_nobody_has_is_refused(host: str) -> None:
    """Also a number that a resolver would take for an address."""
    with pytest.raises(Invalid, match="url needs the name or the address of a host, and a port from 1 to 65535"):
        check_url(f"https://{host}/in")


def test_a_hook_has_secrets_and_a_scope_or_none() -> None:
    """A hook without a secret could not sign; a scope has a name."""
    with pytest.raises(Invalid, match="1 to 3 secrets"):
        hook(secrets=())
    with pytest.raises(Invalid, match="is not a name"):
        hook(scope="a b")
    assert hook(scope="shop").scope == "shop"


def test_the_fleet_and_each_scope_have_a_limited_number() -> None:
    """One more is refused; hooks of other scopes count for the fleet alone."""
    few = [hook(f"H{n}", scope="shop") for n in range(MAX_HOOKS_PER_SCOPE)]
    refuse_more(few, "blog")
    refuse_more(few[1:], "shop")
    with pytest.raises(Refused, match="scope shop has 10 hooks"):
        refuse_more(few, "shop")
    with pytest.raises(Refused, match="the fleet has 10 hooks"):
        refuse_more([hook(f"H{n}") for n in range(MAX_HOOKS_PER_SCOPE)], "")
    with pytest.raises(Refused, match="there are 200 hooks"):
        refuse_more([hook(f"H{n}", scope=f"s{n}") for n in range(MAX_HOOKS)], "shop")


def test_owners_leave_half_of_the_hooks_to_operators() -> None:
    """However many scopes they own."""
    half = [hook(f"H{n}", scope=f"s{n}", owner_token="T1") for n in range(MAX_HOOKS // 2)]
    operators = [hook(f"O{n}", scope=f"s{n}") for n in range(50)]
    refuse_more([*half[1:], *operators], "shop", of_owner=True)
    refuse_more(half, "shop")
    with pytest.raises(Refused, match="owners have 100 hooks already: delete one, or ask an operator"):
        refuse_more(half, "shop", of_owner=True)


# -- messages


def test_a_message_is_a_cloudevent() -> None:
    """It has the attributes of CloudEvents 1.0; its data are the entry and what no longer changes of the event."""
    known = event("E1", resources=("web-0", "web-1"), published=at(0), not_before=at(900))
    message = entry_message(hook("0123456789"), STARTED, known, "/forewarn/abc")
    assert message.content_type == "application/cloudevents+json; charset=utf-8"
    assert message.id == "msg_01234567_7-0123456789ab"
    body = json.loads(message.body)
    assert {key: body[key] for key in ("specversion", "id", "source", "type", "time", "subject")} == {
        "specversion": "1.0",
        "id": "7-0123456789ab",
        "source": "/forewarn/abc",
        "type": "forewarn.event.started",
        "time": STARTED.at.isoformat().replace("+00:00", "Z"),
        "subject": "shop/E1",
    }
    assert body["datacontenttype"] == "application/json"
    assert body["data"]["event"]["machines"] == ["shop/web-0", "shop/web-1"]
    assert body["data"]["event"]["not_before"] == "2030-01-01T00:15:00Z"
    assert "origin" not in body["data"], "where requests came from is nobody else's business"


def test_a_message_without_an_event_or_a_scope_says_so() -> None:
    """An entry about a maintenance has no event; an entry about nothing has no subject."""
    body = json.loads(entry_message(hook(), replace(STARTED, event_id="", scope=""), None, "/f").body)
    assert (body["subject"], body["data"]["event"]) == ("M1", None)
    bare = replace(STARTED, event_id="", scope="", maintenance_id="")
    assert "subject" not in json.loads(entry_message(hook(), bare, None, "/f").body)
    unpublished = event("E1", not_before=None, published=None)
    assert json.loads(entry_message(hook(), STARTED, unpublished, "/f").body)["data"]["event"]["not_before"] is None


def test_slack_and_teams_get_a_sentence() -> None:
    """The same entry as text; what Slack reads as markup is escaped."""
    failed = replace(STARTED, action="order failed", detail="<b> & more", who="ticker")
    many = event("E1", resources=tuple(f"web-{n}" for n in range(7)), published=at(0), not_before=at(900))
    text = (
        "shop: order failed: Reboot of web-0, web-1, web-2, web-3, web-4 and 2 more, not before 2030-01-01 00:15 UTC"
        " (<b> & more), by ticker"
    )
    slack = entry_message(hook(shape=HookShape.SLACK), failed, many, "/f")
    assert json.loads(slack.body) == {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    teams = json.loads(entry_message(hook(shape=HookShape.TEAMS), failed, many, "/f").body)
    assert teams["attachments"][0]["content"]["body"][0]["text"] == text
    assert slack.content_type == "application/json"
    one = event("E1", published=None, not_before=None)
    assert json.loads(entry_message(hook(shape=HookShape.SLACK), replace(STARTED, who="x"), one, "/f").body) == {
        "text": "shop: event started: Reboot of web-0, by x"
    }
    ended = replace(STARTED, action="maintenance ended", scope="", event_id="", detail="Failed", who="ticker")
    assert json.loads(entry_message(hook(shape=HookShape.SLACK), ended, None, "/f").body) == {
        "text": "maintenance ended M1 (Failed), by ticker"
    }


def test_a_gap_and_a_test_have_messages_of_their_own() -> None:
    """The gap names the entries that are lost."""
    gap = gap_message(hook(cursor=4, gap_after=4, gap_until=9), at(3), "/f")
    body = json.loads(gap.body)
    assert body["type"] == "forewarn.hook.gap"
    assert body["data"] == {"hook": "H1", "after": 4, "until": 9}
    text = json.loads(gap_message(hook(shape=HookShape.SLACK, gap_after=4, gap_until=9), at(3), "/f").body)["text"]
    assert "entries 5 to 9" in text
    trial = trial_message(hook(scope="shop"), at(3), "/f", "abc")
    assert trial.id == "msg_H1_test-abc"
    assert json.loads(trial.body)["subject"] == "shop"


# -- signatures


def test_signatures_are_those_of_the_specification() -> None:
    """The reference library accepts each of the secrets that sign, and no other."""
    message = entry_message(hook(), STARTED, None, "/f")
    unix_s = int(datetime.now(UTC).timestamp())
    headers = signed_headers(message, (NEW, OLD), unix_s)
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(message.body, headers)["id"] == "7-0123456789ab"
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(message.body, signed_headers(message, (NEW,), unix_s))
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(message.body + b" ", headers)


def test_an_old_secret_signs_until_its_time_is_over() -> None:
    """A rotation puts the new secret first and keeps the one before it; older ones are dropped."""
    one = hook(secrets=(OLD,))
    assert valid_secrets(one, at(0)) == (OLD,)
    two = rotate_secret(one, NEW, at(60))
    assert valid_secrets(two, at(59)) == (NEW, OLD)
    assert valid_secrets(two, at(60)) == (NEW,)
    third = secret_text(b"3")
    assert rotate_secret(two, third, at(70)).secrets == (third, NEW)
    stored_before = replace(two, secrets=(third, NEW, OLD))
    assert valid_secrets(stored_before, at(59)) == (third, NEW)


def test_an_ended_secret_never_signs_again() -> None:
    """Neither one that was ended at once nor one whose time was over returns with a later rotation."""
    ended = rotate_secret(rotate_secret(hook(secrets=(OLD,)), NEW, at(60)), secret_text(b"3"), None)
    assert (ended.secrets, ended.old_secrets_until) == ((secret_text(b"3"),), None)
    again = rotate_secret(ended, secret_text(b"4"), at(1_000))
    assert valid_secrets(again, at(0)) == (secret_text(b"4"), secret_text(b"3"))


# -- attempts


def test_attempts_come_less_and_less_often() -> None:
    """At least every five minutes; a receiver may ask for more time, but not for ever."""
    assert [retry_after_s(n) for n in (1, 2, 3, 4, 5, 6, 100)] == [1, 5, 15, 60, 300, 300, 300]
    assert retry_after_s(1, 30) == 30
    assert retry_after_s(6, 30) == 300
    assert retry_after_s(1, 1e9) == MAX_RETRY_S


def test_an_enabled_hook_has_not_failed() -> None:
    """Its cursor and its gap stay."""
    broken = hook(failing_since=at(0), failures=3, error="x", disabled=at(9), cursor=5, gap_after=1, gap_until=3)
    assert enable(broken, "") == hook(cursor=5, gap_after=1, gap_until=3)
    taken_over = [enable(replace(broken, owner_token="T1"), token_id).owner_token for token_id in ("T2", "")]
    assert taken_over == ["T2", ""]
    assert enable(broken, "T2").owner_token == "", "an operator's hook does not become an owner's"


def test_a_hook_of_an_owner_needs_the_owners_token() -> None:
    """One that is revoked or over will not do; an operator's hook needs none."""
    mine = hook(owner_token="T1")
    assert lost_owner(mine, [], at(0))
    assert not lost_owner(mine, [token("T2"), token("T1")], at(0))
    assert not lost_owner(mine, [token("T1", expires=at(9))], at(8))
    assert lost_owner(mine, [token("T1", expires=at(9))], at(9))
    assert not lost_owner(hook(), [], at(0))


def test_a_hook_is_active_failing_or_disabled() -> None:
    """The state that lists, metrics and the portal show."""
    failing = hook(failing_since=at(0), failures=1)
    assert [hook_state(h) for h in (hook(), failing, replace(failing, disabled=at(9)))] == [
        "active",
        "failing",
        "disabled",
    ]


def test_a_hook_can_go_on_elsewhere() -> None:
    """An entry that the audit holds, or the next one; a disabled hook stays disabled."""
    broken = hook(failing_since=at(0), failures=3, error="x", disabled=at(9), cursor=5)
    assert move_cursor(broken, 3, oldest=3, newest=9) == hook(cursor=2, disabled=at(9))
    assert move_cursor(broken, 10, oldest=3, newest=9).cursor == 9
    for entry_id in (2, 11):
        with pytest.raises(Invalid, match="use 3 to 10"):
            move_cursor(broken, entry_id, oldest=3, newest=9)


# -- where messages may go


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "2002:5db8:d822::1"])
def test_public_addresses_are_allowed(address: str) -> None:
    """Also those that carry a public IPv4 address inside."""
    assert AllowedTargets().why_not_address("name", ipaddress.ip_address(address)) == ""
    assert AllowedTargets().why_not_host("https", address) == ""


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "::ffff:93.184.216.34",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "64:ff9b:1::5db8:d822",
        "100::1",
        "3fff::1",
        "3fff:fff::1",
        "4000::1",
        "5f00::1",
        "fec0::1",
        "192.88.99.1",
        "64:ff9b::c058:6301",
        "2002:c058:6301::1",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    """Loopback, link-local, private, shared, multicast, reserved, IPv6 outside 2000::/3, and IPv6 addresses that lead to such."""
    if address.startswith("2001:0:"):  # Teredo to 192.0.2.45, which is for documentation
        assert ipaddress.IPv6Address(address).teredo is not None
    assert "not a public address" in AllowedTargets().why_not_address("name", ipaddress.ip_address(address))
    assert "not a public address" in AllowedTargets().why_not_host("https", address)


def test_without_a_list_only_https_is_allowed() -> None:
    """A name is known to be fine only once it is resolved."""
    assert "only https" in AllowedTargets().why_not_host("http", "example.com")
    assert AllowedTargets().why_not_host("https", "example.com") == ""


def test_a_list_allows_what_it_names_and_nothing_else() -> None:
    """A name with every address of it, a network with every name in it; public addresses need to be listed, too."""
    targets = AllowedTargets(frozenset({"hooks.corp"}), (ipaddress.ip_network("10.0.0.0/8"),))
    inside, outside = ipaddress.ip_address("10.1.1.1"), ipaddress.ip_address("93.184.216.34")
    assert targets.why_not_host("http", "Hooks.Corp") == ""
    assert targets.why_not_address("HOOKS.corp", outside) == ""
    assert targets.why_not_host("http", "other.corp") == "", "its address may be listed"
    assert targets.why_not_address("other.corp", inside) == ""
    assert "not in the setting hook_targets" in targets.why_not_address("other.corp", outside)
    assert "not in the setting hook_targets" in targets.why_not_host("https", "93.184.216.34")
    assert "not in the setting hook_targets" in AllowedTargets(frozenset({"a"})).why_not_host("https", "b")


def test_a_target_with_a_port_is_allowed_with_this_port_only() -> None:
    """A target without one is allowed with every port."""
    with_port = AllowedTargets(frozenset({"b"}), (ipaddress.ip_network("10.0.0.0/8"),))
    targets = AllowedTargets(frozenset({"a"}), ports={443: with_port})
    inside = ipaddress.ip_address("10.1.1.1")
    assert targets.at(443).why_not_host("https", "b") == targets.at(443).why_not_address("c", inside) == ""
    assert targets.at(443).why_not_host("http", "a") == targets.at(80).why_not_host("http", "a") == ""
    refused = "is not in the setting hook_targets with this port"
    assert refused in targets.at(80).why_not_host("http", "b")
    assert refused in targets.at(80).why_not_address("c", inside)
    assert refused in AllowedTargets(ports={443: with_port}).at(80).why_not_host("https", "b")
