"""Blocks of a provider's own dialect, nested without end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.guards.native import conversation


@pytest.mark.parametrize("kind", ["tool_result", "new_kind"])
def test_blocks_within_blocks_without_end_are_refused(kind: str) -> None:
    block: Any = {"type": "text", "text": "hi"}
    for _ in range(20):
        block = {"type": kind, "content": [block]}
    assert [found.value for found in conversation({"messages": [{"role": "user", "content": [block]}]})] == [
        "hi"
    ]
    for _ in range(900):
        block = {"type": kind, "content": [block]}
    with pytest.raises(BadRequest, match="levels"):
        list(conversation({"messages": [{"role": "user", "content": [block]}]}))
