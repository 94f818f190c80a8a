"""What windows, no-go times and limits of the fleet may be."""

from datetime import UTC, datetime

import pytest

from forewarn.core.errors import Invalid
from forewarn.core.fleet_rules import FleetRules, NoGoTime, Window

START, END = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)


def test_a_window_has_a_name_and_spans() -> None:
    assert Window(name="nights", spans=("Mon 22:00-23:00",)).zone == "UTC"
    with pytest.raises(Invalid, match="is not a name"):
        Window(name="", spans=("Mon 22:00-23:00",))
    with pytest.raises(Invalid, match="window nights has 0 spans"):
        Window(name="nights", spans=())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reason": ""}, "has no reason"),
        ({"start": END, "end": START}, "no-go time year-end ends before it begins: write a later end"),
        ({"start": START, "end": START}, "ends before it begins"),
        ({"end": None}, "needs a start and an end"),
        ({"spans": ("Mon 22:00-23:00",)}, "not both"),
        ({"start": None, "end": None}, "times of the week"),
        ({"start": None, "end": None, "spans": ("Mon 22:00-23:00",) * 33}, "has 33 spans"),
    ],
)
def test_a_no_go_time_is_one_time_or_weekly_and_has_a_reason(fields: dict[str, object], message: str) -> None:
    values = {"name": "year-end", "reason": "closing", "start": START, "end": END, **fields}
    with pytest.raises(Invalid, match=message):
        NoGoTime(**values)  # type: ignore[arg-type]


def test_the_rules_of_a_fleet_are_limited() -> None:
    windows = {f"w{i}": Window(name=f"w{i}", spans=("Mon 22:00-23:00",)) for i in range(201)}
    with pytest.raises(Invalid, match="201 windows"):
        FleetRules(windows=windows)
    no_go = NoGoTime(name="x", reason="closing", start=START, end=END)
    with pytest.raises(Invalid, match="1001 no-go times"):
        FleetRules(no_go_times={f"n{i}": no_go for i in range(1_001)})
    with pytest.raises(Invalid, match="max_hosts_down is -1"):
        FleetRules(max_hosts_down=-1)
