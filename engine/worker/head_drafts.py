"""Draft tokens of heads that read hidden states, sampled as the target will sample: what EAGLE and Medusa share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.plan import ScheduledRequest
from engine.core.sampling_row import SamplingRow
from engine.errors import StartupError
from engine.models.builder import LayerBuilder
from engine.models.draft_head import head_builder
from engine.models.hidden_states import HiddenStates
from engine.models.registry import read_config
from engine.weights.formats import detect_format
from engine.weights.source import gguf_file
from engine.worker.draft_sampler import DraftSampler
from engine.worker.logit_editor import edited
from engine.worker.sampler import Sampler
from engine.worker.upload import upload
from engine.worker.verified import Verified, VerifiedRequest


class DraftRow:
    """A request after a step: what was sampled, and the draft tokens proposed since."""

    __slots__ = ("draft_tokens", "length", "sampling_row", "scheduled")

    def __init__(self, scheduled: ScheduledRequest, sampled: Sequence[int]) -> None:
        if scheduled.sampling is None:
            raise ValueError("nothing is sampled for this request")
        self.scheduled = scheduled
        self.length = len(scheduled.history) + len(sampled)
        """Tokens without draft tokens."""
        self.draft_tokens: list[int] = []
        self.sampling_row = SamplingRow(
            scheduled.request_id,
            scheduled.sampling,
            scheduled.history,
            scheduled.prompt_length,
            list(sampled),
        )

    def add(self, token: int) -> None:
        self.draft_tokens.append(token)
        self.sampling_row.draft_tokens.append(token)


class HeadDrafts:
    """Of one step: a proposer fills ``_rows`` and ``_hidden`` by the requests that sampled, and knows ``_logits``."""

    def __init__(self, vocab: int, vocabulary: Tensor | None = None) -> None:
        """``vocab``: the target's tokens. ``vocabulary``: the target's token of each of the head's, in order, where it
        has others."""
        self._vocab = vocab
        self._vocabulary = vocabulary
        self._sampler = Sampler()
        self._rows: dict[int, DraftRow] = {}
        self._hidden: dict[int, Tensor] = {}
        """By request, what the next draft token is told by [hidden]."""

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        return dict(lengths)

    def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]:
        for done in range(max(lengths.values())):
            rows = [self._rows[request_id] for request_id, length in lengths.items() if length > done]
            if done:
                self._advance(rows)
            hidden = torch.stack([self._hidden[row.scheduled.request_id] for row in rows])
            for row, token in zip(rows, self._sample(self._logits(hidden, done), rows), strict=True):
                row.add(token)
        return {request_id: self._rows[request_id].draft_tokens for request_id in lengths}

    def launch(
        self, verified: Verified, states: HiddenStates | None, lengths: dict[int, int]
    ) -> tuple[list[int], Tensor]:
        """As ``FeedingProposer`` has it."""
        if states is None:
            raise ValueError("heads read hidden states")
        hidden = self._after(verified, states)
        if not lengths:
            return [], verified.last.new_empty(0, 0)
        rows = verified.chosen(lengths)
        (places,) = upload([np.array([row.place for row in rows], dtype=np.int64)], hidden.device)
        (lengths_,) = upload([np.array([row.length for row in rows], dtype=np.int64)], hidden.device)
        hidden, positions = hidden[places], lengths_ + verified.accepted[places]
        vocab = self._vocab if self._vocabulary is None else len(self._vocabulary)
        sampling = [row.scheduled.sampling for row in rows if row.scheduled.sampling is not None]
        sampler = DraftSampler(sampling, vocab, hidden.device)
        drafts = verified.last.new_zeros(len(rows), max(lengths.values()))
        for done in range(drafts.shape[1]):
            count = sum(length > done for length in lengths.values())
            if done:
                rejected = verified.rejected[places[:count]]
                hidden = self._onwards(rows[:count], hidden[:count], rejected, drafts[:count, done - 1], done)
            # The last token that is kept is at ``positions``.
            found = sampler.sample(
                self._logits(hidden[:count], done)[:, :vocab], positions[:count] + 1 + done
            )
            drafts[:count, done] = found if self._vocabulary is None else self._vocabulary[found]
        return [row.scheduled.request_id for row in rows], drafts

    def settle(self, tokens: Mapping[int, Sequence[int]]) -> None:
        pass

    def _after(self, verified: Verified, states: HiddenStates) -> Tensor:
        """[requests that sampled, hidden]: what the first draft token of each is told by."""
        raise NotImplementedError

    def _onwards(
        self, rows: Sequence[VerifiedRequest], hidden: Tensor, rejected: Tensor, drafts: Tensor, done: int
    ) -> Tensor:
        """What the next draft token is told by [rows, hidden]. ``drafts``: the last of ``done`` of each, ``rejected``:
        how many of those that were verified; int64 [rows]."""
        return hidden

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._rows.pop(request_id, None)
            self._hidden.pop(request_id, None)

    def _logits(self, hidden: Tensor, done: int) -> Tensor:
        """Of the next draft token: [rows, hidden] → [rows, draft vocabulary]. ``done``: those before it."""
        raise NotImplementedError

    def _advance(self, rows: Sequence[DraftRow]) -> None:
        """Called once the last draft token of ``rows`` is known, before the next."""

    def _candidates(
        self, logits: Tensor, sampling_rows: Sequence[SamplingRow], count: int
    ) -> list[list[tuple[int, float]]]:
        """Of each row the tokens that may well follow, the likeliest first, with their logarithmic probabilities.

        Where the target will sample, or edits its logits, the first is the token that it would sample from these, and
        stands for the likeliest.
        """
        heat = [row.sampling.temperature or 1.0 for row in sampling_rows]
        chances, ids = (
            logits.float()
            .div(torch.tensor(heat, device=logits.device)[:, None])
            .log_softmax(-1)
            .topk(min(count, logits.shape[1]))
        )
        if self._vocabulary is not None:
            ids = self._vocabulary[ids]
        found = [list(zip(*row, strict=True)) for row in zip(ids.tolist(), chances.tolist(), strict=True)]
        drawn = [
            number
            for number, row in enumerate(sampling_rows)
            if row.sampling.temperature or edited(row.sampling) or row.sampling.reasoning
        ]
        if drawn:
            tokens = self._draw(logits[drawn], [sampling_rows[number] for number in drawn])
            for number, token in zip(drawn, tokens, strict=True):
                others = [one for one, _ in found[number] if one != token]
                scores = [chance for _, chance in found[number]]
                found[number] = list(zip([token, *others], scores, strict=False))
        return found

    def _begin(self) -> None:
        self._rows, self._hidden = {}, {}

    def _sample(self, logits: Tensor, rows: Sequence[DraftRow]) -> list[int]:
        return self._draw(logits, [row.sampling_row for row in rows])

    def _draw(self, logits: Tensor, sampling_rows: Sequence[SamplingRow]) -> list[int]:
        if self._vocabulary is None:
            return self._sampler.sample(logits[:, : self._vocab], sampling_rows).tolist()
        if any(edited(row.sampling) or row.sampling.reasoning for row in sampling_rows):
            # Penalties and biases name the target's tokens.
            whole = logits.new_full((len(logits), self._vocab), float("-inf"))
            whole.index_copy_(1, self._vocabulary, logits)
            return self._sampler.sample(whole, sampling_rows).tolist()
        # The order is the same, so a uniform number falls on the same token as among all.
        return self._vocabulary[self._sampler.sample(logits, sampling_rows)].tolist()


def opened(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> tuple[Path, LayerBuilder]:
    """The folder of the head that the settings name, and what builds its layers. Raises ``StartupError``."""
    folder = config.draft_model
    if folder is None:
        raise StartupError(f"--speculation {config.speculation} needs --draft-model: the head's folder.")
    quantization = config.draft_quantization or config.quantization
    if quantization is None and (gguf_file(config.model) or detect_format(read_config(config.model))):
        # Beside weights in 4 bits a plain head would take a good part of a step's time.
        quantization = "int8"
    return folder, head_builder(
        folder, device, dtype, quantization=quantization, invariant=config.deterministic
    )
