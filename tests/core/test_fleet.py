"""What a fleet file may contain, how each refusal reads, and how a fleet is written as a file."""

from pathlib import Path

import pytest

from forewarn.core.errors import InvalidFleet
from forewarn.core.fleet import (
    HOST_KEYS,
    MACHINE_KEYS,
    SCOPE_KEYS,
    Fleet,
    contents_text,
    fleet_text,
    parse_fleet,
    stated_fleet,
)
from forewarn.core.fleet_difference import difference
from forewarn.core.model import (
    MAX_MACHINES_PER_SCOPE,
    ApprovalMode,
    EventType,
    Host,
    Machine,
    Scope,
    ScopeKind,
)

HOW = 'write numbers with units, largest first, like "90s", "1h30m" or "30d"'

SHOP = """
[[scopes]]
name = "shop"
kind = "availability-set"
"""


def file(*lines: str) -> str:
    """A file with a scope `shop`, these lines, and nothing else."""
    return SHOP + "\n".join(lines)


def refusal(text: str) -> str:
    """The whole sentence a file is refused with, after the file's name."""
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(text, "fleet.toml")
    message = str(refused.value)
    assert message.startswith("fleet.toml: ")
    return message.removeprefix("fleet.toml: ")


# -- reading a file


def test_a_file_states_scopes_and_machines() -> None:
    """A file with every key of both tables is read."""
    text = """
    [[scopes]]
    name = "pool"
    kind = "placement-group"
    approval = "all"
    approve_user_events = true
    max_user_operations = 10
    terminate_notice = "10m"
    minimum_notice = { Reboot = "30m", Freeze = "1h" }

    [[machines]]
    name = "p-0"
    scope = "pool"
    update_domain = 1
    fault_domain = 2
    host = "h1"
    addresses = ["10.0.0.4", "fd00::4"]
    interface = "tap0"
    instance_id = "i-0"
    """
    read = parse_fleet(text, "fleet.toml")
    assert read.scopes == {
        "pool": Scope(
            name="pool",
            kind=ScopeKind.PLACEMENT_GROUP,
            approval=ApprovalMode.ALL,
            approve_user_events=True,
            max_user_operations=10,
            terminate_notice_s=600,
            minimum_notice_s={EventType.REBOOT: 1_800, EventType.FREEZE: 3_600},
        )
    }
    assert read.machines == {
        ("pool", "p-0"): Machine(
            scope="pool",
            name="p-0",
            update_domain=1,
            fault_domain=2,
            host="h1",
            addresses=("10.0.0.4", "fd00::4"),
            interface="tap0",
            instance_id="i-0",
        )
    }


def test_the_defaults_of_a_file_are_those_of_the_model() -> None:
    """A key that the file leaves out has its default; an empty file is an empty fleet."""
    read = parse_fleet(file("[[machines]]", 'name = "web-0"', 'scope = "shop"'), "fleet.toml")
    assert read == stated_fleet(
        [Scope(name="shop", kind=ScopeKind.AVAILABILITY_SET)], [Machine(scope="shop", name="web-0")], []
    )
    assert parse_fleet("", "fleet.toml") == Fleet({}, {})


def test_a_scope_is_disabled_until_its_guests_poll() -> None:
    """A file has settings, not the epoch or incarnation of a document."""
    known = parse_fleet(SHOP, "fleet.toml").scopes["shop"]
    assert (known.enabled, known.epoch, known.incarnation, known.version) == (False, 0, 1, 0)


def test_the_contents_of_a_fleet_are_counted() -> None:
    """One thing is singular; several are plural."""
    known = parse_fleet(SHOP, "fleet.toml")
    assert contents_text(known) == f"{len(known.scopes)} scope and {len(known.machines)} machines"
    assert contents_text(Fleet({}, {})) == "0 scopes and 0 machines"


def test_the_example_fleet_is_a_fleet() -> None:
    """The example file is read without error and without warning."""
    path = Path(__file__).parents[2] / "examples" / "fleet.toml"
    stated = parse_fleet(path.read_text("utf-8"), "examples/fleet.toml")
    assert stated.machines
    assert difference(Fleet({}, {}), stated).warnings == ()


