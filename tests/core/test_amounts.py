"""Amounts as people write them."""

import pytest

from forewarn.core.amounts import Amount, parse_amount
from forewarn.core.errors import Invalid


@pytest.mark.parametrize(
    "text, amount",
    [
        ("1", Amount(1)),
        ("3", Amount(3)),
        ("007", Amount(7)),
        ("1000000", Amount(1_000_000)),
        ("1%", Amount(1, is_share=True)),
        ("10%", Amount(10, is_share=True)),
        ("100%", Amount(100, is_share=True)),
    ],
)
def test_a_number_or_a_share(text: str, amount: Amount) -> None:
    """A number alone is an amount; a number with a percent sign is a share."""
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    "text",
    ["", "0", "0%", "101%", "1000001", "9999999999", "-1", "+1", "1.5", "10 %", " 1", "1\n", "%", "٣", 3, None, True],
)
def test_anything_else_is_refused_with_an_example(text: object) -> None:
    """A refused text is quoted, with what an amount may be."""
    with pytest.raises(Invalid) as refusal:
        parse_amount(text)
    assert str(refusal.value) == (
        f"{text!r} is not an amount: write a number from 1 to 1000000, or a share from 1% to 100%"
    )


@pytest.mark.parametrize(
    "text, total, number",
    [("3", 10, 3), ("3", 2, 3), ("10%", 100, 10), ("10%", 99, 9), ("10%", 9, 1), ("10%", 0, 1), ("100%", 7, 7)],
)
def test_what_an_amount_means_for_a_total(text: str, total: int, number: int) -> None:
    """A number does not depend on the total. A share of the total is rounded down, and is at least 1."""
    assert parse_amount(text).of(total) == number


@pytest.mark.parametrize("text", ["3", "10%"])
def test_the_text_of_an_amount(text: str) -> None:
    """The text of an amount is what people write."""
    assert str(parse_amount(text)) == text
