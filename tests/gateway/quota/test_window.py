"""How much of a quota callers come to use whose answers take their time, and whose caps are far above them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import RateLimited
from gateway.policy.schema import QuotaSettings
from gateway.quota.counters import SLOT_MS, SLOTS
from gateway.quota.quotas import Quotas
from gateway.types import Principal, Usage
from tests.fakes import a_call, policy

pytestmark = pytest.mark.anyio

QUOTA = 12_000
"""Tokens a minute."""
WINDOW = (SLOTS + 1) * SLOT_MS / 1000
"""A minute slides in steps: what is let in counts for up to this many seconds."""
PROMPT, ANSWER = 9, 100
MINUTES = 3


async def used_of_a_window(declared: int, seconds: float, *, strict: bool) -> tuple[float, int]:
    """Of what a window lets in: the part that 24 clients used who ask again and again; and how many were cut short."""
    now = [1_800_000_000.0]
    begin, number, used, cut = now[0], 24, 0, 0
    quotas = Quotas("memory", clock=lambda: now[0])
    rules = policy()
    caller = Principal("k", "acme", quotas=QuotaSettings(tokens_per_minute=QUOTA, strict=strict))
    waiting: list[tuple[float, int, Callable[[], Any] | None]] = [
        (begin + client / 100, client, None) for client in range(number)
    ]
    while waiting[0][0] < begin + MINUTES * WINDOW:
        now[0], _, ends = heapq.heappop(waiting)
        number += 1
        if ends is not None:
            ends()
            heapq.heappush(waiting, (now[0], number, None))
            continue
        call = a_call(
            policy_=rules, principal=caller, request_id=str(number), params={"max_tokens": declared}
        )
        try:
            reservation = await quotas.reserve(call)
        except RateLimited as error:
            assert error.retry_after is not None
            heapq.heappush(waiting, (now[0] + min(error.retry_after, 2.0), number, None))
            continue
        assert reservation is not None
        assert call.allowance is not None
        cap = await call.allowance.hold(call)
        usage = Usage(PROMPT, min(ANSWER, cap or declared))
        cut += usage.completion < ANSWER
        if now[0] >= begin + WINDOW:  # the first teaches what answers come to
            used += usage.prompt + usage.completion

        def end(call: Any = call, reservation: Any = reservation, usage: Usage = usage) -> None:
            quotas.estimator.learn(call, usage)
            quotas.settle(reservation, tokens=usage.prompt + usage.completion, nanodollars=0)

        heapq.heappush(waiting, (now[0] + seconds, number, end))
    return used / (MINUTES - 1) / QUOTA, cut


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("declared", [4_096, 16_000])
@pytest.mark.parametrize("seconds", [2.0, 8.0])
async def test_large_caps_waste_no_window(declared: int, seconds: float, strict: bool) -> None:
    part, cut = await used_of_a_window(declared, seconds, strict=strict)
    assert part >= 0.95
    assert part <= 1.02, "of prompts alone there may be more than is thought"
    assert cut <= 10, "of more than three hundred answers"