# -- how refusals read: file, table, key, what to do


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("[[scopes", "this is not TOML: "),
        ("x = " + "[" * 5_000, "this is not TOML: "),
        ("x = " + "9" * 5_000, "this is not TOML: "),
        (
            "[[scope]]\nname = 'shop'",
            "scope: unknown key; did you mean scopes? The keys here are scopes, machines, hosts",
        ),
        ("scopes = 1", "scopes: write each entry as a table under [[scopes]]"),
        ("[scopes]\nname = 'shop'", "scopes: write each entry as a table under [[scopes]]"),
        ("machines = ['web-0']", "machines: write each entry as a table under [[machines]]"),
        ("hosts = ['kvm-07']", "hosts: write each entry as a table under [[hosts]]"),
    ],
    ids=range(8),
)
def test_a_file_of_another_shape_is_refused(text: str, complaint: str) -> None:
    """A file that is not TOML, or has something else instead of tables, is refused."""
    assert refusal(text).startswith(complaint)


@pytest.mark.parametrize(
    "line, complaint",
    [
        ('colour = "red"', f"colour: unknown key; the keys here are {', '.join(SCOPE_KEYS)}"),
        (
            'kind = "set"',
            "kind: 'set' is unknown; use one of cloud-service, availability-set, placement-group, standalone",
        ),
        ("kind = 1", "kind: 1 is not a string"),
        ('approval = "some"', "approval: 'some' is unknown; use one of any, all, operator"),
        ("approval = []", "approval: [] is unknown; use one of any, all, operator"),
        ('approve_user_events = "yes"', "approve_user_events: 'yes' is not true or false"),
        ("approve_user_events = 1", "approve_user_events: 1 is not true or false"),
        ("max_unavailable = true", "max_unavailable: True is not text"),
        (
            'max_unavailable = "few"',
            "max_unavailable: 'few' is not an amount: write a number from 1 to 1000000, or a share from 1% to 100%",
        ),
        ("max_user_operations = true", "max_user_operations: True is not a whole number"),
        ("max_user_operations = 1.5", "max_user_operations: 1.5 is not a whole number"),
        ("max_user_operations = -1", "max_user_operations is -1: use 0 (the general limit) or a positive number"),
        ("terminate_notice = 600", f"terminate_notice: 600 is not a duration: {HOW}"),
        ('terminate_notice = "1h"', "terminate_notice is 3600s: it must lie between 5m and 15m"),
        ("minimum_notice = 5", 'minimum_notice: write a table of types and durations, like { Reboot = "30m" }'),
        (
            'minimum_notice = { Restart = "30m" }',
            "minimum_notice: 'Restart' is unknown; use one of Freeze, Reboot, Redeploy, Preempt, Terminate",
        ),
        ("minimum_notice = { Reboot = 30 }", f"minimum_notice of Reboot: 30 is not a duration: {HOW}"),
        (
            'minimum_notice = { Reboot = "5m" }',
            "minimum_notice of Reboot is 300s: it can only be raised above the protocol's 900s, up to 2592000s",
        ),
        (
            'minimum_notice = { Terminate = "10m" }',
            "minimum_notice does not take Terminate: set terminate_notice instead",
        ),
    ],
)
def test_a_wrong_scope_is_refused(line: str, complaint: str) -> None:
    """The message names file, table and key, and says what to do."""
    key = line.split(" = ")[0]
    good = {"name": '"ship"', "kind": '"availability-set"'}
    lines = [f"{k} = {v}" for k, v in good.items() if k != key]
    assert refusal(file("[[scopes]]", *lines, line)) == f'scopes[1] "ship": {complaint}'


