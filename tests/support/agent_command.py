"""The command line of the agent, with more time for requests that a product must not wait long for.

Within the usual five seconds a busy machine may not answer who this machine is. The agent then takes its host name for a while,
and `check` says that the endpoint does not answer.
"""

import sys

from tests.support.waiting import PATIENCE_S

PATIENT_AGENT = f"""
from forewarn.guest import client, transport
client.INSTANCE_TIMEOUT_S = transport.CONNECT_TIMEOUT_S = {PATIENCE_S}
from forewarn.guest.main import main
main()
"""


def agent_command(*arguments: str) -> list[str]:
    """Return the command of a process that runs `forewarn-agent` with these arguments."""
    return [sys.executable, "-c", PATIENT_AGENT, *arguments]


def recording_pid(file: str, command: list[str]) -> list[str]:
    """Return a command that becomes this one, with its pid in the file before it can do anything."""
    return ["/bin/sh", "-c", 'echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@"', file, *command]
