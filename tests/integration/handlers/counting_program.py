"""A program that counts. `counting_program.py FOLDER` writes `pid` and `count` there; on SIGUSR1 it saves `checkpoint`.

With `--from FILE` it goes on from there. `--slowly` writes at a checkpoint until the file `go` is there, `--never` does not
write one, and `--ends` ends once it has.
"""

import os
import signal
import sys
import time
from pathlib import Path

folder, options = Path(sys.argv[1]), sys.argv[2:]
count = int(Path(options[options.index("--from") + 1]).read_text().split()[-1]) if "--from" in options else 0
asked = False


def ask(*_: object) -> None:
    global asked
    asked = True
    with (folder / "asked").open("a") as out:
        out.write("asked\n")


def save() -> None:
    with (folder / "checkpoint.new").open("w") as out:
        out.write("x" * 5000 + f"\n{count}\n")
    if "--slowly" in options:  # in pieces, in place
        with (folder / "checkpoint").open("w") as out:
            while not (folder / "go").exists():
                out.write("x" * 500)
                out.flush()
                time.sleep(0.2)
            out.write(f"\n{count}\n")
    else:
        (folder / "checkpoint.new").replace(folder / "checkpoint")


signal.signal(signal.SIGUSR1, ask)
(folder / "pid.new").write_text(f"{os.getpid()}\n")
(folder / "pid.new").replace(folder / "pid")
while True:
    if asked:
        asked = False  # before it is saved: a signal that comes meanwhile asks for another checkpoint
        if "--never" not in options:
            save()
            if "--ends" in options:
                sys.exit()
    count += 1
    (folder / "count.new").write_text(str(count))
    (folder / "count.new").replace(folder / "count")
    time.sleep(0.01)
