"""`forewarn-agent simulate` and an agent never run the same steps at the same time."""

from pathlib import Path

import pytest

from forewarn.guest.journal import Journal, in_use
from forewarn.guest.main import main


def simulate(folder: Path, steps: str = "") -> object:
    """Return the exit code of `simulate Reboot` with these steps."""
    path = folder / "agent.toml"
    path.write_text(f'state_dir = "{folder}/state"\n{steps}')
    path.chmod(0o600)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "Reboot", "--config", str(path)])
    return ended.value.code


def test_simulate_refuses_while_an_agent_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`simulate` refuses even beside an idle agent, because an event may come at any moment."""
    agent = Journal(tmp_path / "state")
    assert simulate(tmp_path) == 1
    assert "stop the agent first" in capsys.readouterr().err
    agent.close()


def test_no_agent_starts_while_steps_are_simulated(tmp_path: Path) -> None:
    """`simulate` holds the agent's journal until everything is undone."""
    locked = f"flock --nonblock {tmp_path}/state/agent.lock true || echo held >> {tmp_path}/locks"
    command = f"""prepare = ["/bin/sh", "-c", "{locked}"], recover = ["/bin/sh", "-c", "{locked}"]"""
    assert simulate(tmp_path, f'[[steps]]\nname = "try the lock"\ncommand = {{ {command} }}\n') == 0
    assert (tmp_path / "locks").read_text().split() == ["held", "held"]
    assert not in_use(tmp_path / "state")
