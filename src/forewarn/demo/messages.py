"""The text that the demo prints: the portal's address and commands to try. Every command works as pasted."""

from forewarn.core.durations import duration_text

QUARTER_HOUR_S = 900
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
# The Resources of an event end with the first "]" after its id.
START_REQUEST = (
    """sed -n 's/.*"EventId":"\\([^"]*\\)[^]]*Scheduled[^]]*"web-0".*/{"StartRequests":[{"EventId":"\\1"}]}/p'"""
)


def poll_command(guest: str) -> str:
    """Return the command that polls as the machine at 127.0.0.1, in one line."""
    return f"curl -s -H Metadata:true '{guest}{PATH}'"


def approve_command(guest: str) -> str:
    """Return the command that approves the last Scheduled event of web-0 in the document, in three lines."""
    return f"{poll_command(guest)} |\n    {START_REQUEST} |\n    curl -s -H Metadata:true -d @- '{guest}{PATH}'"


def welcome(*, guest: str, operator: str, rate: float, program: str) -> str:
    quarter_hour = duration_text(round(QUARTER_HOUR_S / rate))
    return f"""
Twelve machines in four scopes, with maintenance again and again. The work is simulated, and the clock
runs {rate:g} times as fast: a quarter of an hour takes {quarter_hour}. Ctrl-C ends the demo and removes its files.

The portal: {operator}/

Poll as the machine shop/web-0 (127.0.0.1), which has no agent, and then approve its event:
  {poll_command(guest)}
  {approve_command(guest)}

Try these commands in another terminal:
  export FOREWARN_SERVER={operator}
  {program} status                        # what is scheduled, and what it waits for
  {program} machine restart shop/web-0    # schedule an event of your own
  {program} event watch                   # print every change
"""
