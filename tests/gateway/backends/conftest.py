"""A server with a certificate of its own."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes import FakeUpstream


@pytest.fixture
async def tls_upstream(certificate: Path) -> AsyncIterator[FakeUpstream]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with FakeUpstream(tls=context) as server:
        yield server
