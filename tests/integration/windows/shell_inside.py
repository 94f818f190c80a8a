"""Runs on the Windows machine: reads commands, each a JSON list, and writes the exit code and the output of each."""

import json
import subprocess
import sys

for line in sys.stdin:
    done = subprocess.run(
        json.loads(line),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    print(json.dumps([done.returncode, done.stdout]), flush=True)
