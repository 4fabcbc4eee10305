"""One request as the scheduler sees it: tokens wanted, tokens computed, blocks held."""

from __future__ import annotations

from typing import Literal

from engine.core.sampling_params import SamplingParams

FinishReason = Literal["stop", "length"]


class Request:
    """``tokens`` is the prompt and what was generated since; ``computed`` of them are in the KV cache.

    There is no prefill or decode state: a request whose ``missing`` is many is being prefilled, one whose
    ``missing`` is one decodes, and a preempted one has simply lost what was computed.
    """

    __slots__ = (
        "blocks",
        "computed",
        "deadline",
        "id",
        "params",
        "priority",
        "prompt_length",
        "rank",
        "started",
        "submitted",
        "tokens",
    )

    def __init__(
        self,
        id: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        submitted: float = 0.0,
        deadline: float | None = None,
    ) -> None:
        """``submitted`` and ``deadline`` are seconds of the scheduler's clock."""
        self.id = id
        self.priority = priority
        """Higher goes first."""
        self.submitted = submitted
        self.deadline = deadline
        self.rank: tuple[float, int] = (0.0, 0)
        """The scheduler's order: the smallest goes first, and gives way last."""
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.params = params
        self.computed = 0
        self.blocks: list[int] = []
        self.started = False
        """Whether it has ever been scheduled."""

    @property
    def missing(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def longest(self) -> int:
        """Tokens whose KV it needs at most. The last token generated is never run through the model."""
        return self.prompt_length + self.params.max_tokens - 1

    def append(self, token: int) -> FinishReason | None:
        self.tokens.append(token)
        if token in self.params.stop_token_ids:
            return "stop"
        if self.generated >= self.params.max_tokens:
            return "length"
        return None
