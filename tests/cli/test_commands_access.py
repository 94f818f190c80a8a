"""Tokens, addresses and certificates, as the commands use them."""

import subprocess
from pathlib import Path

from tests.cli.command_line import (
    DONE,
    FAILED,
    FOREWARN,
    ID,
    NOT_REACHABLE,
    USAGE,
    CommandLine,
    environment,
    serving,
)
from tests.support.waiting import PATIENCE_S


def test_a_token_is_shown_once_and_works_until_it_is_revoked(cli: CommandLine) -> None:
    """It is alone on standard output when it is created, and never printed again; a viewer can only read."""
    created = cli.run("token", "create", "ci", "--role", "viewer")
    secret = created.stdout.strip()
    assert " " not in secret
    assert secret not in created.stderr
    token_id = ID.search(created.stderr)
    assert token_id is not None
    assert secret not in cli.output("token", "list") + cli.output("token", "list", "--json")
    assert cli.run("status", FOREWARN_TOKEN=secret).returncode == DONE
    refused = cli.run("machine", "restart", "shop/web-0", FOREWARN_TOKEN=secret)
    assert refused.returncode == FAILED
    assert "FOREWARN_TOKEN" in refused.stderr
    assert secret not in refused.stderr
    cli.output("token", "revoke", token_id[0], "--yes")
    gone = cli.run("status", FOREWARN_TOKEN=secret)
    assert gone.returncode == FAILED
    assert f"{cli.url} does not accept the token from FOREWARN_TOKEN" in gone.stderr
    assert secret not in gone.stdout + gone.stderr + cli.log.read_text()


def test_a_wrong_token_names_the_address_and_the_source(cli: CommandLine, tmp_path: Path) -> None:
    """The error does not show the token."""
    wrong = tmp_path / "token"
    wrong.write_text("fw_wrong-but-secret\n")
    result = cli.run("event", "list", "--token-file", str(wrong))
    assert result.returncode == FAILED
    assert cli.url in result.stderr
    assert str(wrong) in result.stderr
    assert "FOREWARN_TOKEN" in result.stderr
    assert "secret" not in result.stderr


def test_an_unreachable_server_ends_with_3(cli: CommandLine) -> None:
    """The error names the address and the variable."""
    result = cli.run("status", FOREWARN_SERVER="http://127.0.0.1:9")
    assert result.returncode == NOT_REACHABLE
    assert "no server answers at http://127.0.0.1:9 (from FOREWARN_SERVER)" in result.stderr
    for arguments in (["event", "list"], ["maintenance", "schedule", "--type", "Reboot", "--scope", "shop"]):
        assert cli.run(*arguments, "--server", "http://127.0.0.1:9").returncode == NOT_REACHABLE
    wrong = cli.run("status", "--server", "127.0.0.1:9")
    assert wrong.returncode == USAGE


def test_on_another_machine_the_variables_are_enough(cli: CommandLine, tmp_path: Path) -> None:
    """The command line works without the state directory of the service."""
    variables = environment(tmp_path, FOREWARN_SERVER=cli.url, FOREWARN_TOKEN=cli.token)
    result = subprocess.run(
        [*FOREWARN, "status"], env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == DONE, result.stderr
    del variables["FOREWARN_TOKEN"]
    without = subprocess.run(
        [*FOREWARN, "status"], env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert without.returncode == FAILED
    assert "requires a token, and none was found: set FOREWARN_TOKEN" in without.stderr


def test_a_certificate_of_a_private_authority(tmp_path: Path) -> None:
    """The client trusts it with FOREWARN_CA_FILE; otherwise it refuses the connection and sends nothing."""
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    openssl = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=forewarn"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate, "-keyout", key]
    subprocess.run([*openssl.split(), *names], check=True, capture_output=True)
    with serving(tmp_path, "--tls-cert", certificate, "--tls-key", key) as cli:
        assert cli.url.startswith("https://")
        assert cli.run("status", FOREWARN_CA_FILE=certificate).returncode == DONE
        refused = cli.run("status")
        assert refused.returncode == NOT_REACHABLE
        assert f"the certificate of {cli.url} is not trusted" in refused.stderr
        assert "FOREWARN_CA_FILE" in refused.stderr
        plain = cli.run("status", "--server", cli.url.replace("https", "http"))
        assert plain.returncode == NOT_REACHABLE
