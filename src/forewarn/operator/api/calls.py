"""The table of calls: the path of each, the roles that may make it, what it takes and what it returns.

The table is the API: routes, authorisation and the OpenAPI document all come from it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from forewarn.core.model import Event
from forewarn.core.operator_model import Role
from forewarn.core.transitions import Verb
from forewarn.operator.api import (
    admin,
    bodies,
    budget,
    drills,
    events,
    hooks,
    inventory,
    maintenances,
    orders,
    store_hold,
    windows,
)
from forewarn.operator.api.access import EVERYONE, OPERATORS, OWNERS, Identity, why_not_approve, why_not_cancel
from forewarn.operator.api.bodies import RequestBody
from forewarn.operator.api.context import Api, CallContext, DryRun, Paged, Result, Searched
from forewarn.service.control import Control

MAX_BODY_BYTES = 1024 * 1024
MAX_FLEET_BYTES = 256 * 1024 * 1024
MAX_KEY_CHARS = 255


class NoParameters(RequestBody):
    """No parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the API: its path and roles, what it takes, what it returns and with which statuses.

    A call with `creates` accepts an Idempotency-Key. If the request is repeated, the saved response is sent; `repeat` may change
    it first. `why_not` returns why a caller may not make the call on the event that the path names, or "".
    """

    method: str
    path: str
    perform: Callable[[Api, CallContext], Result]
    roles: Collection[Role]
    summary: str
    returns: Any = None
    status: Collection[int] = (200,)
    takes: Any = None
    body_optional: bool = False
    repeat: Callable[[CallContext, str], Result] | None = None
    why_not: Callable[[Identity, Event], str] | None = None
    query: type[RequestBody] = NoParameters
    creates: bool = False
    max_bytes: int = MAX_BODY_BYTES

    @property
    def name(self) -> str:
        """A unique name made of the method and the path."""
        return "-".join([self.method.lower(), *(part.strip("{}") for part in self.path.split("/")[2:])])

    @property
    def errors(self) -> list[int]:
        """The statuses of its errors."""
        statuses = {401, 403, 429, 503}
        if self.query is not NoParameters or self.creates or self.takes is not None or self.method == "POST":
            statuses |= {400, 422}
        if self.method != "GET":
            statuses |= {404, 408, 409, 413}
        return sorted(statuses | ({400, 404} if "{" in self.path else set()))


def _get(path: str, perform: Callable[[Api, CallContext], Result], returns: Any, summary: str, **more: Any) -> Call:
    return Call(
        method="GET",
        path=path,
        perform=perform,
        roles=more.pop("roles", EVERYONE),
        summary=summary,
        returns=returns,
        **more,
    )


def _post(path: str, perform: Callable[[Api, CallContext], Result], returns: Any, summary: str, **more: Any) -> Call:
    return Call(
        method="POST",
        path=path,
        perform=perform,
        roles=more.pop("roles", OPERATORS),
        summary=summary,
        returns=returns,
        **more,
    )


def _delete(
    path: str, perform: Callable[[Api, CallContext], Result], summary: str, roles: Collection[Role] = OPERATORS
) -> Call:
    return Call(method="DELETE", path=path, perform=perform, roles=roles, summary=summary, status=(204,))


HOOK = "/v1/hooks/{id}"
HOST = "/v1/hosts/{host}"
WINDOW, NO_GO_TIME = "/v1/windows/{window}", "/v1/no-go-times/{no_go_time}"
SCOPE, MACHINE = "/v1/scopes/{scope}", "/v1/scopes/{scope}/machines/{name}"
CALLS: tuple[Call, ...] = (
    _get("/v1/scopes", inventory.list_scopes, bodies.Page[bodies.ScopeOut], "The scopes, by name.", query=Searched),
    _get(SCOPE, inventory.get_scope, bodies.ScopeOut, "One scope."),
    _get(
        SCOPE + "/document", inventory.get_document, bodies.Document, "What the scope's guests see, in any api-version.",
        query=inventory.DocumentQuery,
    ),
    Call(
        method="PUT", path=SCOPE, perform=inventory.put_scope, roles=OPERATORS, returns=bodies.ScopeOut,
        takes=bodies.ScopeIn, status=(200, 201), summary="Create a scope, or change its settings.",
    ),
    _delete(SCOPE, inventory.delete_scope, "Remove an empty scope."),
    _get(
        "/v1/machines", inventory.list_machines, bodies.Page[bodies.MachineOut], "The machines, by name.",
        query=inventory.MachinesQuery,
    ),
    _get(
        "/v1/hosts", inventory.list_hosts, bodies.Page[bodies.HostOut], "The hosts, by name.", query=Searched,
    ),
    _get(HOST, inventory.get_host, bodies.HostOut, "One host."),
    _post(
        HOST + "/cordon", inventory.change_host(Control.cordon_host), bodies.HostOut,
        "Cordon a host: forewarn sends no machine to it.",
    ),
    _post(HOST + "/uncordon", inventory.change_host(Control.uncordon_host), bodies.HostOut, "Lift the cordon of a host."),
    _get(MACHINE, inventory.get_machine, bodies.MachineOut, "One machine."),
    Call(
        method="PUT", path=MACHINE, perform=inventory.put_machine, roles=OPERATORS, returns=bodies.MachineOut,
        takes=bodies.MachineIn, status=(200, 201), summary="Add a machine, or change its settings.",
    ),
    _delete(MACHINE, inventory.delete_machine, "Remove a machine."),
    _post(
        MACHINE + "/restart", inventory.restart_machine, bodies.SubmittedEvent, "Restart a machine, as its user.",
        roles=OWNERS, query=DryRun, status=(200, 202), creates=True,
    ),
    _post(
        MACHINE + "/redeploy", inventory.redeploy_machine, bodies.SubmittedEvent, "Redeploy a machine, as its user.",
        roles=OWNERS, query=DryRun, status=(200, 202), creates=True,
    ),
    _get("/v1/fleet", inventory.get_fleet, bodies.Fleet, "The whole fleet, as JSON or TOML."),
    _post(
        "/v1/fleet", inventory.post_fleet, bodies.FleetChange, "Make the fleet as stated; returns the difference.",
        takes=bodies.Fleet, query=inventory.FleetQuery, creates=True, max_bytes=MAX_FLEET_BYTES,
    ),
    _post(
        "/v1/maintenances", maintenances.post_maintenance, bodies.SubmittedMaintenance, "Schedule a maintenance.",
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
        _post(f"/v1/maintenances/{{id}}/{verb}", maintenances.change_maintenance(change), bodies.MaintenanceOut, summary)
        for verb, change, summary in (
            ("cancel", Control.cancel_maintenance, "Cancel its events that have not started."),
            ("pause", Control.pause_maintenance, "Stop its events that have not started."),
            ("resume", Control.resume_maintenance, "Continue after a pause."),
            ("continue", Control.continue_maintenance, "Continue after the wave at which its strategy stopped it."),
            ("retry-failed", Control.retry_failed, "Retry all its orders that failed; orders in doubt stay as they are."),
        )
    ),
    _post(
        "/v1/maintenances/{id}/hosts/{host}/skip", maintenances.skip_host, bodies.MaintenanceOut,
        "Leave one host out: its unstarted events and its work are cancelled; it stays cordoned if its turn had begun.",
    ),
    _post(
        "/v1/maintenances/{id}/hosts/{host}/reschedule", maintenances.reschedule_host, bodies.MaintenanceOut,
        "Move a host whose machines have not begun to leave to another time, after hosts not moved.",
        takes=bodies.RescheduleIn,
    ),
    _post(
        "/v1/drills", drills.post_drill, bodies.SubmittedMaintenance,
        "Schedule a drill: machines prepare and approve, and nothing touches them.",
        roles=OWNERS, takes=bodies.DrillIn, query=DryRun, status=(200, 201), creates=True,
    ),
    _get(
        "/v1/drills", drills.list_drills, bodies.Page[bodies.DrillRow], "The drills with their readiness, newest first.",
        query=Paged,
    ),
    _get("/v1/drills/{id}", drills.get_drill, bodies.DrillOut, "One drill, with the readiness of its machines."),
    _post(
        "/v1/drills/{id}/cancel", drills.cancel_drill, bodies.DrillOut, "Cancel the events of a drill that have not started.",
        roles=OWNERS,
    ),
    _get("/v1/events", events.list_events, bodies.Page[bodies.EventOut], "The events, newest first.", query=events.EventsQuery),
    _get(
        "/v1/waves", events.list_open_waves, bodies.OpenWavesOut, "The waves with open events, newest first.",
        query=events.OpenWavesParameters,
    ),
    _get("/v1/events/{id}", events.get_event, bodies.EventOut, "One event: what it waits for, and its timeline."),
    _post(
        "/v1/events/{id}/approve", events.approve_event, bodies.EventOut, "Approve it for all its machines.",
        roles=OWNERS, why_not=why_not_approve,
    ),
    _post(
        "/v1/events/{id}/cancel", events.cancel_event, bodies.EventOut, "Cancel it, if it has not started.",
        roles=OWNERS, why_not=why_not_cancel,
    ),
    _post(
        "/v1/events/{id}/reschedule", events.reschedule_event, bodies.EventOut,
        "Move it to another time, if it has not started; returns the event that replaces it.",
        roles=OWNERS, takes=bodies.RescheduleIn,
    ),
    *(
        _post(f"/v1/events/{{id}}/{verb}", events.resolve_failure(verb), bodies.EventOut, summary)
        for verb, summary in (
            (Verb.RETRY, "Retry its order, which failed or is in doubt."),
            (Verb.FINISH, "Finish it: the work of its order, which failed or is in doubt, was done."),
            (Verb.ABANDON, "Abandon it: its work stays undone."),
        )
    ),
    _get("/v1/orders", orders.list_orders, bodies.Page[bodies.OrderOut], "The orders, newest first.", query=orders.OrdersQuery),
    _get("/v1/orders/{id}", orders.get_order, bodies.OrderOut, "One order; its id is its event's id, unless it is a host's."),
    _post("/v1/orders/{id}/start", orders.start_order, bodies.OrderOut, "Take an order: its work begins."),
    _post(
        "/v1/orders/{id}/finish", orders.finish_order, bodies.OrderOut, "Report that the work is done.", takes=bodies.FinishIn,
        body_optional=True,
    ),
    _post("/v1/orders/{id}/fail", orders.fail_order, bodies.OrderOut, "Report that the work failed.", takes=bodies.FailIn),
    *(
        _post(f"/v1/orders/{{id}}/{verb}", orders.resolve_host(verb), bodies.OrderOut, summary)
        for verb, summary in (
            (Verb.RETRY, "Retry the work on a host, which failed or is in doubt."),
            (Verb.ABANDON, "Abandon the work on a host, which failed or is in doubt: it stays undone."),
        )
    ),
    _get("/v1/audit", admin.list_audit, bodies.Page[bodies.AuditOut], "Who did what, newest first.", query=admin.AuditsQuery),
    _get(
        "/v1/audit/chain", admin.get_audit_chain, bodies.AuditChainOut, "Where the hash chain of the audit begins and ends.",
        roles=OPERATORS,
    ),
    _get(
        "/v1/audit/export", admin.export_audit, bodies.Page[bodies.AuditOut], "The whole audit, oldest first, with its hashes.",
        roles=OPERATORS, query=Paged,
    ),
    _get(
        "/v1/tokens", admin.list_tokens, bodies.Page[bodies.TokenOut],
        "The tokens, newest first; an owner sees those for its calendars.", roles=OWNERS, query=Searched,
    ),
    _post(
        "/v1/tokens", admin.post_token, bodies.NewToken, "Create a token; its secret is shown only in this response.",
        takes=bodies.TokenIn, status=(201,), creates=True, repeat=admin.repeat_token, roles=OWNERS,
    ),
    _get("/v1/tokens/{id}", admin.get_token, bodies.TokenOut, "One token, without its secret.", roles=OWNERS),
    _delete("/v1/tokens/{id}", admin.delete_token, "Revoke a token.", roles=OWNERS),
    _get("/v1/hooks", hooks.list_hooks, bodies.Page[bodies.HookOut], "The hooks, newest first.", roles=OWNERS, query=Searched),
    _post(
        "/v1/hooks", hooks.post_hook, bodies.NewHook, "Create a hook; its secret is shown only in this response.",
        roles=OWNERS, takes=bodies.HookIn, status=(201,), creates=True, repeat=hooks.repeat_hook,
    ),
    _get(HOOK, hooks.get_hook, bodies.HookOut, "One hook, without its secret.", roles=OWNERS),
    _delete(HOOK, hooks.delete_hook, "Delete a hook.", OWNERS),
    _post(HOOK + "/test", hooks.try_hook, bodies.HookTestOut, "Send a test message now.", roles=OWNERS),
    _get(
        HOOK + "/deliveries", hooks.list_deliveries, bodies.Page[bodies.HookDeliveryOut],
        "Its last deliveries, newest entry first.", roles=OWNERS, query=Paged,
    ),
    _post(
        HOOK + "/replay", hooks.replay_hook, bodies.HookOut, "Go on with another audit entry.", roles=OWNERS,
        takes=bodies.ReplayIn,
    ),
    _post(
        HOOK + "/rotate", hooks.rotate_hook, bodies.NewHook, "Give it a new secret, shown only in this response.",
        roles=OWNERS, takes=bodies.RotateIn, body_optional=True,
    ),
    _post(HOOK + "/enable", hooks.enable_hook, bodies.HookOut, "Enable a hook, and try again now.", roles=OWNERS),
    _get(
        "/v1/resolve", admin.resolve, bodies.MatchesOut,
        "What a text may mean: a machine's or scope's name, or the first 8 characters of an id or more.",
        query=admin.ResolveQuery,
    ),
    _get("/v1/caller", admin.get_caller, bodies.CallerOut, "Who makes this call: the name, role and scopes of the token."),
    _get("/v1/counts", inventory.get_counts, bodies.CountsOut, "The number of open events, scopes and machines."),
    _get("/v1/windows", windows.list_windows, bodies.Page[bodies.WindowOut], "The windows, by name.", query=Searched),
    _get(WINDOW, windows.get_window, bodies.WindowOut, "One window, and whether it is open."),
    Call(
        method="PUT", path=WINDOW, perform=windows.put_window, roles=OPERATORS, returns=bodies.WindowOut,
        takes=bodies.WindowIn, status=(200, 201), summary="Add a window, or change its times.",
    ),
    _post(
        WINDOW + "/extend", windows.extend_window, bodies.WindowOut, "Keep an open window open for longer.",
        takes=bodies.ExtendIn,
    ),
    _delete(WINDOW, windows.delete_window, "Remove a window that no scope and no open maintenance uses."),
    _get(
        "/v1/no-go-times", windows.list_no_go_times, bodies.Page[bodies.NoGoTimeOut], "The no-go times, by name.",
        query=Searched,
    ),
    _get(NO_GO_TIME, windows.get_no_go_time, bodies.NoGoTimeOut, "One no-go time."),
    Call(
        method="PUT", path=NO_GO_TIME, perform=windows.put_no_go_time, roles=OPERATORS, returns=bodies.NoGoTimeOut,
        takes=bodies.NoGoTimeIn, status=(200, 201), summary="Add a no-go time, or change it.",
    ),
    _delete(NO_GO_TIME, windows.delete_no_go_time, "Remove a no-go time."),
    _get(
        "/v1/budget", budget.get_budget, bodies.BudgetOut, "The budgets of the fleet, and what uses them.",
        roles=EVERYONE - {Role.OWNER},
    ),
    _post("/v1/budget", budget.post_budget, bodies.BudgetOut, "Change the budgets of the fleet.", takes=bodies.BudgetIn),
    _get("/v1/store", store_hold.get_store, bodies.StoreOut, "Whether the store is held."),
    _post(
        "/v1/store/hold", store_hold.hold_store, bodies.StoreOut, "Hold the store: nothing starts, no order is handed out.",
        takes=bodies.StoreHoldIn, body_optional=True,
    ),
    _get(
        "/v1/store/resume", store_hold.get_effects, bodies.ResumeEffectsOut, "What would happen if the store were resumed.",
        roles=OPERATORS,
    ),
    _post("/v1/store/resume", store_hold.resume_store, bodies.StoreOut, "Resume the store.", takes=bodies.ResumeIn),
    _get("/v1/clock", admin.get_clock, bodies.ClockOut, "The service's time."),
    _post("/v1/clock/confirm", admin.confirm_clock, bodies.ClockOut, "Confirm that a clock that jumped forward is right."),
    _post("/v1/clock/advance", admin.advance_clock, bodies.ClockOut, "Move a manual or scaled clock.", takes=bodies.AdvanceIn),
)  # fmt: skip
