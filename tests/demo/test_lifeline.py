"""The lifeline of the demo's helpers, and the removal of its folder."""

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from forewarn.demo.lifeline import create_lifeline, wait_for_end
from tests.support.waiting import PATIENCE_S, until


def test_a_helper_waits_until_the_lifeline_ends(tmp_path: Path) -> None:
    """Waiting ends when the lifeline is closed, and at once if it is closed already or does not exist."""
    path = tmp_path / "lifeline"
    descriptor = create_lifeline(path)
    helper = threading.Thread(target=wait_for_end, args=(path,), daemon=True)
    helper.start()
    helper.join(0.2)
    assert helper.is_alive()
    os.close(descriptor)
    helper.join(PATIENCE_S)
    assert not helper.is_alive()
    wait_for_end(path)
    path.unlink()
    wait_for_end(path)


def test_a_wait_may_have_a_limit(tmp_path: Path) -> None:
    """The simulated work of an agent ends after its time while the demo still runs."""
    path = tmp_path / "lifeline"
    descriptor = create_lifeline(path)
    helper = threading.Thread(target=wait_for_end, args=(path, 0.01), daemon=True)
    helper.start()
    helper.join(PATIENCE_S)
    assert not helper.is_alive()
    os.close(descriptor)


def test_the_folder_is_removed_after_its_last_user_has_ended(tmp_path: Path) -> None:
    """While a process holds the pipe, the folder stays: an agent that starts late would create it again."""
    (tmp_path / "one" / "two").mkdir(parents=True)
    reading, in_use = os.pipe()
    program = ["-m", "forewarn.demo.lifeline", "remove", str(reading), str(tmp_path / "one")]
    with (
        subprocess.Popen(["sleep", "60"], pass_fds=[in_use]) as agent,
        subprocess.Popen([sys.executable, *program], pass_fds=[reading]) as remover,
    ):
        os.write(in_use, b"!")
        until(lambda: not select.select([reading], [], [], 0)[0])  # the remover has read it, and waits for more
        os.close(reading)
        os.close(in_use)
        with pytest.raises(subprocess.TimeoutExpired):
            remover.wait(0.5)
        assert (tmp_path / "one" / "two").exists()
        agent.kill()
        assert remover.wait(PATIENCE_S) == 0
    assert not (tmp_path / "one").exists()
