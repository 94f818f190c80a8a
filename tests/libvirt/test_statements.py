"""What metadata and rules state about a domain, and hostile or wrong input to both."""

import pytest

from forewarn.core.errors import Invalid, InvalidFleet
from forewarn.core.model import ScopeKind
from forewarn.libvirt.statements import MAX_METADATA_CHARS, METADATA_URI, Statement, parse_rules, statement_of

RULES = parse_rules(
    r"""
    [[rules]]
    match = '(?P<scope>[a-z]+)-(?P<update_domain>\d+)'
    kind = "placement-group"

    [[rules]]
    match = "(?P<scope>solo.*)"
    kind = "standalone"
    fault_domain = 2
    labels = { env = "lab" }
    """,
    "rules.toml",
)


def machine(attributes: str) -> str:
    """Return the element as libvirt writes it."""
    return f'<forewarn:machine xmlns:forewarn="{METADATA_URI}" {attributes}/>'


def test_metadata_states_scope_kind_domains_and_labels() -> None:
    """Each attribute of the element is a value of the statement."""
    domains = 'update-domain="3" fault-domain="1"'
    metadata = machine(f'scope="shop" kind="availability-set" {domains} labels="env=prod, gpu="')
    assert statement_of("any", metadata, ()) == Statement(
        scope="shop",
        kind=ScopeKind.AVAILABILITY_SET,
        update_domain=3,
        fault_domain=1,
        labels={"env": "prod", "gpu": ""},
    )
    assert statement_of("any", machine('labels=""'), ()).labels == {}


def test_the_first_rule_that_matches_the_whole_name_states_the_rest() -> None:
    """A rule states its keys and its named groups; what metadata states wins."""
    assert statement_of("web-4", "", RULES) == Statement(scope="web", kind=ScopeKind.PLACEMENT_GROUP, update_domain=4)
    assert statement_of("web-4", machine('scope="shop" update-domain="1"'), RULES) == Statement(
        scope="shop", kind=ScopeKind.PLACEMENT_GROUP, update_domain=1
    )
    assert statement_of("solo", "", RULES) == Statement(
        scope="solo", kind=ScopeKind.STANDALONE, fault_domain=2, labels={"env": "lab"}
    )
    assert statement_of("my web-4", "", RULES) == Statement()


BOMB = (
    "<!DOCTYPE m [" + "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9)) + "]><machine scope='&e9;'/>"
)


@pytest.mark.parametrize(
    ("metadata", "refusal"),
    [
        ("<machine", "not XML"),
        ("", None),
        ("\ud800", "XML"),
        (BOMB, "document type"),
        ('<!DOCTYPE m SYSTEM "file:///etc/passwd"><machine scope="shop"/>', "document type"),
        (machine(f'scope="{"x" * MAX_METADATA_CHARS}"'), "larger than"),
        (machine('scope="sh op"'), "not a name"),
        (machine('scope="../../etc"'), "not a name"),
        (machine('scope="x\u2028y"'), "not a name"),
        (machine('scope="shop" update-domain="-1"'), "whole number"),
        (machine('scope="shop" update-domain="1e3"'), "whole number"),
        (machine('scope="shop" update-domain="\u0661"'), "whole number"),
        (machine('scope="shop" fault-domain="1000"'), "whole number"),
        (machine('scope="shop" kind="cluster"'), "kind"),
        (machine('labels="prod"'), "labels: 'prod' is not a list of labels: write them like rack=a3,env=prod"),
        (machine('labels="a b=c"'), "label 'a b' is not a name"),
        (machine('scope="shop" scop="x"'), "not XML|unknown attribute"),
        (machine('scope="shop" host="kvm-9"'), "unknown attribute"),
        ("<machine><machine/></machine>", "one element"),
        ("<server scope='shop'/>", "one element"),
    ],
)
def test_wrong_and_hostile_metadata_is_refused(metadata: str, refusal: str | None) -> None:
    """A refusal says what is wrong; no entity is expanded and no file is read."""
    if refusal is None:
        assert statement_of("any", metadata, ()) == Statement()
        return
    with pytest.raises(Invalid, match=refusal):
        statement_of("any", metadata, ())


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("rules = 1", "write each rule as a table"),
        ("[[rule]]", "rule: unknown key; did you mean rules"),
        ("[[rules]]\nscope = 'x'", r"rules\[0\]: match: missing"),
        ("[[rules]]\nmatch = '('", "no regular expression"),
        ("[[rules]]\nmatch = '(?P<host>.)'", "unknown group"),
        ("[[rules]]\nmatch = '.'\nupdate_domain = 1000", "whole number"),
        ("[[rules]]\nmatch = '.'\nupdate-domain = 1", "did you mean update_domain"),
        ("[[rules]]\nmatch = '.'\n" * 1_001, "at most 1000"),
        ("[[rules", "not TOML"),
    ],
)
def test_wrong_rules_are_refused(text: str, refusal: str) -> None:
    """A refusal names the file and what to correct."""
    with pytest.raises(InvalidFleet, match=f"rules.toml: .*{refusal}"):
        parse_rules(text, "rules.toml")