@pytest.mark.parametrize(
    "line, complaint",
    [
        ('color = "red"', f"color: unknown key; the keys here are {', '.join(MACHINE_KEYS)}"),
        ("scope = 3", "scope: 3 is not a string"),
        ('scope = "shed"', "scope: fleet.toml has no scope 'shed'; add it"),
        ('update_domain = "0"', "update_domain: '0' is not a whole number"),
        ("update_domain = true", "update_domain: True is not a whole number"),
        ("update_domain = 1000", "update_domain is 1000: use a whole number from 0 to 999"),
        ("fault_domain = -1", "fault_domain is -1: use a whole number from 0 to 999"),
        ("fault_domain = 0.0", "fault_domain: 0.0 is not a whole number"),
        ("host = 7", "host: 7 is not a string"),
        (
            'host = "rack 1"',
            "host 'rack 1' is not a name: use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit",
        ),
        ('addresses = "10.0.0.4"', 'addresses: write a list of strings, like ["10.0.0.4"]'),
        ("addresses = [4]", 'addresses: write a list of strings, like ["10.0.0.4"]'),
        ('addresses = ["10.0.0"]', "addresses: '10.0.0' is not an IP address: write it like 10.0.0.4 or fd00::4"),
        ("interface = []", "interface: [] is not a string"),
        ("labels = ['b4']", 'labels: write a table of names and strings, like { rack = "b4" }'),
        ("instance_id = 2030-01-01", "instance_id: datetime.date(2030, 1, 1) is not a string"),
    ],
)
def test_a_wrong_machine_is_refused(line: str, complaint: str) -> None:
    """The message names file, table and key, and says what to do."""
    key = line.split(" = ")[0]
    lines = [each for each in ('scope = "shop"',) if key != "scope"]
    first = ["[[machines]]", 'name = "web-0"', 'scope = "shop"']
    assert refusal(file(*first, "[[machines]]", 'name = "web-1"', *lines, line)) == f'machines[1] "web-1": {complaint}'


@pytest.mark.parametrize(
    "text, complaint",
    [
        ('[[scopes]]\nkind = "standalone"', "scopes[1]: name: missing; add it to this table"),
        ('[[scopes]]\nname = "ship"', 'scopes[1] "ship": kind: missing; add it to this table'),
        ('[[scopes]]\nname = 5\nkind = "standalone"', "scopes[1]: name: 5 is not a string"),
        ('[[machines]]\nname = "web-0"', 'machines[0] "web-0": scope: missing; add it to this table'),
        ('[[machines]]\nscope = "shop"', "machines[0]: name: missing; add it to this table"),
        (
            '[[machines]]\nname = "-"\nscope = "shop"',
            "machines[0] \"-\": name: machine '-' is not a name: use 1 to 64 letters, digits, '.', '_' or '-',"
            " starting with a letter or digit",
        ),
        (
            '[[scopes]]\nname = "a b"\nkind = "standalone"',
            "scopes[1] \"a b\": name: scope 'a b' is not a name: use 1 to 64 letters, digits, '.', '_' or '-',"
            " starting with a letter or digit",
        ),
        ("[[hosts]]", "hosts[0]: name: missing; add it to this table"),
        (
            '[[hosts]]\nname = "h1"\n[[hosts]]\nname = "h1"',
            "hosts[1] \"h1\": name: there are two hosts 'h1'; give one of them another name",
        ),
        (SHOP, "scopes[1] \"shop\": name: there are two scopes 'shop'; give one of them another name"),
    ],
)
def test_a_table_with_a_bad_name_is_refused(text: str, complaint: str) -> None:
    """The message names the table by its index, and by its name if it has one."""
    assert refusal(file(text)) == complaint


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("label = {}", "label: unknown key; did you mean labels? The keys here are " + ", ".join(HOST_KEYS)),
        ("labels = ['b4']", 'labels: write a table of names and strings, like { rack = "b4" }'),
        ("labels = { rack = 4 }", 'labels: write a table of names and strings, like { rack = "b4" }'),
        ('labels = { rack = "a\\nb" }', "label rack holds control characters or unpaired surrogates: use plain text"),
        ("fault_domain = true", "fault_domain: True is not a whole number"),
        ("fault_domain = 1000", "fault_domain is 1000: use a whole number from 0 to 999"),
        ("connection = 7", "connection: 7 is not a string"),
    ],
)
def test_a_wrong_host_is_refused(line: str, complaint: str) -> None:
    """The message names the table, the key and what to write instead."""
    message = refusal(file("[[hosts]]", 'name = "kvm-07"', line))
    assert message in (f'hosts[0] "kvm-07": {complaint}', f'hosts[0] "kvm-07": labels: {complaint}')


