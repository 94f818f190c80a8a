"""Values of options: times, durations, and the errors for wrong ones."""

import pytest

from forewarn.cli.options import moment, seconds
from forewarn.core.errors import InvalidSettings
from tests.cli.api_bodies import NOW


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (None, None),
        ("+2h", "2030-01-31T14:00:00Z"),
        ("-90s", "2030-01-31T11:58:30Z"),
        ("2030-02-01T00:00:00Z", "2030-02-01T00:00:00Z"),
        ("2030-02-01T00:00:00+02:00", "2030-01-31T22:00:00Z"),
        ("2030-02-01 00:00Z", "2030-02-01T00:00:00Z"),
    ],
)
def test_a_time_is_rfc_3339_or_a_distance_from_the_services_now(text: str | None, parsed: str | None) -> None:
    """The API gets the time in UTC."""
    assert moment("--earliest", text, NOW) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tomorrow", "--earliest: 'tomorrow' is not a time: write it like 2030-01-31T22:00:00Z, or +2h from now"),
        ("2030-02-01", "has no time zone: write it like 2030-02-01T00:00:00Z"),
        ("2030-02-01 20:00", "has no time zone: write it like 2030-02-01T20:00:00Z"),
        ("2030-02-01T00:00:00", "has no time zone: write it like 2030-02-01T00:00:00Z"),
        ("+2", "is not a duration"),
        ("", "is not a time"),
        ("+999999999999d", "--earliest: "),
    ],
)
def test_a_wrong_time_is_refused_with_an_example(text: str, message: str) -> None:
    """A time without a zone is refused too: it could mean the server's zone or the user's."""
    with pytest.raises(InvalidSettings) as refused:
        moment("--earliest", text, NOW)
    assert message in str(refused.value)


def test_a_wrong_duration_is_refused_with_its_option() -> None:
    """A duration needs a unit."""
    assert seconds("--timeout", "15m") == 900
    with pytest.raises(InvalidSettings, match="--timeout: '15' is not a duration"):
        seconds("--timeout", "15")
