"""Amounts as text: a number such as `3`, or a share of a total such as `10%`."""

import re
from functools import lru_cache

from forewarn.core.errors import Invalid
from forewarn.core.lazy_dataclass import dataclass

MAX_AMOUNT = 1_000_000
_AMOUNT = re.compile("([0-9]{1,9})(%?)")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of things, or the share of a total in percent."""

    number: int
    is_share: bool = False

    def of(self, total: int) -> int:
        """Return the number that this amount means for a total. A share is rounded down, and is at least 1."""
        return max(1, total * self.number // 100) if self.is_share else self.number

    def __str__(self) -> str:
        return f"{self.number}%" if self.is_share else str(self.number)


def is_share(text: str) -> bool:
    """Whether the text of an amount is a share: what it means depends on a total."""
    return text.endswith("%")


def parse_amount(text: object) -> Amount:
    """Return the amount that the text means: a number from 1 to 1,000,000, or a share from 1% to 100%."""
    if isinstance(text, str) and (amount := _parsed(text)) is not None:
        return amount
    raise Invalid(f"{text!r} is not an amount: write a number from 1 to {MAX_AMOUNT}, or a share from 1% to 100%")


@lru_cache(maxsize=1_024)
def _parsed(text: str) -> Amount | None:
    """Return the amount, or None if the text means none. Cached: every tick reads the amounts of its scopes."""
    match = _AMOUNT.fullmatch(text)
    if match is not None:
        amount = Amount(int(match[1]), is_share=bool(match[2]))
        if 1 <= amount.number <= (100 if amount.is_share else MAX_AMOUNT):
            return amount
    return None
