"""Where the server and the token are looked for, and who wins."""

from pathlib import Path

import pytest

from forewarn.cli import server_lookup
from forewarn.cli.server_lookup import find
from forewarn.core.errors import InvalidSettings

LEFT = "http://127.0.0.1:9000"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine on which a service runs."""
    monkeypatch.setattr(server_lookup, "SYSTEM_STATE_DIR", tmp_path / "system")
    folder = tmp_path / "forewarn"
    folder.mkdir()
    (folder / "operator.url").write_text(LEFT + "\n")
    (folder / "operator.token").write_text("left\n")
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_on_the_servers_machine_both_are_found(environment: dict[str, str]) -> None:
    """What the service left in its state directory."""
    place = find(environment)
    assert (place.url, place.token) == (LEFT, "left")
    assert place.token_from.endswith("operator.token")


def test_variables_win_over_what_was_left_and_options_over_variables(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The nearer word counts."""
    said = {**environment, "FOREWARN_SERVER": "https://far:1", "FOREWARN_TOKEN": "said"}
    assert (find(said).url, find(said).token) == ("https://far:1", "said")
    (tmp_path / "other").write_text("filed")
    place = find(said, server="http://near:2/", token_file=tmp_path / "other")
    assert (place.url, place.token, place.url_from) == ("http://near:2", "filed", "--server")


def test_the_token_left_here_goes_to_the_server_that_left_it_and_to_no_other(environment: dict[str, str]) -> None:
    """Another server gets a token that was named for it, or none."""
    assert find(environment, server="https://elsewhere:8170").token == ""
    assert find(environment, server=LEFT).token == "left"


def test_without_a_service_the_default_address_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is no token to send."""
    monkeypatch.setattr(server_lookup, "SYSTEM_STATE_DIR", tmp_path / "system")
    place = find({"XDG_STATE_HOME": str(tmp_path)})
    assert (place.url, place.token) == ("http://127.0.0.1:8170", "")


def test_the_service_of_the_machine_is_found_where_the_unit_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a service of their own means the machine's."""
    monkeypatch.setattr(server_lookup, "SYSTEM_STATE_DIR", tmp_path)
    (tmp_path / "operator.url").write_text(LEFT)
    (tmp_path / "operator.token").write_text("system")
    assert find({"XDG_STATE_HOME": str(tmp_path / "none")}).token == "system"


def test_the_state_directory_of_the_services_configuration_is_looked_into(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """FOREWARN_CONFIG names the file `serve` reads; FOREWARN_STATE_DIR wins over it."""
    config = tmp_path / "serve.toml"
    config.write_text(f'state_dir = "{tmp_path}/configured"\n')
    (tmp_path / "configured").mkdir()
    (tmp_path / "configured/operator.url").write_text("http://127.0.0.1:9001")
    said = {**environment, "FOREWARN_CONFIG": str(config)}
    assert find(said).url == "http://127.0.0.1:9001"
    assert find({**said, "FOREWARN_STATE_DIR": str(tmp_path / "forewarn")}).url == LEFT


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8170",
        "ftp://x",
        "http://",
        "http://user:secret@x",
        "http://x:port",
        "http://x?y",
        "http://ü",
        "http://x\ty",
    ],
)
def test_an_address_that_is_none_is_refused(environment: dict[str, str], address: str) -> None:
    """By the name of the option, and without repeating what may hold a secret."""
    with pytest.raises(InvalidSettings, match="--server: this is not a server's address") as refused:
        find(environment, server=address)
    assert "secret" not in str(refused.value)


def test_a_token_that_cannot_be_read_is_said_and_never_shown(environment: dict[str, str], tmp_path: Path) -> None:
    """Which file, why, and what to do."""
    with pytest.raises(InvalidSettings, match=r"--token-file: .*/none: the token cannot be read: No such file"):
        find(environment, token_file=tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidSettings, match="this file is empty"):
        find(environment, token_file=tmp_path / "empty")
    with pytest.raises(InvalidSettings, match="FOREWARN_TOKEN: this is not a token") as refused:
        find({**environment, "FOREWARN_TOKEN": "sesame\nopen"})
    assert "sesame" not in str(refused.value)
    assert "left" not in repr(find(environment))
