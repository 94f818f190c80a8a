"""The addresses of the other pages of a list."""

from urllib.parse import urlencode

from forewarn.operator.portal.page_request import PageRequest


def older(request: PageRequest, cursor: str | None) -> str:
    """Return the address of the next page with the same search; "" on the last page."""
    return f"?{urlencode({**_search_of(request), 'cursor': cursor})}" if cursor is not None else ""


def first(request: PageRequest) -> str:
    """Return the address of the first page; "" on the first page."""
    search = f"?{urlencode(_search_of(request))}" if _search_of(request) else ""
    return request.url.partition("?")[0] + search if request.query.get("cursor") else ""


def _search_of(request: PageRequest) -> dict[str, str]:
    return {key: value for key, value in request.query.items() if value and key not in ("done", "cursor")}
