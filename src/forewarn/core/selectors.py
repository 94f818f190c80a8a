"""Selectors: choose machines and hosts by their labels and by patterns of their names.

A selector is a text like `rack=a3,!gpu`: every part of it must hold. `key=value` and `key!=value` compare the value of a
label, `key` and `!key` say whether the label exists. `key!=value` also holds without the label. A machine has the labels of
its host for the keys that it does not have itself. A pattern is one of the shell: `*` stands for any text, `?` for one
character, `[ab]` for one of these.
"""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from forewarn.core.errors import NotFound
from forewarn.core.formatting import names
from forewarn.core.lazy_dataclass import dataclass
from forewarn.core.model import check_name, check_text, require

MAX_PATTERNS = 100
MAX_PATTERN_CHARS = 129
# Targets are kept as JSON, in which a search does not find these.
_UNSEARCHABLE = frozenset('"\\')
# In a value these would be a pattern or a list, but a selector compares whole values.
_OF_PATTERNS = frozenset("*?[|")
_NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a selector. Without a `value` it says whether the label exists."""

    key: str
    value: str | None = None
    negated: bool = False

    def holds(self, labels: Mapping[str, str], inherited: Mapping[str, str] = _NO_LABELS) -> bool:
        found = labels.get(self.key, inherited.get(self.key))
        return (found is not None if self.value is None else found == self.value) is not self.negated

    def __str__(self) -> str:
        if self.value is None:
            return f"{'!' if self.negated else ''}{self.key}"
        return f"{self.key}{'!=' if self.negated else '='}{self.value}"


@lru_cache(maxsize=256)
def parse_selector(text: str) -> tuple[Term, ...]:
    """Return the terms of a selector; "" has none and chooses everything."""
    check_text("the selector", text)
    require(_UNSEARCHABLE.isdisjoint(text), f"selector {text!r}: quotation marks and backslashes are not allowed")
    return tuple(_term(part.strip(), text) for part in text.split(",")) if text.strip() else ()


def _term(part: str, selector: str) -> Term:
    require(bool(part), f"selector {selector!r}: a part is empty: write it like rack=a3,!gpu")
    key, equals, value = part.partition("=")
    if equals:
        term = Term(key.removesuffix("!").strip(), value.strip(), negated=key.endswith("!"))
    else:
        term = Term(part.removeprefix("!").strip(), negated=part.startswith("!"))
    check_name("label", term.key)
    whole = term.value or ""
    require(
        _OF_PATTERNS.isdisjoint(whole) and not whole.startswith("="),
        f"selector {selector!r}: a value is compared as a whole: write it like rack=a3, without == and without patterns",
    )
    return term


def matches(terms: Iterable[Term], labels: Mapping[str, str], inherited: Mapping[str, str] = _NO_LABELS) -> bool:
    """Whether every term holds. `inherited` are the labels of a machine's host."""
    return all(term.holds(labels, inherited) for term in terms)


class Selection:
    """Chooses by patterns and by a selector, and remembers which of their parts match nothing.

    Machines are named scope/name; a pattern without a slash is compared with the name alone.
    """

    def __init__(self, patterns: Collection[str], selector: str) -> None:
        require(len(patterns) <= MAX_PATTERNS, f"{len(patterns)} patterns: at most {MAX_PATTERNS} are allowed")
        for pattern in patterns:
            require(len(pattern) <= MAX_PATTERN_CHARS, f"pattern {pattern[:64]!r}… is longer than any name")
        self._patterns = tuple(patterns)
        self._terms = parse_selector(selector)
        self._unmatched_patterns = dict.fromkeys(self._patterns)
        self._unmatched_terms = list(self._terms)

    def takes(self, name: str, labels: Mapping[str, str], inherited: Mapping[str, str] = _NO_LABELS) -> bool:
        """Whether one of the patterns, if there are any, and the selector match."""
        matched = [pattern for pattern in self._patterns if _fits(pattern, name)]
        for pattern in matched:
            self._unmatched_patterns.pop(pattern, None)
        if self._unmatched_terms:
            self._unmatched_terms = [t for t in self._unmatched_terms if not t.holds(labels, inherited)]
        return bool(matched or not self._patterns) and matches(self._terms, labels, inherited)

    def refuse_unmatched(self, what: str, chosen: Collection[object]) -> None:
        """Raise NotFound for patterns that match no name, and if nothing was chosen; `what` is `machine` or `host`."""
        if self._unmatched_patterns:
            raise NotFound(f"no {what} has a name like {names(list(self._unmatched_patterns))}: check the pattern")
        if chosen:
            return
        if self._unmatched_terms:
            raise NotFound(f"no {what} has labels like {names([str(t) for t in self._unmatched_terms])}")
        if not self._patterns and not self._terms:
            raise NotFound(f"there is no {what}")
        raise NotFound(f"no {what} matches everything requested, although each part of it matches one")


def _fits(pattern: str, name: str) -> bool:
    """Compare scope and name each with its part of the pattern: `*` does not reach over the slash."""
    of_scope, slash, of_name = pattern.rpartition("/")
    scope, _, plain = name.rpartition("/")
    return fnmatchcase(plain, of_name) and (not slash or fnmatchcase(scope, of_scope))
