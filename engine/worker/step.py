"""A plan that was submitted: what of it is on the device, and what was found out already."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from torch import Tensor

from engine.core.plan import PENDING, Plan, SamplerOutput
from engine.core.sampling_row import SamplingRow
from engine.models.hidden_states import HiddenStates
from engine.worker.batch import Batch, rows_of
from engine.worker.download import Download
from engine.worker.feed import Feed
from engine.worker.sampler import PendingLogprobs


@dataclass(slots=True)
class ProposedDrafts:
    """What may follow a step's tokens, proposed on the device."""

    feed: Feed
    counts: dict[int, int]
    """By request, how many there are."""
    download: Download

    def read(self) -> dict[int, list[int]]:
        """Waits for them."""
        (table,) = self.download.result()
        found = table[:, 2:].tolist()
        return {number: found[self.feed.rows[number]][:count] for number, count in self.counts.items()}


@dataclass(slots=True)
class Step:
    plan: Plan
    rows: list[SamplingRow] = field(default_factory=list)
    """What is sampled."""
    logits: Tensor | None = None
    """[len(rows), vocabulary], until they are sampled from."""
    sampled: Tensor | None = None
    """int64 [len(rows)], on the device."""
    masked: bool = False
    """Whether any row has a grammar."""
    logprobs: PendingLogprobs | None = None
    download: Download | None = None
    """Of ``sampled``, and of the tensors of ``logprobs``."""
    observed: tuple[Batch, HiddenStates | None] | None = None
    """What a proposer of draft tokens looks at once the tokens are known, or sampled."""
    began: float = 0.0
    before: Step | None = None
    """The step that it continues, until that one's tokens are known."""
    proposed: ProposedDrafts | None = None
    """Draft tokens that the device alone knows, until the step is collected."""
    output: SamplerOutput = field(default_factory=SamplerOutput)
    """As far as it is known."""

    def fill_in(self, dropped: Collection[int]) -> None:
        """The step before was collected, and where this one begins is put right: its draft tokens are known."""
        before, self.before = self.before, None
        if before is None or before.proposed is None or self.observed is None:
            return
        drafts, batch = before.output.draft_tokens, self.observed[0]
        for scheduled in batch.order:
            if scheduled.tokens[0] == PENDING and scheduled.request_id not in dropped:
                proposed = drafts.get(scheduled.request_id, [])[: scheduled.num_draft_tokens]
                scheduled.tokens = [scheduled.history[-1], *proposed]
        self.rows, _ = rows_of(batch.order)

    @property
    def feed(self) -> Feed:
        if self.proposed is not None:
            return self.proposed.feed
        rows = {row.request_id: i for i, row in enumerate(self.rows)}
        return Feed(rows, len(self.rows), self.sampled)
