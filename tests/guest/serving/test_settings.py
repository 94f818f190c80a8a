"""The `[[serve.client]]` tables of agent.toml."""

import tomllib
from pathlib import Path

import pytest

from forewarn.guest.config import parse
from forewarn.guest.errors import ConfigError
from forewarn.guest.serving.settings import MAX_CLIENTS, ServedClient


def clients(toml: str) -> tuple[ServedClient, ...]:
    return parse(tomllib.loads(toml), {}).clients


def test_every_key_is_read() -> None:
    """A socket and a port, with every key and with the defaults."""
    found = clients(
        """
        [[serve.client]]
        name = "billing"
        socket = "/run/forewarn/billing.sock"
        mode = "0660"
        approves = true
        client_timeout = "2m"
        [[serve.client]]
        name = "monitor"
        port = 9001
        """
    )
    assert found == (
        ServedClient("billing", Path("/run/forewarn/billing.sock"), 0, 0o660, approves=True, timeout_s=120.0),
        ServedClient("monitor", None, 9001, 0o600, approves=False, timeout_s=300.0),
    )
    assert [each.address for each in found] == ["/run/forewarn/billing.sock", "127.0.0.1:9001"]


def test_without_the_table_there_are_no_clients() -> None:
    """An agent serves nobody unless it is configured to."""
    assert clients("") == ()
    assert clients("[serve]") == ()


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("port = 1", "name is missing"),
        ('name = "a"', "write either socket"),
        ('name = "a"\nport = 1\nsocket = "/s"', "write either socket"),
        ('name = "a"\nport = 0', "is not a port"),
        ('name = "a"\nport = true', "is not a port"),
        ('name = "a"\nport = 70000', "is not a port"),
        ('name = "a"\nport = 1\nmode = "660"', "only a socket file has a mode"),
        ('name = "a"\nsocket = "s"', "write an absolute path"),
        (f'name = "a"\nsocket = "/{"s" * 100}"', "write an absolute path"),
        ('name = "a"\nsocket = "/s"\nmode = "rw"', "is not a file mode"),
        ('name = "a"\nsocket = "/s"\nmode = "4600"', "is not a file mode"),
        ('name = "a"\nport = 1\nclient_timeout = "0"', "too short"),
        ('name = "a"\nport = 1\napproves = "yes"', "neither true nor false"),
        ('name = "a\\u001b"\nport = 1', "printable"),
        ('name = "a"\nprot = 1', "did you mean port?"),
        ('name = "a"\nport = 1\n[[serve.client]]\nname = "a"\nport = 2', "two are named 'a'"),
        ('name = "a"\nport = 1\n[[serve.client]]\nname = "b"\nport = 1', "two are at '127.0.0.1:1'"),
    ],
)
def test_a_wrong_value_is_explained(lines: str, complaint: str) -> None:
    """The message names the client and says what to write."""
    with pytest.raises(ConfigError) as raised:
        clients(f"[[serve.client]]\n{lines}")
    assert complaint in str(raised.value)
    assert "serve.client" in str(raised.value)


def test_the_table_itself_is_checked() -> None:
    """One table, an unknown key, and too many clients are errors."""
    with pytest.raises(ConfigError, match=r"under \[\[serve.client\]\]"):
        clients("[serve.client]\nname = 'a'")
    with pytest.raises(ConfigError, match="unknown key"):
        clients("[serve]\nclients = 1")
    with pytest.raises(ConfigError, match="more than"):
        clients("".join(f'[[serve.client]]\nname = "{n}"\nport = {n + 1}\n' for n in range(MAX_CLIENTS + 1)))
