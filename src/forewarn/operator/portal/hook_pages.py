"""The pages of hooks and their actions: each is a call of the API. A secret is shown in one response only."""

from collections.abc import Mapping
from urllib.parse import quote

from forewarn.core.durations import parse_duration
from forewarn.core.errors import ForewarnError
from forewarn.core.hooks import ALL_KINDS, USUAL_KINDS
from forewarn.core.operator_model import HookShape
from forewarn.operator.api.bodies import HookOut
from forewarn.operator.portal.buttons import Button
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage
from forewarn.operator.portal.pages import typed_text

ROWS = 25
TEST = Button("test", "Send a test message", "the receiver gets one message now, and this page shows its answer")
ENABLE = Button("enable", "Enable", "everything that has waited is sent now, in order")
DELETE = Button("delete", "Delete", "it gets no more messages, and its deliveries are forgotten", irreversible=True)


def hooks(
    request: PageRequest, *, fields: Mapping[str, str] | None = None, error_message: str = "", status: int = 200
) -> RenderedPage:
    """Return the hooks, and the form for a new one, empty or with these fields."""
    search = {"q": typed_text(request)}
    page = request.api.get("/v1/hooks", limit=ROWS, cursor=request.query.get("cursor"), **search)
    form = {"url": "", "scope": "", "shape": "", "on": "", "key": request.api.new_key()}
    variables = {
        "items": page.items,
        "search": search,
        **request.other_pages(page.next_cursor),
        "shapes": list(HookShape),
        "kinds": ALL_KINDS,
        "usual_kinds": USUAL_KINDS,
        "fields": {**form, **(fields or {})},
        "error_message": error_message,
    }
    return RenderedPage("hooks.html", variables, status)


def hook(request: PageRequest, *, error_message: str = "", test: object = None, status: int = 200) -> RenderedPage:
    path = f"/v1/hooks/{request.path_names['id']}"
    found: HookOut = request.api.get(path)
    page = request.api.get(f"{path}/deliveries", limit=ROWS, cursor=request.query.get("cursor"))
    variables = {
        "hook": found,
        "buttons": [TEST, *([ENABLE] if found.failures or found.disabled else []), DELETE],
        "deliveries": page.items,
        **request.other_pages(page.next_cursor),
        "test": test,
        "error_message": error_message,
    }
    return RenderedPage("hook.html", variables, status)


def create_hook(request: PageRequest) -> RenderedPage:
    """Show the secret in this response only. The same form submitted twice creates one hook."""
    fields = {name: request.form.get(name, "").strip() for name in ("url", "scope", "shape", "on", "key")}
    body = {
        "url": fields["url"],
        "scope": fields["scope"],
        "shape": fields["shape"],
        "on": fields["on"].replace(",", " ").split(),
    }
    try:
        made = request.api.call("POST", "/v1/hooks", body, key=fields["key"])
    except ForewarnError as error:
        return hooks(request, fields=fields, error_message=str(error), status=error.status)
    return RenderedPage("hook_secret.html", {"hook": made})


def change_hook(request: PageRequest) -> RenderedPage | Redirect:
    """Perform an action and show what came of it on the hook's page; a rotation shows the new secret instead."""
    hook_id, verb = request.path_names["id"], request.path_names["verb"]
    path = f"/v1/hooks/{hook_id}"
    if verb == "delete":
        request.api.call("DELETE", path)
        return Redirect("/hooks?done=hook-delete")
    try:
        body = _body(verb, request.form)
        result = request.api.call("POST", f"{path}/{verb}", body)
    except ForewarnError as error:
        if error.status not in (400, 422):
            raise
        return hook(request, error_message=str(error), status=error.status)
    if verb == "test":
        return hook(request, test=result)
    if verb == "rotate":
        return RenderedPage("hook_secret.html", {"hook": result})
    return Redirect(f"/hooks/{quote(hook_id)}?done=hook-{verb}")


def _body(verb: str, form: Mapping[str, str]) -> dict[str, object] | None:
    if verb == "rotate":
        return {"keep_s": parse_duration(form.get("keep", "").strip())}
    if verb == "replay":
        entry = form.get("from", "").strip()
        return {"from_entry": int(entry) if entry.isascii() and entry.isdecimal() and len(entry) < 19 else 0}
    return None


def confirm_hook(request: PageRequest) -> RenderedPage | Redirect:
    """Ask before a hook is deleted; the other actions are on its page."""
    found: HookOut = request.api.get(f"/v1/hooks/{request.path_names['id']}")
    base = f"/hooks/{quote(found.id)}"
    if request.path_names["verb"] != "delete":
        return Redirect(base)
    subject = f"The hook {found.id[:8]} of {found.scope or 'the whole fleet'}"
    return RenderedPage("confirm.html", {"button": DELETE, "subject": subject, "base": base, "page": base})
