"""One action on several selected events: a page confirms it once, then each event gets its own call of the API."""

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.core.errors import ForewarnError, NotFound, Unprocessable
from forewarn.operator.api.bodies import EventOut
from forewarn.operator.portal.buttons import BULK, Button, event_buttons
from forewarn.operator.portal.page_request import PageRequest, RenderedPage

MAX_SELECTED = 50
FIELD = "event-"


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What became of one event: `message` says why the action was refused, or is ""."""

    event_id: str
    message: str


def confirm(request: PageRequest) -> RenderedPage:
    """Return the page that lists the selected events: those the action applies to, the others, and those that are gone."""
    button, ids = _selection(request.query)
    applies: list[EventOut] = []
    others: list[EventOut] = []
    gone: list[str] = []
    for event_id in ids:
        try:
            event = request.api.get(f"/v1/events/{event_id}")
            (applies if _is_offered(request, event, button) else others).append(event)
        except NotFound:
            gone.append(event_id)
    return RenderedPage("bulk.html", {"button": button, "events": applies, "others": others, "gone": gone})


def act(request: PageRequest) -> RenderedPage:
    """Perform the action on each event, and return what became of each. A refusal does not stop the others."""
    button, ids = _selection(request.form)
    outcomes = []
    for event_id in ids:
        try:
            request.api.call("POST", f"/v1/events/{event_id}/{button.verb}")
            outcomes.append(BulkResult(event_id, ""))
        except ForewarnError as error:
            outcomes.append(BulkResult(event_id, str(error)))
    return RenderedPage("bulk_done.html", {"button": button, "outcomes": outcomes})


def _selection(fields: Mapping[str, str]) -> tuple[Button, list[str]]:
    button = BULK.get(fields.get("verb", ""))
    ids = [name.removeprefix(FIELD) for name in fields if name.startswith(FIELD)]
    if button is None or not ids:
        raise Unprocessable("select at least one event, then press the button of an action")
    if len(ids) > MAX_SELECTED:
        raise Unprocessable(f"{len(ids)} events are selected: select at most {MAX_SELECTED} at once")
    return button, ids


def _is_offered(request: PageRequest, event: EventOut, button: Button) -> bool:
    order = request.api.get(f"/v1/orders/{event.id}") if event.started is not None else None
    return button in event_buttons(request.api, event, order)
