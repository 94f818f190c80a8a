"""What to add to an error about something that does not exist: the nearest names, or that an id must be whole."""

import difflib

from forewarn.core.errors import NotFound
from forewarn.operator.api.context import Api, CallContext
from forewarn.operator.api.resolver import Kind, find_matches
from forewarn.store import ScopeQuery, folded

ID_CHARS = 36
MAX_NEAREST = 3
# Names that begin or end like the wrong one are compared with it, so many of each.
COMPARED = 100
ENDS_CHARS = 2


def hint(api: Api, path: str, context: CallContext, error: NotFound) -> str:
    """Return the end of the sentence for a call with this path; "" if there is nothing to suggest."""
    if error.scope:
        nearest = _nearest_scopes(api, context, error.scope)
        return f"; did you mean {' or '.join(nearest)}?" if nearest else ""
    kind, id_ = path.split("/")[2].removesuffix("s"), context.path.get("id", "")
    kind = Kind.MAINTENANCE if kind == "drill" else kind
    if not 0 < len(id_) < ID_CHARS:
        return ""
    matches, _ = find_matches(api.store, context.caller, id_, (Kind(kind),))
    suggestion = f": did you mean {matches[0].id}?" if len(matches) == 1 else ""
    return f"; ids are written in full, with {ID_CHARS} characters{suggestion}"


def _nearest_scopes(api: Api, context: CallContext, name: str) -> list[str]:
    ends = {folded(name[:ENDS_CHARS]), folded(name[-ENDS_CHARS:])}
    pages = (
        api.store.scopes_page(ScopeQuery(text=text, within=context.caller.within, limit=COMPARED)) for text in ends
    )
    return difflib.get_close_matches(name, {scope.name for page in pages for scope in page}, n=MAX_NEAREST)
