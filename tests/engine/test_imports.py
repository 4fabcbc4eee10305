from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param("engine.core.scheduler, engine.core.plan, engine.client, engine.messages", id="core"),
        pytest.param("engine.server.serve, engine.__main__, engine.process", id="http-process"),
    ],
)
def test_no_torch_where_none_is_needed(modules: str) -> None:
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
