"""Recurrent layers: a prompt in pieces is what it is token by token, in whatever batch and from whatever state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.core.plan import ScheduledRequest
from engine.layers import delta_rule, recurrence, state_space
from engine.layers.causal_conv import CausalConv
from engine.state_batch import StateBatch
from engine.worker.state_rows import state_batch

CPU = torch.device("cpu")
HEADS, KEY, VALUE, SLOTS = 3, 8, 5, 4


def inputs(rule: str, tokens: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k = (
        functional.normalize(torch.randn(tokens, HEADS, KEY, generator=generator), dim=-1) for _ in range(2)
    )
    v = torch.randn(tokens, HEADS, VALUE, generator=generator)
    g = -torch.rand(tokens, HEADS, generator=generator)
    found = [q, k, v, g]
    return [*found, torch.rand(tokens, HEADS, generator=generator)] if rule == "delta" else found


RULES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "delta": (delta_rule.step, delta_rule.scan),
    "space": (state_space.step, state_space.scan),
}


def by_formula(rule: str, parts: list[Tensor], state: Tensor) -> Tensor:
    found = []
    for token in range(len(parts[0])):
        q, k, v, g, *beta = (part[token] for part in parts)
        state.mul_(g.exp()[:, None, None])
        written = v
        if beta:
            written = beta[0][:, None] * (v - torch.einsum("hk,hkv->hv", k, state))
        state += k[:, :, None] * written[:, None]
        found.append(torch.einsum("hk,hkv->hv", q, state))
    return torch.stack(found)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tokens", [1, 2, 64, 65, 150])
def test_a_scan_is_the_formula(rule: str, tokens: int) -> None:
    parts = inputs(rule, tokens)
    state = torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(1))
    wanted_state = state.clone()
    wanted = by_formula(rule, parts, wanted_state)
    found = RULES[rule][1](*parts, state)
    assert torch.allclose(found, wanted, atol=1e-5) and torch.allclose(state, wanted_state, atol=1e-5)


def batch_of(*requests: tuple[int, int, int]) -> StateBatch:
    """(slot, start, count)"""
    return state_batch(
        [
            ScheduledRequest(slot, [7] * count, start, [], None, False, state=slot)
            for slot, start, count in requests
        ],
        CPU,
    )


@pytest.mark.parametrize("rule", RULES)
def test_a_batch_is_what_its_requests_are_alone(rule: str) -> None:
    """Single tokens and chunks, some at their beginning, in slots that hold something else."""
    step, scan = RULES[rule]
    batch = batch_of((2, 5, 1), (0, 0, 70), (3, 0, 1), (1, 9, 3))
    parts = inputs(rule, batch.tokens)
    states = torch.randn(SLOTS, HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(2))
    states[0], states[3] = float("nan"), float("inf")
    alone, one_by_one = states.clone(), states.clone()
    wanted = []
    for rows in batch.each:
        own = alone[rows.slot].zero_() if rows.begins else alone[rows.slot]
        wanted.append(by_formula(rule, [part[rows.start : rows.stop] for part in parts], own))
    read = recurrence.at_once(batch, states, parts, torch.empty_like(parts[2]), step=step, scan=scan)
    assert torch.allclose(read, torch.cat(wanted), atol=1e-5) and torch.allclose(states, alone, atol=1e-5)
    slowly = recurrence.one_by_one(batch, one_by_one, parts, step)
    assert torch.allclose(slowly, read, atol=1e-5) and torch.allclose(one_by_one, alone, atol=1e-5)


@pytest.mark.parametrize("kernel", [2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_goes_on_where_the_last_step_ended(kernel: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, added = torch.randn(6, kernel, generator=generator), torch.randn(6, generator=generator)
    conv = CausalConv(weight, added if bias else None)
    texts = {slot: torch.randn(20, 6, generator=generator) for slot in (0, 2)}
    states = torch.full((3, kernel - 1, 6), float("nan"))
    found: dict[int, list[Tensor]] = {0: [], 2: []}
    for steps in ([(0, 0, 1)], [(2, 0, 9), (0, 1, 1)], [(0, 2, 18), (2, 9, 2)], [(2, 11, 9)]):
        batch = batch_of(*steps)
        out = conv(
            torch.cat([texts[slot][start : start + count] for slot, start, count in steps]), batch, states
        )
        for (slot, _, _), rows in zip(steps, batch.each, strict=True):
            found[slot].append(out[rows.start : rows.stop])
    for slot, text in texts.items():
        padded = functional.pad(text.T[None], (kernel - 1, 0))
        wanted = functional.conv1d(padded, weight[:, None], added if bias else None, groups=6)[0].T
        assert torch.allclose(torch.cat(found[slot]), wanted, atol=1e-5)
    assert states[1].isnan().all()
