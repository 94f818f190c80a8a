"""What people type is found: names, names with their scope, and the first characters of ids."""

from collections.abc import Callable, Iterator

import pytest

from forewarn.operator.api.resolver import MAX_MATCHES
from tests.support.running_service import FLEET, RunningService, running_service

TWINS = FLEET + '[[machines]]\nscope = "blog"\nname = "web-0"\n'
Match = tuple[str, str]
Resolve = Callable[..., list[Match]]


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(TWINS) as running:
        running.enable("shop", "blog")
        yield running


@pytest.fixture
def resolve(service: RunningService) -> Resolve:
    """Return the matches, none left out."""

    def resolve(text: str, *kinds: str, token: str | None = None) -> list[Match]:
        query = "".join(f"&kind={kind}" for kind in kinds)
        reply = service.get(f"/v1/resolve?text={text}{query}", token=token)
        assert reply["more"] is False
        return [(match["kind"], match["id"]) for match in reply["matches"]]

    return resolve


@pytest.fixture(scope="module")
def maintenance(service: RunningService) -> tuple[str, str]:
    """The id of a maintenance in shop and of its event, whose work has begun."""
    made = service.schedule("shop/web-0")
    service.post("/v1/clock/advance", {"seconds": 1_000})
    return str(made["id"]), str(made["waves"][0]["events"][0]["id"])


def test_a_machine_is_found_by_its_name_and_with_its_scope(resolve: Resolve) -> None:
    """A name alone finds every machine of that name; with the scope it is one."""
    assert resolve("web-0") == [("machine", "blog/web-0"), ("machine", "shop/web-0")]
    assert resolve("shop/web-0") == [("machine", "shop/web-0")]
    assert resolve("web-1") == [("machine", "shop/web-1")]
    assert resolve("%20web-1%20") == [("machine", "shop/web-1")]


def test_a_scope_is_found_by_its_name(resolve: Resolve) -> None:
    """The whole name."""
    assert resolve("shop") == [("scope", "shop")]
    assert resolve("shop", "machine") == []


@pytest.mark.parametrize("text", ["nothing", "web", "shop/none", "none/web-0", "a/b/c", "/", "we%20b", "%E2%82%AC"])
def test_nothing_found_is_an_empty_list(resolve: Resolve, text: str) -> None:
    """What no name or id can be is not an error either."""
    assert resolve(text) == []


def test_an_id_is_found_by_its_first_characters(resolve: Resolve, maintenance: tuple[str, str]) -> None:
    """At least 8, in either case; an order has its event's id."""
    maintenance_id, event_id = maintenance
    for text in (event_id[:8], event_id[:8].lower(), event_id[:20], event_id, event_id.lower()):
        assert resolve(text) == [("event", event_id), ("order", event_id)]
    assert resolve(event_id[:8], "order") == [("order", event_id)]
    assert resolve(maintenance_id[:8]) == [("maintenance", maintenance_id)]
    assert resolve(maintenance_id[:8], "event", "order") == []
    assert resolve(event_id[:7]) == []


def test_tokens_are_found_by_operators_alone(service: RunningService, resolve: Resolve) -> None:
    """By name, by id, and by the first characters of the id."""
    viewer = service.token_of("viewer", name="night watch")
    token_id = next(t["id"] for t in service.get("/v1/tokens")["items"] if t["name"] == "night watch")
    for text in ("night%20watch", token_id, token_id[:8], token_id[:8].lower()):
        assert resolve(text, "token") == [("token", token_id)]
        assert resolve(text, "token", token=viewer) == []


def test_an_owner_finds_its_own_things_only(
    service: RunningService, resolve: Resolve, maintenance: tuple[str, str]
) -> None:
    """Whatever lies in other scopes is not found, by name or by id."""
    owner, other = (service.token_of("owner", scope) for scope in ("shop", "blog"))
    assert resolve("web-0", token=owner) == [("machine", "shop/web-0")]
    assert resolve("web-0", token=other) == [("machine", "blog/web-0")]
    assert resolve("shop/web-0", token=other) == resolve("shop", token=other) == []
    for text in maintenance:
        assert resolve(text[:8], token=owner) == resolve(text[:8])
        assert resolve(text[:8], token=other) == []


def test_exact_matches_come_first(service: RunningService, resolve: Resolve) -> None:
    """A scope whose name begins an event's id comes before the event."""
    event_id = service.schedule("blog/db")["waves"][0]["events"][0]["id"]
    service.request("PUT", f"/v1/scopes/{event_id[:8]}", {"kind": "standalone"})
    assert resolve(event_id[:8]) == [("scope", event_id[:8]), ("event", event_id)]
    assert resolve(event_id) == [("event", event_id)]


def test_matches_are_bounded() -> None:
    """Where there are more than are listed, the answer says so."""
    scopes = "".join(
        f'[[scopes]]\nname = "s{n:02}"\nkind = "standalone"\n[[machines]]\nscope = "s{n:02}"\nname = "vm"\n'
        for n in range(MAX_MATCHES + 1)
    )
    with running_service(scopes) as service:
        reply = service.get("/v1/resolve?text=vm")
        assert reply["more"] is True
        assert [match["id"] for match in reply["matches"]] == [f"s{n:02}/vm" for n in range(MAX_MATCHES)]
        service.request("DELETE", "/v1/scopes/s20/machines/vm")
        assert service.get("/v1/resolve?text=vm")["more"] is False


@pytest.mark.parametrize("query", ["", "text=", "text=x&kind=planet", f"text={'x' * 201}", "text=a&colour=red"])
def test_a_wrong_question_is_refused(service: RunningService, query: str) -> None:
    """The text is required, has a limit, and a kind is one of six."""
    assert service.request("GET", f"/v1/resolve?{query}").status == 422