def machines(*lines: str) -> str:
    """A file with a machine per line of further keys, web-0, web-1 …"""
    tables = [f'[[machines]]\nname = "web-{i}"\nscope = "shop"\n{line}' for i, line in enumerate(lines)]
    return file(*tables)


def test_names_are_unique_in_a_scope() -> None:
    """The second machine with a name is refused; another scope may use the name."""
    web = '[[machines]]\nname = "web-0"\nscope = "shop"'
    ship = '[[scopes]]\nname = "ship"\nkind = "standalone"'
    assert refusal(file(web, web)) == (
        'machines[1] "web-0": name: there are two machines shop/web-0; names are unique in a scope'
    )
    assert len(parse_fleet(file(web, ship, web.replace("shop", "ship")), "fleet.toml").machines) == 2


@pytest.mark.parametrize(
    "first, second, complaint",
    [
        (
            'addresses = ["10.0.0.4"]',
            'addresses = ["10.0.0.9", "10.0.0.4"]',
            "addresses: 10.0.0.4 belongs to shop/web-0 already; a caller must be one machine",
        ),
        (
            'addresses = ["fd00::4"]',
            'addresses = ["FD00:0::4"]',
            "addresses: fd00::4 belongs to shop/web-0 already; a caller must be one machine",
        ),
        (
            'interface = "tap0"\naddresses = ["10.0.0.4"]',
            'interface = "tap0"\naddresses = ["10.0.0.4"]',
            "addresses: 10.0.0.4 on tap0 belongs to shop/web-0 already; a caller must be one machine",
        ),
        (
            'interface = "tap0"',
            'interface = "tap0"',
            "addresses: every caller on tap0 belongs to shop/web-0 already; a caller must be one machine",
        ),
        (
            'instance_id = "i-0"',
            'instance_id = "i-0"',
            "instance_id: 'i-0' belongs to shop/web-0 already; a caller must be one machine",
        ),
    ],
)
def test_a_caller_is_one_machine(first: str, second: str, complaint: str) -> None:
    """Two machines cannot have the same interface and address, or the same instance id."""
    assert refusal(machines(first, second)) == f'machines[1] "web-1": {complaint}'


def test_overlapping_addresses_on_different_interfaces() -> None:
    """Machines on different interfaces may share an address; an instance id may equal an address."""
    text = machines(
        'interface = "tap0"\naddresses = ["10.0.0.4"]',
        'interface = "tap1"\naddresses = ["10.0.0.4"]',
        'addresses = ["10.0.0.4"]',
        'instance_id = "10.0.0.4"',
    )
    assert len(parse_fleet(text, "fleet.toml").machines) == 4


@pytest.mark.parametrize("count", [0, 2])
def test_a_standalone_scope_has_exactly_one_machine(count: int) -> None:
    """A standalone scope with no machine or with two is refused."""
    text = machines(*[""] * count).replace("availability-set", "standalone")
    assert refusal(text) == (
        f'scope "shop": kind: a standalone scope has exactly one machine, and this one has {count};'
        " change its machines or its kind"
    )
    assert parse_fleet(machines("").replace("availability-set", "standalone"), "fleet.toml").machines


def test_a_scope_has_at_most_a_thousand_machines() -> None:
    """One machine more than the limit is refused."""
    assert len(parse_fleet(machines(*[""] * MAX_MACHINES_PER_SCOPE), "fleet.toml").machines) == 1_000
    assert refusal(machines(*[""] * (MAX_MACHINES_PER_SCOPE + 1))) == (
        'scope "shop": 1001 machines: a scope has at most 1000'
    )


