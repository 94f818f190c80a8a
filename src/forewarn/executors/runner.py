"""Runs one order's command and leaves its result in a folder. A program of its own, standard library only.

It outlives the service: started in a session of its own, it holds an inherited lock for as long as it lives, so that a
restarted service can tell work that goes on from work that died. Called as `python runner.py FOLDER`.
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

MAX_OUTPUT_BYTES = 64 * 1024
READ_BYTES = 65_536
# As much as a pipe can hold: what a command leaves there when it ends.
MAX_LAST_READS = 1024 * 1024 // READ_BYTES
GRACE_S = 5.0
SAVE_TRIES = 600
SAVE_AGAIN_S = 1.0


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text("utf-8"))
    # From here on the command may have run: whoever finds this without a result knows that it must not run again.
    save(folder / "begun", boot_id())
    try:
        result = run(request["command"], request["environment"], request["stdin"], request["time_limit_s"])
    except OSError as error:
        reason = f"{request['command'][0]} cannot be run: {error.strerror or error}"
        result = {"ok": False, "reason": reason, "output": ""}
    save_result(folder, result)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()


def save_result(folder: Path, result: dict[str, object]) -> None:
    """The work is done: a full disk must not turn that into a failure. Without its output it may fit."""
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
    """Whole or not at all, also across a power failure."""
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def run(command: list[str], environment: dict[str, str], stdin: str, time_limit_s: float) -> dict[str, object]:
    deadline = time.monotonic() + time_limit_s
    process = subprocess.Popen(  # noqa: S603 - the operator's own command, as configured, without a shell
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
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
    # A grandchild may keep the pipe open; its output is not waited for. What the command wrote is there.
    reader.join(timeout=1.0)
    read_the_rest(process, tail, reading)
    return {"ok": code == 0, "reason": reason, "output": bytes(tail).decode("utf-8", errors="replace")}


def ended_badly(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"


def read_tail(process: "subprocess.Popen[bytes]", tail: bytearray, reading: threading.Lock) -> None:
    """Keep the last of the output, and keep reading, so that a chatty command never blocks."""
    assert process.stdout is not None  # noqa: S101 - Popen was given PIPE
    goes_on = True
    while goes_on:
        wait_for_output(process.stdout.fileno())
        with reading:
            goes_on = read_some(process.stdout.fileno(), tail)


def read_the_rest(process: "subprocess.Popen[bytes]", tail: bytearray, reading: threading.Lock) -> None:
    """Take what the command left in the pipe, should the machine have been too busy for the reader."""
    assert process.stdout is not None  # noqa: S101 - Popen was given PIPE
    with reading:
        for _ in range(MAX_LAST_READS):
            if not wait_for_output(process.stdout.fileno(), 0) or not read_some(process.stdout.fileno(), tail):
                return


def wait_for_output(pipe: int, within_ms: "int | None" = None) -> bool:
    """Return whether there is something to read, or the end of it."""
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
    with suppress(BrokenPipeError):  # a command need not read what it is told
        process.stdin.write(data)
        process.stdin.close()


def stop(process: "subprocess.Popen[bytes]") -> None:
    """The whole process group: gently first, then whoever of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
