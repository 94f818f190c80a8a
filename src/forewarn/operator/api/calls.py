"""The table of calls: where each is, who may make it, what it takes and tells.

The table is the API: routes, authorisation and the OpenAPI document all come from it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from forewarn.core.model import (
    EventType,
    Role,
)
from forewarn.core.transitions import Verb
from forewarn.operator.api import admin, bodies, events, inventory, maintenances, orders
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import Api, CallContext, DryRun, Paged, Result
from forewarn.service.control import Control

EVERYBODY = frozenset(Role)
OPERATORS = frozenset({Role.OPERATOR})
OWNERS = frozenset({Role.OPERATOR, Role.OWNER})
MAX_BODY_BYTES = 1024 * 1024
MAX_FLEET_BYTES = 256 * 1024 * 1024
MAX_KEY_CHARS = 255


class Nothing(RequestBody):
    """No parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the API: where, who may, what it takes, what it tells with which statuses."""

    method: str
    path: str
    do: Callable[[Api, CallContext], Result]
    roles: Collection[Role]
    summary: str
    tells: Any = None
    status: Collection[int] = (200,)
    takes: Any = None
    takes_nothing_too: bool = False
    repeat: Callable[[CallContext, str], Result] | None = None  # how a kept answer is told again, where not as it is
    query: type[RequestBody] = Nothing
    creates: bool = False
    max_bytes: int = MAX_BODY_BYTES

    @property
    def name(self) -> str:
        """Unique: the method and the path."""
        return "-".join([self.method.lower(), *(part.strip("{}") for part in self.path.split("/")[2:])])

    @property
    def errors(self) -> list[int]:
        """What may go wrong with it."""
        statuses = {401, 403, 503}
        if self.query is not Nothing or self.creates or self.takes is not None or self.method == "POST":
            statuses |= {400, 422}
        if self.method != "GET":
            statuses |= {404, 408, 409, 413}
        return sorted(statuses | ({400, 404} if "{" in self.path else set()))


def _get(path: str, do: Callable[[Api, CallContext], Result], tells: Any, summary: str, **more: Any) -> Call:
    return Call(
        method="GET", path=path, do=do, roles=more.pop("roles", EVERYBODY), summary=summary, tells=tells, **more
    )


def _post(path: str, do: Callable[[Api, CallContext], Result], tells: Any, summary: str, **more: Any) -> Call:
    return Call(
        method="POST", path=path, do=do, roles=more.pop("roles", OPERATORS), summary=summary, tells=tells, **more
    )


def _delete(path: str, do: Callable[[Api, CallContext], Result], summary: str) -> Call:
    return Call(method="DELETE", path=path, do=do, roles=OPERATORS, summary=summary, status=(204,))


SCOPE, MACHINE = "/v1/scopes/{scope}", "/v1/scopes/{scope}/machines/{name}"
CALLS: tuple[Call, ...] = (
    _get("/v1/scopes", inventory.list_scopes, bodies.Page[bodies.ScopeOut], "The scopes, by name.", query=Paged),
    _get(SCOPE, inventory.get_scope, bodies.ScopeOut, "One scope."),
    _get(
        SCOPE + "/document", inventory.get_document, bodies.Document, "What the scope's guests see, in any api-version.",
        query=inventory.DocumentQuery,
    ),
    Call(
        method="PUT", path=SCOPE, do=inventory.put_scope, roles=OPERATORS, tells=bodies.ScopeOut, takes=bodies.ScopeIn,
        status=(200, 201), summary="Make a scope, or change its settings.",
    ),
    _delete(SCOPE, inventory.delete_scope, "Remove an empty scope."),
    _get(
        "/v1/machines", inventory.list_machines, bodies.Page[bodies.MachineOut], "The machines, by name.",
        query=inventory.MachinesQuery,
    ),
    _get(MACHINE, inventory.get_machine, bodies.MachineOut, "One machine."),
    Call(
        method="PUT", path=MACHINE, do=inventory.put_machine, roles=OPERATORS, tells=bodies.MachineOut, takes=bodies.MachineIn,
        status=(200, 201), summary="Add a machine, or change its place.",
    ),
    _delete(MACHINE, inventory.delete_machine, "Remove a machine."),
    _post(
        MACHINE + "/restart", inventory.user_event(EventType.REBOOT), bodies.EventOut, "Restart a machine, as its user.",
        roles=OWNERS, query=DryRun, status=(200, 202), creates=True,
    ),
    _post(
        MACHINE + "/redeploy", inventory.user_event(EventType.REDEPLOY), bodies.EventOut, "Redeploy a machine, as its user.",
        roles=OWNERS, query=DryRun, status=(200, 202), creates=True,
    ),
    _get("/v1/fleet", inventory.get_fleet, bodies.Fleet, "The whole fleet, as JSON or TOML."),
    _post(
        "/v1/fleet", inventory.post_fleet, bodies.FleetChange, "Make the fleet as stated; tells the difference.",
        takes=bodies.Fleet, query=inventory.FleetQuery, creates=True, max_bytes=MAX_FLEET_BYTES,
    ),
    _post(
        "/v1/maintenances", maintenances.post_maintenance, bodies.MaintenanceOut, "Schedule a maintenance.",
        takes=bodies.MaintenanceIn, query=DryRun, status=(200, 201), creates=True,
    ),
    _get(
        "/v1/maintenances", maintenances.list_maintenances, bodies.Page[bodies.MaintenanceRow], "The maintenances, newest first.",
        query=maintenances.MaintenancesQuery,
    ),
    _get(
        "/v1/maintenances/{id}", maintenances.get_maintenance, bodies.MaintenanceOut, "One maintenance, with its waves.",
        query=maintenances.PartQuery,
    ),
    *(
        _post(f"/v1/maintenances/{{id}}/{verb}", maintenances.maintenance_verb(do), bodies.MaintenanceOut, summary)
        for verb, do, summary in (
            ("cancel", Control.cancel_maintenance, "Cancel what has not started."),
            ("pause", Control.pause_maintenance, "Hold what has not started."),
            ("resume", Control.resume_maintenance, "Go on with what was paused."),
        )
    ),
    _get("/v1/events", events.list_events, bodies.Page[bodies.EventOut], "The events, newest first.", query=events.EventsQuery),
    _get("/v1/events/{id}", events.get_event, bodies.EventOut, "One event: what it waits for, and what happened to it."),
    _post("/v1/events/{id}/approve", events.approve_event, bodies.EventOut, "Say go for everybody.", roles=OWNERS),
    _post("/v1/events/{id}/cancel", events.cancel_event, bodies.EventOut, "Cancel it, if it has not started.", roles=OWNERS),
    *(
        _post(f"/v1/events/{{id}}/{verb}", events.settle(verb), bodies.EventOut, summary)
        for verb, summary in (
            (Verb.RETRY, "Try its failed order again."),
            (Verb.FINISH, "Its work was done after all."),
            (Verb.ABANDON, "Give it up."),
        )
    ),
    _get("/v1/orders", orders.list_orders, bodies.Page[bodies.OrderOut], "The orders, newest first.", query=orders.OrdersQuery),
    _get("/v1/orders/{id}", orders.get_order, bodies.OrderOut, "One order; it bears its event's id."),
    _post("/v1/orders/{id}/start", orders.start_order, bodies.OrderOut, "Take an order: the work begins."),
    _post(
        "/v1/orders/{id}/finish", orders.finish_order, bodies.OrderOut, "The work is done.", takes=bodies.FinishIn,
        takes_nothing_too=True,
    ),
    _post("/v1/orders/{id}/fail", orders.fail_order, bodies.OrderOut, "The work failed.", takes=bodies.FailIn),
    _get("/v1/audit", admin.list_audit, bodies.Page[bodies.AuditOut], "Who did what, newest first.", query=admin.AuditsQuery),
    _get(
        "/v1/tokens", admin.list_tokens, bodies.Page[bodies.TokenOut], "The tokens, newest first.", roles=OPERATORS,
        query=Paged,
    ),
    _post(
        "/v1/tokens", admin.post_token, bodies.NewToken, "Make a token; its secret is shown this once.",
        takes=bodies.TokenIn, status=(201,), creates=True, repeat=admin.repeat_token,
    ),
    _delete("/v1/tokens/{id}", admin.delete_token, "Revoke a token."),
    _get(
        "/v1/resolve", admin.resolve, bodies.MatchesOut,
        "What a text may mean: a machine's or scope's name, or the first 8 characters of an id or more.",
        query=admin.ResolveQuery,
    ),
    _get("/v1/counts", inventory.get_counts, bodies.CountsOut, "How many open events, scopes and machines there are."),
    _get("/v1/clock", admin.get_clock, bodies.ClockOut, "The service's time."),
    _post("/v1/clock/confirm", admin.confirm_clock, bodies.ClockOut, "A clock that jumped forward is right: go on by it."),
    _post("/v1/clock/advance", admin.advance_clock, bodies.ClockOut, "Move a manual or scaled clock.", takes=bodies.AdvanceIn),
)  # fmt: skip
