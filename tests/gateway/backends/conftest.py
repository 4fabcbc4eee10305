"""A server with a certificate of its own."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import FakeUpstream


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, its key in the same file."""
    program = shutil.which("openssl")
    if program is None:
        pytest.fail("these tests make a certificate with the openssl command; install it")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=tollgate-test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    cert.write_bytes(cert.read_bytes() + key.read_bytes())
    return cert


@pytest.fixture
async def tls_upstream(certificate: Path) -> AsyncIterator[FakeUpstream]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with FakeUpstream(tls=context) as server:
        yield server
