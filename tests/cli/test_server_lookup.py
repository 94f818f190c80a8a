"""Where the command line finds the server and the token, and which source wins."""

from pathlib import Path
from typing import Any

import pytest

from forewarn.cli.server_lookup import Server, find_server
from forewarn.core.errors import InvalidSettings

LOCAL_URL = "http://127.0.0.1:9000"
LOCAL_TOKEN = "token-of-this-machine"


def find(environment: dict[str, str], **options: Any) -> Server:
    """Find the server on a machine without a system-wide service."""
    return find_server(environment, **{"system_state_dir": Path("/nonexistent"), **options})


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose service runs on this machine."""
    folder = tmp_path / "forewarn"
    folder.mkdir()
    (folder / "operator.url").write_text(LOCAL_URL + "\n")
    (folder / "operator.token").write_text(LOCAL_TOKEN + "\n")
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_on_the_servers_machine_address_and_token_are_found(environment: dict[str, str]) -> None:
    """The service wrote both into its state directory."""
    server = find(environment)
    assert (server.url, server.token) == (LOCAL_URL, LOCAL_TOKEN)
    assert server.token_from.endswith("operator.token")


def test_variables_win_over_local_files_and_options_over_variables(environment: dict[str, str], tmp_path: Path) -> None:
    """For the address and for the token."""
    variables = {**environment, "FOREWARN_SERVER": "https://far:1", "FOREWARN_TOKEN": "variable"}
    assert (find(variables).url, find(variables).token) == ("https://far:1", "variable")
    (tmp_path / "other").write_text("from-file")
    server = find(variables, server="http://near:2/", token_file=tmp_path / "other")
    assert (server.url, server.token, server.url_from) == ("http://near:2", "from-file", "--server")


def test_the_local_token_is_used_only_for_the_local_server(environment: dict[str, str]) -> None:
    """Another server gets a token that the user names, or none."""
    elsewhere = find(environment, server="http://localhost:9000")
    assert (elsewhere.token, elsewhere.unused_token.endswith(f"operator.token is sent only to {LOCAL_URL}")) == (
        "",
        True,
    )
    here = find(environment, server=LOCAL_URL)
    assert (here.token, here.unused_token) == (LOCAL_TOKEN, "")


def test_without_a_local_service_the_default_address_is_used(tmp_path: Path) -> None:
    """There is no token for it."""
    server = find({"XDG_STATE_HOME": str(tmp_path)})
    assert (server.url, server.token, server.unused_token) == ("http://127.0.0.1:8170", "", "")
    assert find({"XDG_STATE_HOME": str(tmp_path)}, server="http://far:1").unused_token == ""


def test_the_system_wide_service_is_found(tmp_path: Path) -> None:
    """A user who runs no service gets that of the systemd unit."""
    (tmp_path / "operator.url").write_text(LOCAL_URL)
    (tmp_path / "operator.token").write_text("system")
    variables = {"XDG_STATE_HOME": str(tmp_path / "none")}
    assert find(variables, system_state_dir=tmp_path).token == "system"


def test_the_state_directory_can_come_from_the_services_configuration(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """FOREWARN_CONFIG names the file that `serve` reads; FOREWARN_STATE_DIR wins over it."""
    config = tmp_path / "serve.toml"
    config.write_text(f'state_dir = "{tmp_path}/configured"\n')
    (tmp_path / "configured").mkdir()
    (tmp_path / "configured/operator.url").write_text("http://127.0.0.1:9001")
    variables = {**environment, "FOREWARN_CONFIG": str(config)}
    assert find(variables).url == "http://127.0.0.1:9001"
    assert find({**variables, "FOREWARN_STATE_DIR": str(tmp_path / "forewarn")}).url == LOCAL_URL


def test_a_service_that_is_stopped_is_asked_where_its_configuration_says(tmp_path: Path) -> None:
    """Not at the default port; the error says where the address comes from. The token of its folder is for that address."""
    config = tmp_path / "serve.toml"
    config.write_text(f'operator = "127.0.0.1:9123"\nstate_dir = "{tmp_path}"\n')
    (tmp_path / "operator.token").write_text(LOCAL_TOKEN)
    variables = {"FOREWARN_CONFIG": str(config), "XDG_STATE_HOME": str(tmp_path / "none")}
    server = find(variables)
    assert (server.url, server.url_from, server.token) == ("http://127.0.0.1:9123", str(config), LOCAL_TOKEN)
    of_variable = find({**variables, "FOREWARN_OPERATOR": "[::]:9124", "FOREWARN_TLS_CERT": "cert.pem"})
    assert (of_variable.url, of_variable.url_from) == ("https://[::1]:9124", "FOREWARN_OPERATOR")
    (tmp_path / "operator.url").write_text(LOCAL_URL)
    assert find(variables).url == LOCAL_URL
    for text in ("operator = 1", 'operator = "127.0.0.1:0"', 'operator = "here"', "no TOML"):
        config.write_text(text)
        assert find({**variables, "XDG_STATE_HOME": str(tmp_path / "none")}).url == "http://127.0.0.1:8170"


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
def test_a_wrong_address_is_refused(environment: dict[str, str], address: str) -> None:
    """The error names the option and does not repeat the address, which may contain a secret."""
    with pytest.raises(InvalidSettings, match="--server: this is not a server's address") as refused:
        find(environment, server=address)
    assert "secret" not in str(refused.value)


def test_an_unusable_token_is_refused_without_showing_it(environment: dict[str, str], tmp_path: Path) -> None:
    """The error names the file or variable, and the reason."""
    with pytest.raises(InvalidSettings, match=r"--token-file: .*/none: the token cannot be read: No such file"):
        find(environment, token_file=tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidSettings, match="this file is empty"):
        find(environment, token_file=tmp_path / "empty")
    with pytest.raises(InvalidSettings, match="FOREWARN_TOKEN: this is not a token") as refused:
        find({**environment, "FOREWARN_TOKEN": "sesame\nopen"})
    assert "sesame" not in str(refused.value)
    assert LOCAL_TOKEN not in repr(find(environment))
