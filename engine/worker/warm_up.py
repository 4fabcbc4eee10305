"""Steps of every shape that serving can need, so that no kernel is compiled while requests wait.

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
from engine.layers.lora import WARM_UP
from engine.worker.batch import SHORT, SamplingRow
from engine.worker.sampler import Sampler

_ROWS = (1, 17, 33, 65)
"""The first of each class of rows."""
PLAIN = SamplingParams(max_tokens=2, temperature=0)
DRAWN = replace(PLAIN, temperature=1.0, top_p=0.9)
EDITED = replace(DRAWN, presence_penalty=1.0)
MEASURED = replace(PLAIN, logprobs=1)


@dataclass(frozen=True, slots=True)
class FirstRequest:
    """A prompt of ``length`` tokens in the first of ``blocks``, and a few tokens after it: what any request does."""

    length: int
    lookahead: int
    """Draft tokens that are proposed after the prompt."""
    blocks: list[int]
    groups: int
    """Of layers. All have the same tables here."""

    def prompt(self) -> Plan:
        return self._step([0] * self.length, 0, PLAIN, lookahead=self.lookahead)

    def decode(self, params: SamplingParams) -> Plan:
        return self._step([0], self.length - 1, params)

    def verify(self, drafts: list[int]) -> Plan:
        return self._step([0, *drafts], self.length - 1, PLAIN, drafts=len(drafts))

    def _step(
        self, tokens: list[int], start: int, params: SamplingParams, *, drafts: int = 0, lookahead: int = 0
    ) -> Plan:
        return Plan(
            [
                ScheduledRequest(
                    0,
                    tokens,
                    start,
                    self.blocks,
                    replace(params, max_tokens=self.lookahead + 2),
                    start > 0,
                    [0] * self.length,
                    self.length,
                    num_draft_tokens=drafts,
                    lookahead=lookahead,
                    others=[self.blocks] * (self.groups - 1),
                )
            ]
        )


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """The largest that serving can need."""

    sequences: int
    tokens: int
    """Of a step."""
    length: int
    """Of a sequence."""
    blocks: list[int]
    """As many as such a sequence has. All sequences of a warm-up share them, as nothing reads their content."""
    adapters: bool = False
    prompt_logprobs: bool = True
    groups: int = 1
    """Of layers. All have the same tables here."""


def plans(limits: ServingLimits) -> Iterator[Plan]:
    """The largest step comes first, so that memory left after it is left after all."""
    counts = sorted({min(rows, limits.sequences) for rows in _ROWS} | {limits.sequences})
    yield largest(limits)
    for count in counts:
        yield _decodes(limits, count, 1)
        yield _decodes(limits, count, 1, DRAWN)
    yield _decodes(limits, 1, 1, EDITED)
    yield _decodes(limits, 1, 1, MEASURED)
    for new in range(2, SHORT + 1):
        for count in (1, 65):
            if count <= limits.sequences and count * new <= limits.tokens and new < limits.length:
                yield _decodes(limits, count, new)
    for tokens in sorted(_chunks(min(limits.tokens, limits.length - 1))):
        yield Plan([_work(limits, 0, 0, tokens)])
    if limits.prompt_logprobs:
        yield Plan(
            [replace(_work(limits, 0, 0, min(65, limits.tokens, limits.length - 1)), prompt_logprobs=1)]
        )
    if limits.adapters:
        for plan in list(plans(replace(limits, adapters=False, prompt_logprobs=False))):
            yield Plan([replace(scheduled, adapter=WARM_UP) for scheduled in plan.requests])


def largest(limits: ServingLimits) -> Plan:
    """As many sequences as possible, all of which sample, and as many tokens as a step has."""
    share = max(1, min(limits.tokens // limits.sequences, limits.length - 1))
    plan = _decodes(limits, limits.sequences, share, DRAWN)
    left = limits.tokens - share * limits.sequences
    # The first sequence gets the remainder.
    if more := min(left, limits.length - 1 - share):
        plan.requests[0] = _work(limits, 0, limits.length - 1 - share - more, share + more, DRAWN)
    return plan


@torch.inference_mode()
def sample_masked(sampler: Sampler, logits: Tensor, words: int) -> None:
    """Samples with a grammar mask, with and without other edits of ``logits`` [1, vocab]."""
    bits = torch.full((1, words), -1, dtype=torch.int32)
    for params in (PLAIN, EDITED):
        sampler.sample(logits, [SamplingRow(-1, params, [0], 1, [])], ([0], bits))


def _chunks(most: int) -> Iterator[int]:
    """Prompt chunks: one more than each power of two."""
    size = SHORT
    while size < most:
        yield size + 1
        size *= 2
    yield most


def _decodes(limits: ServingLimits, count: int, new: int, params: SamplingParams = PLAIN) -> Plan:
    """At the end of the longest sequences, whose tables are the widest."""
    first = _work(limits, 0, max(0, limits.length - 1 - new), new, params)
    return Plan([replace(first, request_id=-1 - i) for i in range(count)])


def _work(
    limits: ServingLimits, number: int, start: int, count: int, params: SamplingParams | None = PLAIN
) -> ScheduledRequest:
    history = [0] * (start + count)
    # Real requests have numbers from 0 on.
    return ScheduledRequest(
        -1 - number,
        [0] * count,
        start,
        limits.blocks,
        params,
        True,
        history,
        start + count,
        others=[limits.blocks] * (limits.groups - 1),
    )
