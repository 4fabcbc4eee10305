"""The bundled engine's answers through the gateway are as the published APIs have them, in both dialects."""

from __future__ import annotations

import pytest

from benchmarks.conformance.backends import DEMO
from benchmarks.conformance.shapes import CASES, Case
from benchmarks.conformance.stack import Stack as Judged
from tests.e2e.conftest import Stack


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_as_published(stack: Stack, case: Case) -> None:
    case.run(Judged(stack.url, stack.key, stack.engine_url, {}, {}), DEMO)
