"""The agent under test as a process group of its own, with the end of its output."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

MAX_OUTPUT_BYTES = 4_096
MAX_READ_BYTES = 65_536
MAX_READS = 64
MAX_OUTPUT_LINES = 15


class AgentFailed(Exception):
    """The agent does not have the behaviour. The message says what was observed instead."""


class AgentProcess:
    """Starts and kills the agent, as often as needed, one process at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if shutil.which(command[0]) is None:
            raise AgentFailed(f"{command[0]} cannot be started: there is no such program, or it is not executable")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user chose this command
                [*_kill_with_parent(), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise AgentFailed(f"{command[0]} cannot be started: {error.strerror}") from None
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def terminate(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the agent and the processes it started, unless they left its process group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.read_output()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def exit_code(self) -> int | None:
        """Return None while the agent runs, and the negated signal number if a signal ended it.

        The process is not reaped here: until `kill` no other process can get its id or its group's.
        """
        if self._process is None:
            return 0
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    @property
    def has_ended(self) -> bool:
        """Whether the agent was started and has ended by itself."""
        return self._process is not None and self.exit_code() is not None

    def check_running(self) -> None:
        """Raise AgentFailed if the agent was started and has ended."""
        if self.has_ended and (code := self.exit_code()) is not None:
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            raise AgentFailed(f"the agent ended, {how}")

    def read_output(self) -> None:
        """Read what the agent has written, so that it is not blocked, and keep the end."""
        if self._process is None or self._process.stdout is None:
            return
        for _ in range(MAX_READS):
            try:
                data = os.read(self._process.stdout.fileno(), MAX_READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self._output = (self._output + data)[-MAX_OUTPUT_BYTES:]

    def output(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self._output.decode("utf-8", "replace").splitlines()[-MAX_OUTPUT_LINES:])


@cache
def _kill_with_parent() -> tuple[str, ...]:
    """Return a prefix for the command with which the kernel kills the agent if we are killed, or () if there is none."""
    prefix = ("setpriv", "--pdeathsig", "KILL")
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else ()  # noqa: S603
    except OSError:
        return ()
