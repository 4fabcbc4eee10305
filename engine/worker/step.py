"""A plan that was submitted: what of it is on the device, and what was found out already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from engine.core.plan import Plan, SamplerOutput
from engine.core.sampling_row import SamplingRow
from engine.models.hidden_states import HiddenStates
from engine.worker.batch import Batch
from engine.worker.download import Download
from engine.worker.sampler import PendingLogprobs


@dataclass(frozen=True, slots=True)
class Feed:
    """What a step samples, as the next one takes it: before any host knows it."""

    rows: Mapping[int, int]
    """By request, its place."""
    count: int
    tokens: Tensor | None = None
    """int64 [count], on the device; ``None`` where nothing is sampled, or on another rank than the first."""


@dataclass(frozen=True, slots=True)
class FedPlan:
    """A plan that takes tokens from the step before, as another rank than the first has it."""

    plan: Plan
    feed: Feed


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
    observed: tuple[Batch, HiddenStates] | None = None
    """What a proposer of draft tokens looks at once the tokens are known."""
    output: SamplerOutput = field(default_factory=SamplerOutput)
    """As far as it is known."""

    @property
    def feed(self) -> Feed:
        rows = {row.request_id: i for i, row in enumerate(self.rows)}
        return Feed(rows, len(self.rows), self.sampled)
