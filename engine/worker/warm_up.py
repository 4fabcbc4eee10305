"""Steps that meet every shape which serving can meet, so that no kernel is compiled while requests wait.

What Triton compiles a kernel for is in the kernels' launchers: how many new tokens a sequence of a decode has (up to
16), whether there are more than 64 sequences, classes of rows of products (to 16, to 32 or 64, more), and of tokens for
experts. All other numbers of a step are arguments that nothing is compiled for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.worker.batch import SHORT, SamplingRow
from engine.worker.sampler import Sampler

_ROWS = (1, 17, 33, 65)
"""The first of each class of rows."""
PLAIN = SamplingParams(max_tokens=2, temperature=0)
DRAWN = replace(PLAIN, temperature=1.0, top_p=0.9)
EDITED = replace(DRAWN, presence_penalty=1.0)
MEASURED = replace(PLAIN, logprobs=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What serving does not go beyond."""

    sequences: int
    tokens: int
    """Of a step."""
    length: int
    """Of a sequence."""
    blocks: list[int]
    """As many as such a sequence has. All of a warm-up are in the same ones: what they hold, nobody reads."""
    adapters: bool = False
    prompt_logprobs: bool = True


def plans(bounds: Bounds) -> Iterator[Plan]:
    """The largest step comes first: what memory is left over after it, is left over after all."""
    counts = sorted({min(rows, bounds.sequences) for rows in _ROWS} | {bounds.sequences})
    yield largest(bounds)
    for count in counts:
        yield _decodes(bounds, count, 1)
        yield _decodes(bounds, count, 1, DRAWN)
    yield _decodes(bounds, 1, 1, EDITED)
    yield _decodes(bounds, 1, 1, MEASURED)
    for new in range(2, SHORT + 1):
        for count in (1, 65):
            if count <= bounds.sequences and count * new <= bounds.tokens and new < bounds.length:
                yield _decodes(bounds, count, new)
    for tokens in sorted(_chunks(min(bounds.tokens, bounds.length - 1))):
        yield Plan([_work(bounds, 0, 0, tokens)])
    if bounds.prompt_logprobs:
        yield Plan(
            [replace(_work(bounds, 0, 0, min(65, bounds.tokens, bounds.length - 1)), prompt_logprobs=1)]
        )
    if bounds.adapters:
        for plan in list(plans(replace(bounds, adapters=False, prompt_logprobs=False))):
            yield Plan([replace(scheduled, adapter="warm-up") for scheduled in plan.requests])


def largest(bounds: Bounds) -> Plan:
    """As many sequences as there can be, each of which draws, and as many tokens as a step has."""
    share = max(1, min(bounds.tokens // bounds.sequences, bounds.length - 1))
    plan = _decodes(bounds, bounds.sequences, share, DRAWN)
    left = bounds.tokens - share * bounds.sequences
    # What does not divide evenly is the first one's.
    if more := min(left, bounds.length - 1 - share):
        plan.requests[0] = _work(bounds, 0, bounds.length - 1 - share - more, share + more, DRAWN)
    return plan


@torch.inference_mode()
def draw_masked(sampler: Sampler, logits: Tensor, words: int) -> None:
    """As requests with grammars draw, with and without anything else that edits ``logits`` [1, vocab]."""
    bits = torch.full((1, words), -1, dtype=torch.int32)
    for params in (PLAIN, EDITED):
        sampler.sample(logits, [SamplingRow(-1, params, [0], 1, [])], ([0], bits))


def _chunks(most: int) -> Iterator[int]:
    """Of prompts: one more than each power of two."""
    size = SHORT
    while size < most:
        yield size + 1
        size *= 2
    yield most


def _decodes(bounds: Bounds, count: int, new: int, params: SamplingParams = PLAIN) -> Plan:
    """At the end of the longest sequences, whose tables are the widest."""
    first = _work(bounds, 0, max(0, bounds.length - 1 - new), new, params)
    return Plan([replace(first, request_id=-1 - i) for i in range(count)])


def _work(
    bounds: Bounds, number: int, start: int, count: int, params: SamplingParams | None = PLAIN
) -> ScheduledRequest:
    history = [0] * (start + count)
    # Requests are numbered from 0 on.
    return ScheduledRequest(
        -1 - number, [0] * count, start, bounds.blocks, params, True, history, start + count
    )
