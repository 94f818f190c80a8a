"""The open transaction that the code of the SQL stores works with. Each store implements it on its driver."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from forewarn.core.errors import ForewarnError
from forewarn.store.sql.rows import Codec, Row, Rows, Values

T = TypeVar("T")


class SqlSession(Protocol):
    """An open transaction that runs named queries on one connection."""

    rows: Rows

    def query(self, name: str, /, **values: object) -> Iterable[Row]:
        """Return the rows. Queries sent before the rows of any are read may share a round trip: send first, then read."""

    def stream(self, name: str, /, **values: object) -> Iterable[Any]:
        """Yield the rows of a possibly huge result one by one, by position."""

    def execute(self, name: str, /, **values: object) -> int:
        """Run the query; return the number of rows it changed."""

    def execute_many(
        self, name: str, values: Iterable[Values], /, error_if_unchanged: ForewarnError | None = None
    ) -> None:
        """Run the query for each set of values. Raise `error_if_unchanged`, if given, unless each changed one row."""

    def save(
        self, name: str, codec: Codec[T], instances: Iterable[T], /, error_if_unchanged: ForewarnError | None = None
    ) -> None:
        """Run the query, whose values are columns of the codec, for each of these objects as `execute_many` does."""

    def check_later(self, check: Callable[[], None], /) -> None:
        """Call `check`, which raises if the transaction must not be committed, at the latest before the commit."""

    def check_row_counts(self) -> None:
        """Raise the `error_if_unchanged` of a query that did not change its rows."""

    def as_list(self, values: Iterable[object], /) -> object:
        """Return names, ids or numbers in the form a query takes."""

    def as_pairs(self, keys: Iterable[tuple[str, str]], /) -> object:
        """Return the keys of machines in the form a query takes."""
