"""Runs the command of one order and saves its result in a folder. A program of its own, standard library only.

It outlives the service: it runs in a session of its own and holds an inherited lock for as long as it lives. So a restarted
service can tell a command that still runs from one that died. Called as `python runner.py FOLDER`, with the environment of
the command as JSON on standard input. If the command runs as another user, only the command does: the runner saves its result.
"""

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_OUTPUT_BYTES = 64 * 1024
READ_BYTES = 65_536
# As much as a pipe can hold: what a command leaves there when it ends.
MAX_LAST_READS = 1024 * 1024 // READ_BYTES
GRACE_S = 5.0
SAVE_TRIES = 600
SAVE_AGAIN_S = 1.0
# From <linux/prctl.h>.
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text("utf-8"))
    environment = json.load(sys.stdin)
    if (folder / "begun").exists():
        return  # another runner began the command
    # From here on the command may have run: a service that finds this file without a result must not run it again.
    save(folder / "begun", boot_id())
    try:
        drop_ambient_capabilities()
        result = run(request["command"], environment, request["stdin"], request["time_limit_s"], request["user"])
    except OSError as error:
        reason = f"{request['command'][0]} cannot be run: {error.strerror or error}"
        result = {"ok": False, "reason": reason, "output": ""}
    save_result(folder, result)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()


def save_result(folder: Path, result: dict[str, object]) -> None:
    """Save the result of work that is done. On a full disk try again without the output: the work must not count as failed."""
    for attempt in range(SAVE_TRIES):
        try:
            save(folder / "result.json", json.dumps(result))
            return
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or attempt == SAVE_TRIES - 1:
                raise
            result = {**result, "output": f"(not kept: {error.strerror})"}
            time.sleep(SAVE_AGAIN_S)


def save(path: Path, text: str) -> None:
    """Write a file whole or not at all, also if the power fails."""
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def drop_ambient_capabilities() -> None:
    """Keep the service's capabilities from the command: ambient ones would survive a change of user that is not from root."""
    status = Path("/proc/self/status").read_text("utf-8", errors="replace")
    ambient = [line.split()[1] for line in status.splitlines() if line.startswith("CapAmb:")]
    if not ambient or int(ambient[0], 16) == 0:
        return
    import ctypes  # slow to import, and seldom needed

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities of the service cannot be dropped")


def run(
    command: list[str],
    environment: dict[str, str],
    stdin: str,
    time_limit_s: float,
    user: "dict[str, Any] | None" = None,
) -> dict[str, object]:
    deadline = time.monotonic() + time_limit_s
    process = subprocess.Popen(  # noqa: S603 - the operator's own command, as configured, without a shell
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=user["uid"] if user else None,
        group=user["gid"] if user else None,
        extra_groups=user["groups"] if user else None,
    )
    tail, reading = bytearray(), threading.Lock()
    reader = threading.Thread(target=read_tail, args=(process, tail, reading), daemon=True)
    reader.start()
    threading.Thread(target=feed, args=(process, stdin.encode()), daemon=True).start()
    try:
        code = process.wait(timeout=max(0.0, deadline - time.monotonic()))
        reason = "exit code 0" if code == 0 else ended_badly(code)
    except subprocess.TimeoutExpired:
        stop(process)
        code, reason = -1, f"stopped after its time limit of {time_limit_s:g} s"
    # A grandchild may keep the pipe open: do not wait for its output. What the command wrote is in the pipe.
    reader.join(timeout=1.0)
    read_the_rest(process, tail, reading)
    return {"ok": code == 0, "reason": reason, "output": bytes(tail).decode("utf-8", errors="replace")}


def ended_badly(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


def read_tail(process: "subprocess.Popen[bytes]", tail: bytearray, reading: threading.Lock) -> None:
    """Read all of the output, so that the command never blocks, and keep its end."""
    assert process.stdout is not None  # noqa: S101 - Popen was given PIPE
    more = True
    while more:
        wait_for_output(process.stdout.fileno())
        with reading:
            more = read_some(process.stdout.fileno(), tail)


def read_the_rest(process: "subprocess.Popen[bytes]", tail: bytearray, reading: threading.Lock) -> None:
    """Read what the command left in the pipe, in case the reader's thread had no time to do so."""
    assert process.stdout is not None  # noqa: S101 - Popen was given PIPE
    with reading:
        for _ in range(MAX_LAST_READS):
            if not wait_for_output(process.stdout.fileno(), 0) or not read_some(process.stdout.fileno(), tail):
                return


def wait_for_output(pipe: int, within_ms: "int | None" = None) -> bool:
    """Return whether there is output to read, or the output has ended."""
    polled = select.poll()
    polled.register(pipe, select.POLLIN)
    return bool(polled.poll(within_ms))


def read_some(pipe: int, tail: bytearray) -> bool:
    """Return whether more may come."""
    chunk = os.read(pipe, READ_BYTES)
    tail += chunk
    del tail[:-MAX_OUTPUT_BYTES]
    return bool(chunk)


def feed(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - Popen was given PIPE
    with suppress(BrokenPipeError):  # a command need not read its standard input
        process.stdin.write(data)
        process.stdin.close()


def stop(process: "subprocess.Popen[bytes]", grace_s: float = GRACE_S) -> None:
    """Stop the whole process group: with SIGTERM first, then with SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
