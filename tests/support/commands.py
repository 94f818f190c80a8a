"""Commands of forewarn that run in the process of the test."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

import pytest

from forewarn.cli.app import run


def run_here(
    *arguments: str, typed: str = "", variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command in this process, with our environment or these variables.

    To start a process takes ten times as long as most commands.
    """
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["forewarn", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8"))
        with (
            mock.patch.dict(os.environ, os.environ if variables is None else variables, clear=True),
            redirect_stdout(output),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as ended,
        ):
            run()
    printed = (stream.buffer.getvalue().decode() for stream in (output, errors))
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), *printed)
