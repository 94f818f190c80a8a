"""Add, change, extend and remove windows and no-go times."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core import window_verbs
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Invalid, NotFound, Refused
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window
from tests.support.builders import OPERATOR, START, at, scope

NIGHTS = Window(name="nights", spans=("daily 22:00-05:00",))
MIDDAY = Window(name="midday", spans=("daily 11:00-13:00",))
FAIR = NoGoTime(name="fair", reason="the fair", start=at(0), end=at(60))
KNOWN = Snapshot(
    fleet_rules=FleetRules(
        windows={"nights": NIGHTS, "midday": MIDDAY}, no_go_times={"fair": FAIR}, max_hosts_down=3, version=7
    )
)


def rules_of(change: Change, action: str, detail: str) -> FleetRules:
    """Return the changed rules; they carry the version that was read and keep the limits."""
    (entry,) = change.audit
    assert (entry.action, entry.detail, entry.who) == (action, detail, OPERATOR.name)
    assert change.fleet_rules is not None
    assert (change.fleet_rules.version, change.fleet_rules.max_hosts_down) == (7, 3)
    return change.fleet_rules


def test_a_window_is_added_changed_and_removed() -> None:
    lunch = Window(name="lunch", spans=("Mon 12:00-13:00", "Tue 12:00-13:00"), zone="Asia/Tokyo")
    change = window_verbs.put_window(KNOWN, lunch, now=START, actor=OPERATOR)
    assert rules_of(change, "window added", "lunch: Mon 12:00-13:00, Tue 12:00-13:00 Asia/Tokyo").windows == {
        **KNOWN.fleet_rules.windows,
        "lunch": lunch,
    }
    later = replace(NIGHTS, spans=("daily 23:00-05:00",))
    change = window_verbs.put_window(KNOWN, later, now=START, actor=OPERATOR)
    assert rules_of(change, "window changed", "nights: daily 23:00-05:00 UTC").windows["nights"] == later
    change = window_verbs.remove_window(KNOWN, "nights", [], now=START, actor=OPERATOR)
    assert list(rules_of(change, "window removed", "nights").windows) == ["midday"]


def test_a_window_put_again_changes_nothing_and_keeps_its_extension() -> None:
    extended = replace(MIDDAY, extended_until=at(90))
    known = replace(KNOWN, fleet_rules=replace(KNOWN.fleet_rules, windows={"midday": extended}))
    assert window_verbs.put_window(known, MIDDAY, now=START, actor=OPERATOR).empty


def test_a_window_in_use_is_not_removed() -> None:
    message = (
        "used by maintenance M, scope shop: take it from a scope .*; wait until a maintenance has ended, or cancel it"
    )
    with pytest.raises(Refused, match=message):
        window_verbs.remove_window(KNOWN, "nights", ["scope shop", "maintenance M"], now=START, actor=OPERATOR)
    with pytest.raises(NotFound, match="there is no window 'x'"):
        window_verbs.remove_window(KNOWN, "x", [], now=START, actor=OPERATOR)


def test_an_open_window_is_extended() -> None:
    change = window_verbs.extend_window(KNOWN, "midday", at(120), now=START, actor=OPERATOR)
    rules = rules_of(change, "window extended", "midday: until 2030-01-01 14:00:00Z")
    assert rules.windows["midday"] == replace(MIDDAY, extended_until=at(120))
    longer = window_verbs.extend_window(
        replace(KNOWN, fleet_rules=rules), "midday", at(180), now=at(110), actor=OPERATOR
    )
    assert longer.fleet_rules is not None
    assert longer.fleet_rules.windows["midday"].extended_until == at(180)


def test_only_an_open_window_is_extended_to_a_later_time() -> None:
    with pytest.raises(Refused, match="window nights is not open now"):
        window_verbs.extend_window(KNOWN, "nights", at(120), now=START, actor=OPERATOR)
    for until in (at(60), at(30), START + timedelta(days=8)):
        with pytest.raises(Invalid, match="window midday closes at 2030-01-01 13:00:00Z: extend it to a later time"):
            window_verbs.extend_window(KNOWN, "midday", until, now=START, actor=OPERATOR)


def test_a_no_go_time_is_added_changed_and_removed() -> None:
    weekly = NoGoTime(name="weekly", reason="busy", spans=("Mon 08:00-18:00",))
    change = window_verbs.put_no_go_time(KNOWN, weekly, [], now=START, actor=OPERATOR)
    assert rules_of(change, "no-go time added", "weekly: busy").no_go_times == {"fair": FAIR, "weekly": weekly}
    longer = replace(FAIR, end=at(90))
    change = window_verbs.put_no_go_time(KNOWN, longer, [], now=START, actor=OPERATOR)
    assert rules_of(change, "no-go time changed", "fair: the fair").no_go_times == {"fair": longer}
    assert window_verbs.put_no_go_time(KNOWN, FAIR, [], now=START, actor=OPERATOR).empty
    change = window_verbs.remove_no_go_time(KNOWN, "fair", now=START, actor=OPERATOR)
    assert rules_of(change, "no-go time removed", "fair").no_go_times == {}
    with pytest.raises(NotFound, match="there is no no-go time 'x'"):
        window_verbs.remove_no_go_time(KNOWN, "x", now=START, actor=OPERATOR)


def test_a_no_go_time_of_unknown_scopes_is_refused() -> None:
    """A misspelt scope would bind nothing."""
    of_shop = replace(FAIR, scopes=("shop",), name="of-shop")
    assert not window_verbs.put_no_go_time(KNOWN, of_shop, ["shop"], now=START, actor=OPERATOR).empty
    with pytest.raises(NotFound, match="no-go time of-shop: there is no scope 'shop': check the name in the fleet"):
        window_verbs.put_no_go_time(KNOWN, of_shop, ["ship"], now=START, actor=OPERATOR)


def test_a_no_go_time_that_has_passed_is_refused() -> None:
    """One that lasts already is allowed."""
    again = replace(FAIR, reason="the fair again")
    assert not window_verbs.put_no_go_time(KNOWN, again, [], now=at(59), actor=OPERATOR).empty
    with pytest.raises(Refused, match="no-go time fair has passed: it would end at 2030-01-01 13:00:00Z"):
        window_verbs.put_no_go_time(KNOWN, again, [], now=at(60), actor=OPERATOR)


def test_a_scope_names_windows_that_exist() -> None:
    window_verbs.refuse_unknown_windows(KNOWN.fleet_rules, [scope(windows=("nights", "midday"))])
    for name, rest in (("x", ": run"), ("night", "; did you mean nights? If not, run")):
        message = (
            f"scope shop: windows: there is no window '{name}'{rest} `forewarn window add {name} --when SPAN` first"
        )
        with pytest.raises(Invalid, match=re.escape(message)):
            window_verbs.refuse_unknown_windows(KNOWN.fleet_rules, [scope(windows=("nights", name))])


@pytest.mark.parametrize(
    ("names", "message"),
    [(("a", "a"), "named twice"), (("",), "is not a name"), (tuple(f"w{i}" for i in range(21)), "21 windows")],
)
def test_the_windows_of_a_scope_are_names(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        scope(windows=names)