# -- every error of a file


def refusals(text: str) -> list[str]:
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(text, "fleet.toml")
    assert str(refused.value) == "\n".join(refused.value.problems)
    return [problem.removeprefix("fleet.toml: ") for problem in refused.value.problems]


def test_every_error_of_a_file_is_reported() -> None:
    """Each error has its table and key: several of one table, of both kinds of tables, and those between tables."""
    text = """
    colour = "red"

    [[scopes]]
    kindd = "standalone"
    name = "a b"
    approval = "some"
    minimum_notice = { Reboot = "5m", Restart = "1h", Freeze = "1h", Redeploy = 5 }

    [[scopes]]
    name = "shop"
    kind = "availability-set"

    [[scopes]]
    name = "shop"
    kind = "availability-set"

    [[machines]]
    name = "web-0"
    scope = "shop"
    addresses = ["10.0.0.4"]

    [[machines]]
    name = "web-1"
    scope = "shop"
    update_domain = "0"
    hots = "rack1"
    addresses = ["10.0.0", "10.0.0.5", "ten"]

    [[machines]]
    name = "web-0"
    scope = "shop"
    instance_id = "i-0"

    [[machines]]
    name = "web-2"
    scope = "shop"
    instance_id = "i-0"
    """
    keys = ", ".join(SCOPE_KEYS)
    assert refusals(text) == [
        "colour: unknown key; the keys here are scopes, machines, hosts",
        'scopes[0] "a b": kind: missing; add it to this table',
        f'scopes[0] "a b": kindd: unknown key; did you mean kind? The keys here are {keys}',
        "scopes[0] \"a b\": name: scope 'a b' is not a name: use 1 to 64 letters, digits, '.', '_' or '-',"
        " starting with a letter or digit",
        "scopes[0] \"a b\": approval: 'some' is unknown; use one of any, all, operator",
        'scopes[0] "a b": minimum_notice of Reboot is 300s: it can only be raised above the protocol\'s 900s,'
        " up to 2592000s",
        "scopes[0] \"a b\": minimum_notice: 'Restart' is unknown; use one of Freeze, Reboot, Redeploy, Preempt, Terminate",
        f'scopes[0] "a b": minimum_notice of Redeploy: 5 is not a duration: {HOW}',
        "scopes[2] \"shop\": name: there are two scopes 'shop'; give one of them another name",
        "machines[1] \"web-1\": update_domain: '0' is not a whole number",
        f'machines[1] "web-1": hots: unknown key; did you mean host? The keys here are {", ".join(MACHINE_KEYS)}',
        "machines[1] \"web-1\": addresses: '10.0.0' is not an IP address: write it like 10.0.0.4 or fd00::4",
        "machines[1] \"web-1\": addresses: 'ten' is not an IP address: write it like 10.0.0.4 or fd00::4",
        'machines[2] "web-0": name: there are two machines shop/web-0; names are unique in a scope',
        "machines[3] \"web-2\": instance_id: 'i-0' belongs to shop/web-0 already; a caller must be one machine",
    ]


@pytest.mark.parametrize(
    "text, problems",
    [
        ('[[scopes]]\nname = "solo"\nkind = "alone"\n[[machines]]\nname = "a"\nscope = "solo"', 1),
        ('[[scopes]]\nname = "solo"\nkind = "standalone"\n[[machines]]\nname = "a"\nscope = "solo"\nhost = 1', 1),
        ('[[scope]]\nname = "solo"\nkind = "standalone"\n[[machines]]\nname = "a"\nscope = "solo"', 1),
        ('scopes = [1]\n[[machines]]\nname = "a"\nscope = "solo"', 1),
        ('[[scopes]]\nname = "solo"\nkind = "standalone"\n[machines]\nname = "a"\nscope = "solo"', 1),
        ('[[machines]]\nname = "a"\nscope = "solo"\n[[machines]]\nname = "b"\nscope = "solo"', 2),
    ],
)
def test_an_error_is_not_reported_again_where_it_has_an_effect(text: str, problems: int) -> None:
    """The machines of a scope that cannot be read have a scope, and a scope has the machines that cannot be read."""
    assert len(refusals(text)) == problems


