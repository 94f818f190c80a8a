"""What the demo says of itself: where to look, what to ask as a guest, what to try next. Every command works as pasted."""

from forewarn.core.durations import duration_text

QUARTER_S = 900
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
START = """sed -n 's/.*"EventId":"\\([^"]*\\)".*/{"StartRequests":[{"EventId":"\\1"}]}/p'"""


def question(guest: str) -> str:
    """One complete line that asks for the document, as the machine that has 127.0.0.1."""
    return f"curl -s -H Metadata:true '{guest}{PATH}'"


def approval(guest: str) -> str:
    """One command over three lines that approves the newest event of the document."""
    return f"{question(guest)} |\n    {START} |\n    curl -s -H Metadata:true -d @- '{guest}{PATH}'"


def welcome(*, guest: str, operator: str, rate: float, program: str) -> str:
    quarter = duration_text(round(QUARTER_S / rate))
    return f"""
Twelve machines in four scopes, and maintenance that keeps coming. The work is pretended, and the
clock runs {rate:g} times as fast: a quarter of an hour takes {quarter}. Ctrl-C ends it and leaves nothing behind.

Look: the portal, {operator}/

Ask, as the machine shop/web-0, which has 127.0.0.1 and nobody but you to answer for it; and say go:
  {question(guest)}
  {approval(guest)}

Try, in another terminal:
  export FOREWARN_SERVER={operator}
  {program} status                        # what is scheduled, and what it waits for
  {program} machine restart shop/web-0    # an event of your own
  {program} event watch                   # every change as it comes
"""
