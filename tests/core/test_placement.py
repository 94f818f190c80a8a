"""Where machines go that leave their host: never to a cordoned one, spread over fault domains and hosts."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.model import Host, Machine
from forewarn.core.placement import MAX_TARGETS, Hosts, targets
from tests.support.builders import START, machine


def host(name: str, fault_domain: int = 0, **facts: object) -> Host:
    return replace(Host(name=name, fault_domain=fault_domain, listed=True), **facts)  # type: ignore[arg-type]


def hosts(*rows: Host, machines: dict[str, int] | None = None, in_maintenance: frozenset[str] = frozenset()) -> Hosts:
    return Hosts(rows={row.name: row for row in rows}, machines=machines or {}, in_maintenance=in_maintenance)


WEB = machine("shop/web-0", host="a")


def test_the_fault_domain_with_the_fewest_machines_of_the_scope_comes_first() -> None:
    """Then the host with the fewest machines, then the name; the host that the machine leaves is none."""
    others = [machine("shop/web-1", host="b"), machine("shop/web-2", host="c"), machine("shop/web-3", host="d")]
    farm = hosts(
        host("a", 3),
        host("b", 1),
        host("c", 1),
        host("d", 2),
        host("e", 2),
        host("f", 2),
        machines={"d": 5, "f": 1, "e": 1},
    )
    assert targets([WEB], [WEB, *others], farm) == {"web-0": ("e", "f", "d", "b", "c")}


def test_a_host_that_is_emptied_next_comes_last() -> None:
    """A machine that goes there has to move once more: it is better off in a crowded fault domain."""
    farm = replace(hosts(host("b", 1), host("c", 2), machines={"b": 9}), emptied_next={"c"})
    assert targets([WEB], [WEB, machine("shop/web-1", host="b")], farm) == {"web-0": ("b", "c")}


def test_machines_that_leave_together_are_spread() -> None:
    """Each is expected on its first host before the next one is placed; where they are now does not count."""
    leaving = [machine(f"shop/web-{n}", host="a") for n in range(4)]
    farm = hosts(host("a", 0), host("b", 1), host("c", 1), host("d", 2), machines={"a": 4})
    assert {name: found[0] for name, found in targets(leaving, leaving, farm).items()} == {
        "web-0": "b",
        "web-1": "d",
        "web-2": "c",
        "web-3": "d",
    }


def test_a_machine_on_a_host_that_the_fleet_does_not_list_has_its_own_fault_domain() -> None:
    """The fault domain of the machine counts there."""
    others = [machine("shop/web-1", host="old", fault_domain=1), machine("shop/web-2", host="x", fault_domain=2)]
    farm = hosts(host("b", 1), host("c", 2), host("d", 3), Host(name="old", fault_domain=3))
    assert targets([WEB], [WEB, *others], farm) == {"web-0": ("d", "b", "c")}


def test_only_the_best_hosts_are_named() -> None:
    """A large fleet has more hosts than an executor will try."""
    farm = hosts(*(host(f"h{number}") for number in range(MAX_TARGETS + 5)), machines={"h0": 9})
    (found,) = targets([WEB], [WEB], farm).values()
    assert len(found) == MAX_TARGETS
    assert "h0" not in found


def test_without_a_list_of_hosts_the_executor_chooses() -> None:
    """A row that is there only for a cordon is no list; a list without a host that may be chosen is one."""
    assert targets([WEB], [WEB], hosts(Host(name="b", cordoned=START), Host(name="c"))) == {}
    assert targets([WEB], [WEB], hosts(host("a"), host("b", cordoned=START))) == {"web-0": ()}


def test_a_named_host_is_the_only_choice() -> None:
    """Also one that the fleet does not list, but never one that is cordoned or in maintenance."""
    farm = hosts(host("b"), host("c", cordoned=START), in_maintenance=frozenset({"d"}))
    assert targets([WEB], [WEB], farm, to_host="b") == {"web-0": ("b",)}
    assert targets([WEB], [WEB], farm, to_host="new") == {"web-0": ("new",)}
    assert [targets([WEB], [WEB], farm, to_host=name) for name in ("c", "d")] == [{"web-0": ()}] * 2
    assert [farm.why_not(name) for name in ("b", "c", "d", "new")] == [
        "",
        "host c is cordoned",
        "host d is in maintenance",
        "",
    ]


rows = st.builds(
    Host,
    name=st.sampled_from("abcdefgh"),
    fault_domain=st.integers(0, 3),
    listed=st.booleans(),
    cordoned=st.none() | st.just(START),
)
machines = st.builds(
    Machine,
    scope=st.just("shop"),
    name=st.sampled_from([f"web-{n}" for n in range(6)]),
    host=st.sampled_from(["", *"abcdefgh"]),
    fault_domain=st.integers(0, 3),
)


@given(
    st.lists(rows, unique_by=lambda row: row.name),
    st.lists(machines, unique_by=lambda each: each.name),
    st.frozensets(st.sampled_from("abcdefgh")),
    st.sampled_from(["", *"abcdefgh"]),
    st.data(),
)
def test_never_a_cordoned_host(
    known: list[Host], of_scope: list[Machine], busy: frozenset[str], to_host: str, data: st.DataObject
) -> None:
    """Whatever the fleet is: no cordoned host, none in maintenance, none that it does not list, and not the one to leave."""
    leaving = [each for each in of_scope if data.draw(st.booleans())]
    farm = hosts(*known, machines={row.name: data.draw(st.integers(0, 9)) for row in known}, in_maintenance=busy)
    placed = targets(leaving, of_scope, farm, to_host=to_host)
    cordoned = {row.name for row in known if row.cordoned is not None}
    assert set(placed) == {each.name for each in leaving} or not any(row.listed for row in known)
    for each in leaving:
        chosen = placed.get(each.name, ())
        assert not {*chosen} & (cordoned | busy)
        assert len({*chosen}) == len(chosen)
        if not to_host:
            assert each.host not in chosen
            assert {*chosen} <= {row.name for row in known if row.listed}