def test_the_message_of_a_refusal_is_limited() -> None:
    """The message has at most a hundred errors; `problems` has all."""
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet("[[scopes]]\nname = 'a'\n" * 103, "fleet.toml")
    assert len(refused.value.problems) == 103
    assert len(str(refused.value).splitlines()) == 101
    assert str(refused.value).endswith("and 3 more errors")


# -- writing a file, and a fleet in pieces

SCOPE = Scope(
    name="shop",
    kind=ScopeKind.PLACEMENT_GROUP,
    approval=ApprovalMode.ALL,
    approve_user_events=True,
    max_user_operations=3,
    terminate_notice_s=600,
    minimum_notice_s={EventType.REBOOT: 1800, EventType.FREEZE: 901},
    max_unavailable="10%",
)
HOST = Host(
    name="kvm-07",
    labels={"rack": 'b"4"', "cpu.model": "epyc", "spare": ""},
    fault_domain=3,
    connection="qemu+ssh://forewarn@kvm-07/system",
    listed=True,
)
MACHINE = Machine(
    scope="shop", name="web-0", update_domain=1, fault_domain=2, host="rack1-a", addresses=("10.0.0.4", "fd00::4"),
    interface="tap0", instance_id='i-"quoted" \\ ü', labels={"rack": "b 4", "gpu": ""},
)  # fmt: skip


def test_a_written_fleet_reads_the_same() -> None:
    """Every key of a scope, a machine and a host survives writing and reading, with its default or another value."""
    plain = Scope(name="plain", kind=ScopeKind.AVAILABILITY_SET)
    fleet = Fleet(
        {"shop": SCOPE, "plain": plain},
        {MACHINE.key: MACHINE, ("plain", "vm"): Machine(scope="plain", name="vm")},
        {"kvm-07": HOST, "kvm-08": Host(name="kvm-08", listed=True)},
    )
    text = fleet_text(fleet)
    assert parse_fleet(text, "the text") == fleet
    assert '[[scopes]]\nname = "plain"\nkind = "availability-set"\n\n' in text
    assert text.endswith('\n\n[[hosts]]\nname = "kvm-08"\n')
    remarked = fleet_text(fleet, {("plain", "vm"): "see #7"})
    assert '\n\n# see #7\n[[machines]]\nscope = "plain"\n' in remarked
    assert parse_fleet(remarked, "the text") == fleet


def test_an_empty_fleet_is_an_empty_file() -> None:
    """The text of an empty fleet is empty."""
    assert fleet_text(Fleet({}, {})) == ""


def test_a_fleet_in_pieces_is_checked_as_a_file_is() -> None:
    """A duplicate scope, machine or host, an unknown scope and a shared address are refused."""
    whole = Fleet({"shop": SCOPE}, {MACHINE.key: MACHINE}, {"kvm-07": HOST})
    assert stated_fleet([SCOPE], [MACHINE], [HOST]) == whole
    other = Machine(scope="shop", name="web-1", addresses=("10.0.0.4",), interface="tap0")
    for scopes, machines, says in (
        ([SCOPE, SCOPE], [], "scope shop: name: there are two scopes"),
        ([SCOPE], [MACHINE, MACHINE], "machine shop/web-0: name: there are two machines"),
        ([], [MACHINE], "the fleet has no scope 'shop'"),
        ([SCOPE], [MACHINE, other], "machine shop/web-1: addresses: 10.0.0.4 on tap0 belongs to shop/web-0"),
    ):
        with pytest.raises(InvalidFleet, match=says):
            stated_fleet(scopes, machines, [])
    with pytest.raises(InvalidFleet, match="host kvm-07: name: there are two hosts 'kvm-07'"):
        stated_fleet([], [], [HOST, HOST])
