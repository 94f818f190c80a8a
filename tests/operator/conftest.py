"""What several tests of the operator listener need."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    options = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", *options.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key
