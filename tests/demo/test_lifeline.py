"""The lifeline of the demo's helpers, and the removal of its folder."""

import os
import threading
from pathlib import Path

from forewarn.demo.lifeline import create_lifeline, remove_folder, wait_for_end


def test_a_helper_waits_until_the_lifeline_ends(tmp_path: Path) -> None:
    """Waiting ends when the lifeline is closed, and at once if it is closed already or does not exist."""
    path = tmp_path / "lifeline"
    descriptor = create_lifeline(path)
    helper = threading.Thread(target=wait_for_end, args=(path,), daemon=True)
    helper.start()
    helper.join(0.2)
    assert helper.is_alive()
    os.close(descriptor)
    helper.join(10)
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
    helper.join(10)
    assert not helper.is_alive()
    os.close(descriptor)


def test_a_folder_is_removed_with_its_content(tmp_path: Path) -> None:
    """A folder that does not exist is no error."""
    (tmp_path / "one" / "two").mkdir(parents=True)
    remove_folder(tmp_path / "one")
    assert not (tmp_path / "one").exists()
    remove_folder(tmp_path / "one")
    assert not (tmp_path / "one").exists()
