"""Selectors: what a text chooses by labels, what a pattern chooses by name, and what is said if nothing matches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.errors import Invalid, NotFound
from forewarn.core.selectors import MAX_PATTERNS, Selection, Term, matches, parse_selector

A3 = {"rack": "a3", "env": "prod"}


@pytest.mark.parametrize(
    "selector, expected",
    [
        ("", True),
        ("rack=a3", True),
        ("rack=a4", False),
        ("rack!=a4", True),
        ("rack!=a3", False),
        ("zone!=b", True),
        ("rack", True),
        ("zone", False),
        ("!zone", True),
        ("!rack", False),
        ("rack=a3,!gpu,zone!=b", True),
        (" rack = a3 , env ", True),
        ("rack=a3,env=test", False),
        ("rack=", False),
    ],
)
def test_every_part_of_a_selector_must_hold(selector: str, expected: bool) -> None:
    """`key=value` and `key!=value` compare, `key` and `!key` say whether the label exists."""
    assert matches(parse_selector(selector), A3) is expected


def test_a_machine_has_the_labels_of_its_host_unless_it_has_its_own() -> None:
    """A label of the machine replaces the host's label of the same key."""
    terms = parse_selector("rack=a3,env=test")
    assert matches(terms, {"env": "test"}, A3)
    assert not matches(terms, {"env": "test", "rack": "b1"}, A3)
    assert not matches(parse_selector("!rack"), {}, A3)


@pytest.mark.parametrize(
    "selector, complaint",
    [
        ("rack=a3,", "a part is empty: write it like rack=a3,!gpu"),
        (",", "a part is empty"),
        ("a b=c", "label 'a b' is not a name"),
        ("!", "label '' is not a name"),
        ("=a3", "label '' is not a name"),
        ("!rack=a3", "label '!rack' is not a name"),
        ("x" * 1_025, "the selector is 1025 characters long: at most 1024 are allowed"),
        ("rack=a\nb", "the selector holds control characters"),
        ("rack=r*", "a value is compared as a whole: write it like rack=a3, without == and without patterns"),
        ("rack==a3", "a value is compared as a whole"),
        ("rack!=(r1|r2)", "a value is compared as a whole"),
        ('rack="a3"', "quotation marks and backslashes are not allowed"),
    ],
)
def test_a_wrong_selector_is_refused(selector: str, complaint: str) -> None:
    """The message shows the selector or the key, and how to write one."""
    with pytest.raises(Invalid, match=complaint):
        parse_selector(selector)


@given(
    st.lists(
        st.builds(
            Term,
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
            st.none() | st.from_regex(r"[a-z0-9 =!]{0,8}", fullmatch=True).map(lambda v: v.strip(" =")),
            st.booleans(),
        ),
        max_size=5,
    )
)
def test_the_text_of_terms_reads_the_same(terms: list[Term]) -> None:
    """A selector that is written from its terms has the same terms."""
    assert list(parse_selector(",".join(map(str, terms)))) == terms


@pytest.mark.parametrize(
    "pattern, chosen",
    [
        ("web-*", ["shop/web-0", "shop/web-10", "blog/web-0"]),
        ("web-?", ["shop/web-0", "blog/web-0"]),
        ("web-0", ["shop/web-0", "blog/web-0"]),
        ("web-[1-9]*", ["shop/web-10"]),
        ("shop*/web-0", ["shop/web-0"]),
        ("shop/*", ["shop/web-0", "shop/web-10"]),
        ("*/web-10", ["shop/web-10"]),
        ("*", ["shop/web-0", "shop/web-10", "blog/web-0", "blog/db.1"]),
        ("db.1", ["blog/db.1"]),
    ],
)
def test_a_pattern_chooses_names(pattern: str, chosen: list[str]) -> None:
    """A pattern with a slash is compared with scope/name, any other with the name; a dot is a dot."""
    selection = Selection([pattern], "")
    every = ["shop/web-0", "shop/web-10", "blog/web-0", "blog/db.1", "blog/db-1"]
    expected = [*chosen, "blog/db-1"] if pattern == "*" else chosen
    assert sorted(name for name in every if selection.takes(name, {})) == sorted(expected)
    selection.refuse_unmatched("machine", chosen)


def test_a_star_does_not_reach_over_the_slash() -> None:
    """A pattern without a slash says nothing about the scope."""
    assert not Selection(["shop*"], "").takes("shop/web-0", {})


def test_patterns_add_up_and_labels_take_away() -> None:
    """One pattern must match and every part of the selector must hold."""
    selection = Selection(["kvm-1*", "kvm-2*"], "rack=a3")
    assert selection.takes("kvm-10", A3)
    assert selection.takes("kvm-20", A3)
    assert not selection.takes("kvm-11", {})
    assert not selection.takes("kvm-30", A3)


def choose(patterns: list[str], selector: str) -> None:
    """Choose of two machines, and raise what is said if nothing matches."""
    selection = Selection(patterns, selector)
    fleet = {"shop/web-0": {"rack": "a3"}, "shop/web-1": {"gpu": "x"}}
    selection.refuse_unmatched("machine", [name for name, labels in fleet.items() if selection.takes(name, labels)])


@pytest.mark.parametrize(
    "patterns, selector, complaint",
    [
        (["web-*", "db-*", "x"], "", "no machine has a name like db-*, x: check the pattern"),
        (["web-*"], "rack=a9,gpu", "no machine has labels like rack=a9"),
        ([], "rack=a3,gpu", "no machine matches everything requested, although each part of it matches one"),
        (["web-1"], "rack=a3", "no machine matches everything requested, although each part of it matches one"),
        ([], "!rack,!gpu", "no machine matches everything requested, although each part of it matches one"),
    ],
)
def test_what_matched_nothing_is_named(patterns: list[str], selector: str, complaint: str) -> None:
    """A pattern that matches no name is refused even if others match; a selector only if nothing is left."""
    with pytest.raises(NotFound) as refused:
        choose(patterns, selector)
    assert str(refused.value) == complaint


def test_everything_of_nothing_is_refused() -> None:
    """A selection without patterns and labels chooses everything there is, and something must be there."""
    with pytest.raises(NotFound, match="there is no machine of blog"):
        Selection([], "").refuse_unmatched("machine of blog", [])


def test_patterns_are_limited() -> None:
    """A request has a limited number of patterns, and none is longer than a name can be."""
    with pytest.raises(Invalid, match="101 patterns: at most 100 are allowed"):
        Selection(["x"] * (MAX_PATTERNS + 1), "")
    with pytest.raises(Invalid, match="is longer than any name"):
        Selection(["x" * 130], "")
