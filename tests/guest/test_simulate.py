"""A rehearsal and an agent keep out of each other's way."""

from pathlib import Path

import pytest

from forewarn.guest import simulate
from forewarn.guest.config import Config
from forewarn.guest.journal import Journal, in_use
from forewarn.guest.main import main


def simulated(folder: Path) -> object:
    path = folder / "agent.toml"
    path.write_text(f'state_dir = "{folder}/state"\n')
    path.chmod(0o600)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "Reboot", "--config", str(path)])
    return ended.value.code


def test_no_rehearsal_beside_an_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of an idle one: an event may come at any moment."""
    agent = Journal(tmp_path / "state")
    assert simulated(tmp_path) == 1
    assert "stop the agent first" in capsys.readouterr().err
    agent.close()


def test_no_agent_begins_beside_a_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its journal is taken until everything is undone."""
    found = []

    def rehearse(config: Config, *_: object) -> bool:
        found.append(in_use(config.state_dir))
        return True

    monkeypatch.setattr(simulate, "simulate", rehearse)
    assert simulated(tmp_path) == 0
    assert found == [True]
    assert not in_use(tmp_path / "state")
