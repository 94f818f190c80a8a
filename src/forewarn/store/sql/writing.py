"""Write the parts of a change in an open transaction, and check what the change relied on."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from forewarn.core.change import Change
from forewarn.core.errors import Conflict
from forewarn.core.model import Machine
from forewarn.core.operator_model import Hook
from forewarn.store.sql.rows import Row, Values, strategy_text, targets_text
from forewarn.store.sql.session import SqlSession


def check_premises(writer: SqlSession, change: Change) -> None:
    """Check that the scopes have the versions the decision relied on, and that the store is not held if work begins."""
    if _writes_all_it_relies_on(change):
        writer.save(
            "update_scope", writer.rows.scope, change.scopes, error_if_unchanged=_changed(change.scopes[0].name)
        )
    elif change.expect:
        found = writer.query("versions", names=writer.as_list(name for name, _ in change.expect))
        writer.check_later(lambda: _check_versions(change, found))
    if change.begins_work:
        holds = writer.query("lock_store_hold")
        writer.check_later(lambda: _check_no_hold(holds))


def _check_versions(change: Change, found: Iterable[Row]) -> None:
    versions = {row["name"]: row["version"] for row in found}
    for name, version in change.expect:
        if versions.get(name, 0) != version:
            raise _changed(name)


def _check_no_hold(holds: Iterable[Row]) -> None:
    if any(row["held"] for row in holds):
        raise Conflict("the store has been held meanwhile")


def _changed(scope: str) -> Conflict:
    return Conflict(f"scope {scope} was changed by another request or node")


def _writes_all_it_relies_on(change: Change) -> bool:
    """Whether this is one known scope, as in most changes: then one statement checks its version and updates it."""
    if len(change.expect) != 1 or len(change.scopes) != 1:
        return False
    ((name, version),) = change.expect
    return version > 0 and change.scopes[0].name == name


def write_inventory(writer: SqlSession, change: Change) -> None:
    """Write scopes, remove scopes and machines, and clear the identities of machines; `write_machines` does the rest."""
    if change.removed_machines:
        writer.execute_many(
            "remove_machine", ({"scope": scope, "name": name} for scope, name in change.removed_machines)
        )
    new = {name for name, version in change.expect if version == 0}
    if new:
        exists = Conflict("a scope that the change creates exists already")
        added = [s for s in change.scopes if s.name in new]
        writer.save("add_scope", writer.rows.scope, added, error_if_unchanged=exists)
    if not _writes_all_it_relies_on(change):
        writer.save("put_scope", writer.rows.scope, (s for s in change.scopes if s.name not in new))
    # A new scope has no machines yet.
    keys: list[Values] = [{"scope": m.scope, "name": m.name} for m in change.machines if m.scope not in new]
    if keys:
        writer.execute_many("clear_addresses", keys)
        writer.execute_many("clear_instance_id", keys)
    if change.removed_scopes:
        writer.execute_many("remove_scope", ({"name": name} for name in change.removed_scopes))


def write_machines(writer: SqlSession, machines: Sequence[Machine]) -> None:
    """Add or replace machines, and add their addresses."""
    writer.execute_many("put_machine", map(writer.rows.machine.encode, machines))
    writer.execute_many(
        "put_address",
        (
            {"interface": interface, "address": address, "scope": m.scope, "name": m.name}
            for m in machines
            for interface, address in m.identities
        ),
    )


def write_hosts(writer: SqlSession, change: Change) -> None:
    changed = Conflict("a host was changed by another request or node")
    removed: list[Values] = [{"name": name, "version": version} for name, version in change.removed_hosts]
    writer.execute_many("remove_host", removed, error_if_unchanged=changed)
    # Sorted: processes that lock rows in the same order do not deadlock.
    by_name = sorted(change.hosts, key=attrgetter("name"))
    added = [writer.rows.host.encode(host) for host in by_name if not host.version]
    writer.execute_many("add_host", added, error_if_unchanged=changed)
    updated = [writer.rows.host.encode(host) for host in by_name if host.version]
    writer.execute_many("update_host", updated, error_if_unchanged=changed)


def write_maintenances(writer: SqlSession, change: Change) -> None:
    by_id = sorted(change.maintenances, key=attrgetter("id"))
    new = [m for m in by_id if not m.version]
    if new:
        exists = Conflict("a maintenance that the change creates exists already")
        writer.save("add_maintenance", writer.rows.maintenance, new, error_if_unchanged=exists)
        targets: list[Values] = [
            {"maintenance_id": m.id, "targets": targets_text(m.targets), "strategy": strategy_text(m.strategy)}
            for m in new
            if m.targets
        ]
        writer.execute_many("add_targets", targets)
    updated = [m for m in by_id if m.version]
    changed = Conflict("a maintenance was changed by another request or node")
    writer.save("update_maintenance", writer.rows.maintenance, updated, error_if_unchanged=changed)


def wake_maintenances(writer: SqlSession, change: Change) -> None:
    """Wake the maintenances that the change names, and those that wait for the budget if it frees some."""
    woken = {
        "ids": writer.as_list(change.wakes),
        "waiting_for_budget": change.frees_budget,
        "at": writer.rows.time(change.at),
    }
    writer.execute_many("wake_maintenances", [woken])


def write_tokens(writer: SqlSession, change: Change) -> None:
    writer.execute_many("end_sessions_of_token", ({"token_id": token_id} for token_id in change.removed_tokens))
    writer.execute_many("remove_token", ({"id": token_id} for token_id in change.removed_tokens))
    tokens = [writer.rows.token.encode(t) for t in change.tokens]
    writer.execute_many(
        "add_token", tokens, error_if_unchanged=Conflict("a token with this id or secret exists already")
    )
    receipts = [writer.rows.receipt.encode(r) for r in change.receipts]
    writer.execute_many(
        "add_receipt", receipts, error_if_unchanged=Conflict("a request with this key was answered already")
    )


def write_hooks(writer: SqlSession, change: Change) -> None:
    writer.execute_many("remove_hook", ({"id": hook_id} for hook_id in change.removed_hooks))
    added = [writer.rows.hook.encode(hook) for hook in change.hooks if not hook.version]
    writer.execute_many("add_hook", added, error_if_unchanged=Conflict("a hook with this id exists already"))
    update_hooks(writer, (hook for hook in change.hooks if hook.version))


def update_hooks(writer: SqlSession, hooks: Iterable[Hook]) -> None:
    by_id = [writer.rows.hook.encode(hook) for hook in sorted(hooks, key=attrgetter("id"))]
    writer.execute_many("update_hook", by_id, error_if_unchanged=Conflict("the hook was changed meanwhile"))


def write_hold(writer: SqlSession, change: Change) -> None:
    if change.hold is not None:
        writer.execute_many("hold_clock", [writer.rows.hold.encode(change.hold)])
    if change.releases_hold is not None:
        hold = writer.rows.hold.encode(change.releases_hold)
        released = {"at": writer.rows.time(change.at), "trusted": hold["trusted"], "noticed": hold["noticed"]}
        writer.execute_many(
            "release_clock",
            [released],
            error_if_unchanged=Conflict("the clock is held for another jump than the one confirmed"),
        )
        writer.execute("wake_everything", at=writer.rows.time(change.at))


def write_store_hold(writer: SqlSession, change: Change) -> None:
    if change.store_hold is not None:
        writer.execute_many("hold_store", [writer.rows.store_hold.encode(change.store_hold)])
    if change.resumes_store is not None:
        # Maintenances before the hold: changes that begin work lock them in this order.
        writer.execute("wake_everything", at=writer.rows.time(change.at))
        resumed = {"at": writer.rows.time(change.at), "held": writer.rows.time(change.resumes_store.held)}
        writer.execute_many(
            "resume_store",
            [resumed],
            error_if_unchanged=Conflict("the store is held for another reason than the one that was resumed"),
        )


def write_fleet_rules(writer: SqlSession, change: Change) -> None:
    if change.fleet_rules is not None:
        rules = [writer.rows.fleet_rules.encode(change.fleet_rules)]
        changed = Conflict("the rules of the fleet were changed by another request or node")
        writer.execute_many("update_fleet_rules", rules, error_if_unchanged=changed)
        writer.execute("wake_everything", at=writer.rows.time(change.at))


def write_reservations(writer: SqlSession, change: Change) -> None:
    """Count what the change takes from the budget of the fleet or frees. Before anything else: this locks the budget."""
    if change.reservations is not None:
        reserved = Conflict("another wave was published meanwhile")
        writer.execute_many("reserve", [{"reservations": change.reservations}], error_if_unchanged=reserved)
    if change.frees_budget or change.takes_budget_unasked:
        writer.execute_many("count_use", [{}])
