"""The use cases on hooks: create, change and delete them. `hook_sender` sends their messages; `core.hooks` holds the rules."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from forewarn.core import hooks
from forewarn.core.change import Change, Snapshot
from forewarn.core.errors import Conflict, NotFound
from forewarn.core.formatting import iso_seconds
from forewarn.core.model import Actor, AuditEntry
from forewarn.core.operator_model import Hook
from forewarn.service.decisions import Decisions, Once
from forewarn.store import Focus, Store


class HookUseCases(Decisions):
    def hook(self, hook_id: str) -> Hook:
        for hook in self._store.hooks():
            if hook.id == hook_id:
                return hook
        raise NotFound(f"there is no hook {hook_id}")

    def add_hook(self, hook: Hook, actor: Actor, *, once: Once | None = None) -> Hook:
        """Save a new hook. It gets the entries that follow; return it as saved."""

        def decide(snapshot: Snapshot, now: datetime) -> tuple[Change, Hook]:
            if hook.scope and hook.scope not in snapshot.scopes:
                raise NotFound(f"there is no scope {hook.scope!r}", scope=hook.scope)
            hooks.refuse_more(self._store.hooks(), hook.scope, of_owner=hook.owner_token != "")
            new = replace(hook, created=now, cursor=self._store.audit_chain().head.id)
            detail = f"{new.shape}, on {', '.join(new.kinds)}"
            # The scope gets a new version: another node that removes it meanwhile decides again, and removes the hook as well.
            scopes = tuple(snapshot.scopes.values())
            change = Change(
                at=now,
                expect=tuple((scope.name, scope.version) for scope in scopes),
                scopes=scopes,
                hooks=(new,),
                audit=(_entry(new, now, actor, "hook created", detail),),
            )
            return change, new

        scopes = (hook.scope,) if hook.scope else ()
        return self._decide_once(Focus(scopes=scopes, whole_maintenances=False, open_events=False), decide, once)

    def remove_hook(self, hook_id: str, actor: Actor) -> None:
        def decide(_: Snapshot, now: datetime) -> Change:
            entry = _entry(self.hook(hook_id), now, actor, "hook deleted")
            return Change(at=now, removed_hooks=(hook_id,), audit=(entry,))

        self._decide(Focus(), decide)

    def rotate_hook(self, hook_id: str, secret: str, actor: Actor, *, keep_s: int) -> Hook:
        """Give the hook a new secret; the secret before it signs for `keep_s` more seconds."""

        def rotate(hook: Hook, now: datetime) -> tuple[Hook, str]:
            until = now + timedelta(seconds=keep_s) if keep_s else None
            detail = f"the old secret signs until {iso_seconds(until)}" if until else "the old secret has ended"
            return hooks.rotate_secret(hook, secret, until), detail

        return self._change_hook(hook_id, "hook secret rotated", rotate, actor)

    def enable_hook(self, hook_id: str, actor: Actor, *, owner_token: str = "") -> Hook:
        """Enable the hook. One of an owner ends with the token of the owner who enables it, or never if an operator does."""
        return self._change_hook(hook_id, "hook enabled", lambda hook, _: (hooks.enable(hook, owner_token), ""), actor)

    def replay_hook(self, hook_id: str, entry: int, actor: Actor) -> Hook:
        """Let the hook go on with this audit entry."""
        chain = self._store.audit_chain()

        def replay(hook: Hook, _: datetime) -> tuple[Hook, str]:
            moved = hooks.move_cursor(hook, entry, oldest=chain.start.id + 1, newest=chain.head.id)
            return moved, f"from entry {entry}, before it was {hook.cursor + 1}"

        return self._change_hook(hook_id, "hook replayed", replay, actor)

    def note_hook(self, hook: Hook, action: str, detail: str) -> None:
        """Save a hook with an audit entry, as the service itself; raise Conflict if the hook has changed since it was read."""
        with self._deciding:
            now = self._now()
            entry = _entry(hook, now, Actor("service", self._node), action, detail)
            if not self._save(Change(at=now, hooks=(hook,), audit=(entry,))):
                raise Conflict("the hook was changed meanwhile")

    def _change_hook(
        self, hook_id: str, action: str, change: Callable[[Hook, datetime], tuple[Hook, str]], actor: Actor
    ) -> Hook:
        def decide(_: Snapshot, now: datetime) -> Change:
            changed, detail = change(self.hook(hook_id), now)
            return Change(at=now, hooks=(changed,), audit=(_entry(changed, now, actor, action, detail),))

        return self._decide(Focus(), decide).hooks[0]


def without_hooks_of(store: Store, scopes: tuple[str, ...], change: Change, actor: Actor) -> Change:
    """Return the change with the removal of the hooks of these scopes."""
    gone = [hook for hook in store.hooks() if hook.scope in scopes] if scopes else []
    entries = (_entry(hook, change.at, actor, "hook deleted", "its scope is removed") for hook in gone)
    return replace(change, removed_hooks=tuple(hook.id for hook in gone), audit=(*change.audit, *entries))


def _entry(hook: Hook, now: datetime, actor: Actor, action: str, detail: str = "") -> AuditEntry:
    what = f"{hook.id[:8]} to {hooks.host_of(hook)}"
    return AuditEntry(
        at=now,
        who=actor.name,
        origin=actor.origin,
        action=action,
        scope=hook.scope,
        detail=f"{what}: {detail}" if detail else what,
    )
