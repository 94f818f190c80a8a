"""Calls made inside the process: typed, and under the same rules as over HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from forewarn.core.errors import Forbidden, Invalid, KeyReused, NotFound, Unprocessable
from forewarn.core.model import EventType, Status
from forewarn.core.operator_model import Role
from forewarn.operator.api import bodies
from forewarn.operator.api.access import Identity
from forewarn.operator.api.client import ApiClient
from forewarn.operator.api.context import Api
from forewarn.operator.api.resolver import Kind
from tests.support.running_service import RunningService, running_service

REBOOT = {"type": "Reboot", "targets": {"machines": ["shop/web-0"]}, "not_before": "2030-01-01T05:00:00Z"}


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        running.enable("shop", "blog")
        yield running


def client_of(service: RunningService, role: Role = Role.OPERATOR, within: tuple[str, ...] | None = None) -> ApiClient:
    ids = iter(f"{n:08X}-0000-4000-8000-000000000000" for n in range(1, 100))
    api = Api(
        service.control,
        service.service.store,
        service.clock,
        advance=service.service.ticker.advance,
        new_id=lambda: next(ids),
        random=lambda: b"x" * 32,
    )
    return ApiClient(api, Identity("token", "alice", role, within, b"secret", "in process"))


@pytest.fixture
def client(service: RunningService) -> ApiClient:
    return client_of(service)


def test_a_call_returns_the_body_that_the_table_names(service: RunningService, client: ApiClient) -> None:
    """Structs with enums and times, not JSON, and the same content as over HTTP."""
    made = client.call("POST", "/v1/maintenances", REBOOT)
    assert isinstance(made, bodies.MaintenanceOut)
    assert (made.type, made.not_before) == (EventType.REBOOT, datetime(2030, 1, 1, 5, tzinfo=UTC))
    (event,) = client.get("/v1/events", status=[Status.SCHEDULED], scope="shop", limit=10, machine="").items
    assert isinstance(event, bodies.EventOut)
    assert event.maintenance_id == made.id
    assert client.get("/v1/resolve", text="web-1").matches == [bodies.MatchOut(kind=Kind.MACHINE, id="shop/web-1")]
    assert isinstance(client.get("/v1/scopes/shop/document"), bytes)
    assert client.call("DELETE", "/v1/scopes/blog/machines/db") is None


def test_a_body_may_be_a_struct(client: ApiClient) -> None:
    """The call's own type is taken as it is."""
    body = bodies.TokenIn(name="ci", role=Role.VIEWER)
    token = client.call("POST", "/v1/tokens", body)
    assert isinstance(token, bodies.NewToken)
    assert (token.name, token.role, token.created_by) == ("ci", Role.VIEWER, "alice")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/maintenances", REBOOT),
        ("/v1/scopes/shop/machines/web-0/restart", None),
        ("/v1/tokens", {"name": "ci", "role": "viewer"}),
        ("/v1/fleet", {"scopes": [{"name": "new", "kind": "availability-set"}], "machines": []}),
    ],
)
def test_a_repeated_call_returns_the_saved_body(client: ApiClient, path: str, body: object) -> None:
    """Typed as the first one, and performed once; the secret of a token included."""
    assert not client.was_answered("k")
    first = client.call("POST", path, body, key="k")
    assert client.was_answered("k")
    again = client.call("POST", path, body, key="k")
    assert type(again) is type(first)
    assert again == first
    with pytest.raises(KeyReused):
        client.call("POST", "/v1/fleet", {"scopes": [], "machines": []}, key="k")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**REBOOT, "duration_s": "1h"}, "duration_s: write whole seconds from -1 to 2592000 (30d)"),
        ({**REBOOT, "type": "Rebot"}, "type: 'Rebot' is unknown; use one of Freeze, Reboot, Redeploy"),
        ({**REBOOT, "tpye": 1}, "tpye: unknown field; did you mean type? The fields here are"),
        (None, "type: missing; add it"),
    ],
)
def test_a_wrong_body_is_refused_as_over_http(client: ApiClient, body: object, message: str) -> None:
    """With the field, what is wrong, and what it takes."""
    with pytest.raises(Unprocessable) as refused:
        client.call("POST", "/v1/maintenances", body)
    assert str(refused.value).startswith(message)


def test_what_is_wrong_about_a_request_is_refused(client: ApiClient) -> None:
    """A body where none is taken, an unknown parameter, a bad key, an unknown path."""
    with pytest.raises(Invalid, match="takes no body"):
        client.call("POST", "/v1/events/none/approve", {"a": 1})
    with pytest.raises(Unprocessable, match="colour: unknown parameter"):
        client.get("/v1/events", colour="red")
    with pytest.raises(Invalid, match="Idempotency-Key"):
        client.call("POST", "/v1/maintenances", REBOOT, key="")
    with pytest.raises(NotFound, match="there is no /v1/none"):
        client.get("/v1/none")


def test_roles_and_scopes_bind_inside_the_process_too(service: RunningService) -> None:
    """What the table and the caller's scopes forbid is refused, and `may` says so beforehand."""
    owner = client_of(service, Role.OWNER, ("blog",))
    assert [scope.name for scope in owner.get("/v1/scopes").items] == ["blog"]
    for method, path in (("GET", "/v1/scopes/shop"), ("POST", "/v1/maintenances")):
        assert not owner.may(method, path)
        with pytest.raises(Forbidden):
            owner.call(method, path, None)
    assert owner.may("POST", "/v1/scopes/blog/machines/db/restart")
    assert not owner.may("POST", "/v1/scopes/shop/machines/web-0/restart")


def test_may_knows_the_rules_about_single_events(service: RunningService) -> None:
    """An owner may approve but not cancel an event of the platform; an event of another scope does not exist for it."""
    event = service.schedule("blog/db")["waves"][0]["events"][0]["id"]
    owner = client_of(service, Role.OWNER, ("blog",))
    assert owner.may("POST", f"/v1/events/{event}/approve")
    assert not owner.may("POST", f"/v1/events/{event}/cancel")
    with pytest.raises(Forbidden, match="an owner cancels user events only"):
        owner.call("POST", f"/v1/events/{event}/cancel")
    with pytest.raises(NotFound):
        client_of(service, Role.OWNER, ("shop",)).may("POST", f"/v1/events/{event}/approve")


def test_may_takes_a_path_of_the_table_for_any_scope(service: RunningService) -> None:
    """Then only the role counts."""
    restart = "/v1/scopes/{scope}/machines/{name}/restart"
    assert client_of(service, Role.OWNER, ("blog",)).may("POST", restart)
    assert not client_of(service, Role.VIEWER).may("POST", restart)
