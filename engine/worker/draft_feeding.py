"""Draft tokens proposed on the device, where steps overlap: from what the step before has sampled, unseen by the host.

In turn a proposer is told the tokens of a step, and its draft tokens are known before the next is planned. Here both
stay on the device until the next step is under way: ``launch`` follows the sampling, the next step takes what comes of
it (``Feed``), and the host reads it when it collects the step. What the sampler verifies is known by then, so no token
changes (``speculative.py``). How many to propose is decided before it is known how many were accepted.

Prompt lookup (``ngram.py``) searches a text that the host has, and so do grammars: their steps do not overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from engine.models.hidden_states import HiddenStates
from engine.worker.download import Download
from engine.worker.feed import Feed
from engine.worker.speculative import Proposer, Speculation
from engine.worker.step import ProposedDrafts, Step
from engine.worker.upload import upload
from engine.worker.verified import Verified


@runtime_checkable
class FeedingProposer(Proposer, Protocol):
    def able(self, verified: Verified, limits: Mapping[int, int]) -> dict[int, int]:
        """By request, how many draft tokens it could propose."""
        ...

    def launch(
        self, verified: Verified, states: HiddenStates | None, lengths: Mapping[int, int]
    ) -> tuple[list[int], Tensor]:
        """Called after every step. Nothing waits for the device.

        Returns requests, and int64 [requests, most of ``lengths``]: of each the draft tokens after those that
        ``verified`` has, and as many zeros as it gets fewer."""
        ...

    def settle(self, tokens: Mapping[int, Sequence[int]]) -> None:
        """Called when the host knows what the step of the last but one ``launch`` has sampled, or of the last."""
        ...


class DraftFeeding:
    def __init__(self, proposer: FeedingProposer, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._proposer = proposer
        self._clock = clock
        self._landed = 0.0

    def launch(self, speculation: Speculation, step: Step) -> None:
        """Proposes what follows the samples of ``step``."""
        if step.observed is None:
            return
        batch, states = step.observed
        step.observed = None
        sampled = step.sampled
        if sampled is None:
            sampled = torch.empty(0, dtype=torch.int64, device=batch.tokens.device)
        verified = Verified(batch, step.rows, sampled)
        limits = {
            number: min(one.scheduled.lookahead, speculation.max_drafts)
            for number, one in verified.requests.items()
            if one.scheduled.lookahead
        }
        base = step.plan.tokens - sum(one.num_draft_tokens for one in step.plan.requests)
        lengths: dict[int, int] = {}
        if limits and not speculation.policy.paused(base):
            lengths = speculation.policy.choose(base, self._proposer.able(verified, limits))
        proposed, drafts = self._proposer.launch(verified, states, lengths)
        if not verified.requests:
            return
        table = verified.last.new_zeros(len(verified.requests), 2 + drafts.shape[1])
        table[:, 0], table[:, 1] = verified.rejected, verified.last
        rows = {number: one.place for number, one in verified.requests.items()}
        if proposed:
            (places,) = upload(
                [np.array([rows[number] for number in proposed], dtype=np.int64)], table.device
            )
            table[places, 2:] = drafts
        counts = {number: lengths[number] for number in proposed}
        step.proposed = ProposedDrafts(
            Feed(rows, len(rows), table, table.shape[1]), counts, Download([table])
        )

    def collect(self, speculation: Speculation, step: Step) -> dict[int, list[int]]:
        """Draft tokens by request. The step's tokens are known."""
        self._proposer.settle(step.output.tokens)
        drafts = step.proposed.read() if step.proposed else {}
        now = self._clock()
        # What the device did for the step before does not count.
        speculation.record(step.plan, step.output.tokens, now - max(step.began, self._landed))
        self._landed = now
        return drafts
