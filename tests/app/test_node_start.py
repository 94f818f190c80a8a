"""The start of a node: its name, its operator token, and what it closes when the start fails."""

from pathlib import Path

import pytest

from forewarn.app.operator_token import keep_operator_token
from forewarn.app.service import Service, new_state_dir_name, node_name
from forewarn.core.errors import InvalidSettings, StoreUnavailable
from forewarn.core.model import Actor
from forewarn.core.operator_model import Role, Token
from forewarn.operator.api.access import ENVIRONMENT_TOKEN, digest
from forewarn.service.settings import Settings
from forewarn.service.state_dir import StateDir
from tests.support.guest_service import START
from tests.support.services import make_service
from tests.support.several_nodes import LeasedMemoryStore, ScriptedFeed


class ClosedFeed(ScriptedFeed):
    """A feed that records whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("away", [True, False])
def test_a_start_that_fails_leaves_no_connection_open(tmp_path: Path, away: bool) -> None:
    """The database does not answer, or the state folder cannot be used: the feed's connection is closed."""
    (tmp_path / "place.lock").mkdir()
    store, feed = LeasedMemoryStore(), ClosedFeed()
    feed.away = away
    store.feed = lambda: feed  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable if away else InvalidSettings):
        Service(Settings(store="memory:", state_dir=tmp_path), store=store)
    assert feed.closed


def test_no_two_nodes_have_one_name(tmp_path: Path) -> None:
    """Not even in one process: containers share process ids and may share a host name."""
    folder = StateDir(tmp_path, new_state_dir_name)
    names = {node_name(folder) for _ in range(100)} | {node_name(None) for _ in range(100)}
    assert len(names) == 200
    assert sum(name.rpartition(":")[0] == folder.name for name in names) == 100
    assert len({new_state_dir_name() for _ in range(100)}) == 100
    folder.close()


def tokens_after_start(service: Service, path: Path) -> list[Token]:
    keep_operator_token(service, path)
    return sorted(service.store.tokens(), key=lambda token: token.name)


def test_a_state_folder_has_one_operator_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is kept, and replaced when its file is lost; none is made when the environment sets one."""
    monkeypatch.delenv(ENVIRONMENT_TOKEN, raising=False)
    service = make_service(LeasedMemoryStore())
    service.state_dir = StateDir(tmp_path, lambda: "here-1")
    path = tmp_path / "operator.token"
    theirs = Token(id="t", name="operator of there-2", role=Role.OPERATOR, digest=digest("t"), created=START)
    service.control.add_token(theirs, Actor("test"))
    (mine, _) = first = tokens_after_start(service, path)
    assert mine.name == "operator of here-1"
    assert tokens_after_start(service, path) == first
    path.unlink()
    (again, kept) = tokens_after_start(service, path)
    assert (again.name, kept) == (mine.name, theirs)
    assert again.digest == digest(path.read_text().strip()) != mine.digest
    monkeypatch.setenv(ENVIRONMENT_TOKEN, "an-operator-of-the-environment")
    path.unlink()
    assert tokens_after_start(service, path) == [again, theirs]
    assert not path.exists()
    service.state_dir.close()
