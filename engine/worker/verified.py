"""What a step has sampled and accepted, before any host knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import ScheduledRequest
from engine.core.sampling_row import SamplingRow
from engine.worker.batch import Batch
from engine.worker.upload import upload


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """One that the step samples for."""

    scheduled: ScheduledRequest
    place: int
    """Among those, in the order of the batch."""
    sample: int
    """Its first row of samples; those after its draft tokens follow."""
    row: int
    """Its row of the batch that this one is sampled from."""

    @property
    def length(self) -> int:
        """Tokens before those that are sampled."""
        return len(self.scheduled.history)


class Verified:
    """``sampled``: int64 [len(rows)]. A draft token is accepted if it equals what is sampled at its position, and all
    before it are (``rejection_sampler.py``)."""

    def __init__(self, batch: Batch, rows: Sequence[SamplingRow], sampled: Tensor) -> None:
        self.batch = batch
        self.sampled = sampled
        first = {row.request_id: i for i, row in reversed([*enumerate(rows)])}
        self.requests: dict[int, VerifiedRequest] = {}
        """Choices that begin with this step are not among them."""
        end = 0
        for scheduled in batch.order:
            end += len(scheduled.tokens)
            sample = first.get(scheduled.request_id)
            if sample is not None:
                row, place = end - 1 - scheduled.num_draft_tokens, len(self.requests)
                self.requests[scheduled.request_id] = VerifiedRequest(scheduled, place, sample, row)
        found = list(self.requests.values())
        samples = [request.sample for request in found]
        most = max((request.scheduled.num_draft_tokens for request in found), default=0)
        arrays = [np.array(samples), np.array([request.row for request in found])]
        if most:
            # No token equals the padding.
            drafts = np.full((len(found), most), -1)
            for request in found:
                if count := request.scheduled.num_draft_tokens:
                    drafts[request.place, :count] = request.scheduled.tokens[-count:]
            arrays += [drafts, np.array([request.scheduled.num_draft_tokens for request in found])]
        first_samples, first_rows, *more = upload(
            [array.astype(np.int64) for array in arrays], sampled.device
        )
        self.accepted = torch.zeros_like(first_samples)
        """int64 [requests]: draft tokens."""
        self.rejected = self.accepted
        if more:
            places = first_samples[:, None] + torch.arange(most, device=sampled.device)
            equal = sampled[places.clamp_(max=len(sampled) - 1)] == more[0]
            self.accepted = equal.long().cumprod(1).sum(1)
            self.rejected = more[1] - self.accepted
        self.last = sampled[first_samples + self.accepted]
        """int64 [requests]: the last token that is kept of each,"""
        self.rows = first_rows + self.accepted
        """and the row of the batch that it was sampled from."""

    def chosen(self, lengths: dict[int, int]) -> list[VerifiedRequest]:
        """Those that get draft tokens, those that get most first."""
        return sorted(
            (self.requests[number] for number in lengths),
            key=lambda one: -lengths[one.scheduled.request_id],
        )
