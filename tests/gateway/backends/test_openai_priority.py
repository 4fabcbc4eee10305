"""What is said of whose turn it is, and of whom an answer continues, to servers of others."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.backends.openai import PrioritisedBackend
from gateway.types import Principal
from tests.fakes import TARGET, FakeUpstream, a_call, answer_events, policy, stream

pytestmark = pytest.mark.anyio

MINE = {"priority": -1000, "continue_final_message": True, "add_generation_prompt": False, "top_k": 4}
SAID = ({"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"})


@pytest.mark.parametrize(
    ("lower_first", "tier", "expected"), [(True, "pro", -3), (False, "pro", 3), (True, "x", 0)]
)
async def test_the_tiers_priority_is_sent_in_place_of_the_callers_and_all_else_as_it_is(
    upstream: FakeUpstream, lower_first: bool, tier: str, expected: int
) -> None:
    upstream.answer = list(stream(*answer_events("three")))
    backend = PrioritisedBackend(
        "up", base_url=upstream.base_url, probe_url=upstream.base_url + "/models", lower_first=lower_first
    )
    ranked = policy(
        models={"m": {"targets": [{"backend": "up", "model": "upstream-model"}]}},
        tiers={"pro": {"priority": 3}, "x": {}},
    )
    call = a_call(
        policy_=ranked, principal=Principal("k", "acme", tier=tier), messages=SAID, params=dict(MINE)
    )
    assert [chunk async for chunk in backend.stream(call, TARGET)]
    sent: dict[str, Any] = upstream.requests[-1].json()
    assert {name: sent[name] for name in MINE} == {**MINE, "priority": expected}
    assert sent["messages"] == list(SAID)
    await backend.aclose()
