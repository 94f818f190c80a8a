"""The page of windows and no-go times, with the forms that add, extend and remove them: each is a call of the API."""

from collections.abc import Callable, Mapping
from urllib.parse import quote

from forewarn.core.errors import ForewarnError
from forewarn.core.fleet_rules import MAX_WINDOWS
from forewarn.core.model import check_name
from forewarn.operator.api.bodies import NoGoTimeOut, WindowOut
from forewarn.operator.portal.buttons import Button
from forewarn.operator.portal.page_request import PageRequest, Redirect, RenderedPage
from forewarn.operator.portal.plan_form import rfc3339

PAGE = "/windows"
NO_GO_TIMES = "/no-go-times"
ROWS = 100
REMOVE_WINDOW = Button(
    "remove", "Remove", "the window is gone; it is refused while a scope or an open maintenance uses it", asks=True
)
REMOVE_NO_GO_TIME = Button("remove", "Remove", "what waited for the end of the no-go time may start", asks=True)
FIELDS = {
    PAGE: ("name", "when", "zone"),
    NO_GO_TIMES: ("no_go_name", "reason", "start", "end", "no_go_when", "no_go_zone", "scopes", "labels"),
}


def windows(
    request: PageRequest,
    *,
    form: str = "",
    fields: Mapping[str, str] | None = None,
    error_message: str = "",
    status: int = 200,
) -> RenderedPage:
    """Return the windows and no-go times, and the forms; `form` is the path of the one with these fields and this error."""
    no_go_times = request.api.get("/v1/no-go-times", limit=ROWS, cursor=request.query.get("cursor"))
    empty = dict.fromkeys((*FIELDS[PAGE], *FIELDS[NO_GO_TIMES], "until"), "")
    variables = {
        "windows": request.api.get("/v1/windows", limit=MAX_WINDOWS).items,
        "no_go_times": no_go_times.items,
        **request.other_pages(no_go_times.next_cursor),
        "may_change": request.api.may("PUT", "/v1/windows/{window}"),
        "fields": {**empty, "zone": "UTC", "no_go_zone": "UTC", **(fields or {})},
        "form": form,
        "error_message": error_message,
    }
    return RenderedPage("windows.html", variables, status)


def put_window(request: PageRequest) -> RenderedPage | Redirect:
    """Add a window, or change the one with this name."""
    fields = _typed(request, PAGE)
    body = {"when": _lines(fields["when"]), "zone": fields["zone"]}

    def put() -> None:
        check_name("window", fields["name"])
        request.api.call("PUT", f"/v1/windows/{fields['name']}", body)

    return _done(request, PAGE, fields, put, "window-set")


def put_no_go_time(request: PageRequest) -> RenderedPage | Redirect:
    """Add a no-go time, or change the one with this name."""
    fields = _typed(request, NO_GO_TIMES)
    body = {
        "reason": fields["reason"],
        "start": rfc3339(fields["start"]) if fields["start"] else None,
        "end": rfc3339(fields["end"]) if fields["end"] else None,
        "when": _lines(fields["no_go_when"]),
        "zone": fields["no_go_zone"],
        "scopes": fields["scopes"].replace(",", " ").split(),
        "labels": fields["labels"],
    }

    def put() -> None:
        check_name("no-go time", fields["no_go_name"])
        request.api.call("PUT", f"/v1/no-go-times/{fields['no_go_name']}", body)

    return _done(request, NO_GO_TIMES, fields, put, "no-go-set")


def extend_window(request: PageRequest) -> RenderedPage | Redirect:
    name, until = request.path_names["name"], request.form.get("until", "").strip()

    def extend() -> None:
        request.api.call("POST", f"/v1/windows/{name}/extend", {"until": rfc3339(until)})

    return _done(request, f"{PAGE}/{name}/extend", {"until": until}, extend, "window-extend")


def remove_window(request: PageRequest) -> Redirect:
    request.api.call("DELETE", f"/v1/windows/{request.path_names['name']}")
    return Redirect(f"{PAGE}?done=window-remove")


def remove_no_go_time(request: PageRequest) -> Redirect:
    request.api.call("DELETE", f"/v1/no-go-times/{request.path_names['name']}")
    return Redirect(f"{PAGE}?done=no-go-remove")


def confirm_window(request: PageRequest) -> RenderedPage:
    """Ask before a window is removed."""
    window: WindowOut = request.api.get(f"/v1/windows/{request.path_names['name']}")
    subject = f"The window {window.name}: {', '.join(window.when)} {window.zone}"
    return _confirmation(REMOVE_WINDOW, f"{PAGE}/{quote(window.name, safe='')}", subject)


def confirm_no_go_time(request: PageRequest) -> RenderedPage:
    """Ask before a no-go time is removed."""
    no_go: NoGoTimeOut = request.api.get(f"/v1/no-go-times/{request.path_names['name']}")
    subject = f"The no-go time {no_go.name}: {no_go.reason}"
    return _confirmation(REMOVE_NO_GO_TIME, f"{NO_GO_TIMES}/{quote(no_go.name, safe='')}", subject)


def _confirmation(button: Button, base: str, subject: str) -> RenderedPage:
    return RenderedPage("confirm.html", {"button": button, "subject": subject, "base": base, "page": PAGE})


def _done(
    request: PageRequest, form: str, fields: Mapping[str, str], act: Callable[[], None], done: str
) -> RenderedPage | Redirect:
    """Do what a form asks for; show the form again with its fields if that is refused."""
    try:
        act()
    except ForewarnError as error:
        return windows(request, form=form, fields=fields, error_message=str(error), status=error.status)
    return Redirect(f"{PAGE}?done={done}")


def _typed(request: PageRequest, form: str) -> dict[str, str]:
    return {name: request.form.get(name, "").strip() for name in FIELDS[form]}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
