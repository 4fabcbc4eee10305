"""Executes plans where layers are divided over stages (GPipe, https://arxiv.org/abs/1811.06965).

``submit`` computes the first stage's layers and sends what comes of them on; ``sample`` waits for what comes out of the
last stage, and samples. In between further steps may be submitted: with one for each stage none of them waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np
import torch

from engine.config import EngineConfig
from engine.core.plan import Plan, SamplerOutput
from engine.parallel.pipeline import Pipe
from engine.parallel.ranks import Ranks
from engine.worker.batch import Batch
from engine.worker.feed import Feed
from engine.worker.rank_messages import Finish
from engine.worker.runner import Runner
from engine.worker.step import Step
from engine.worker.upload import upload


class PipelinedRunner(Runner):
    """On all ranks. On other stages than the first ``submit`` is all there is; on the first one's other ranks there is
    ``finish``, too."""

    def __init__(self, config: EngineConfig, ranks: Ranks | None = None) -> None:
        self._inside: deque[tuple[Step, Batch]] = deque()
        """Steps in the pipe, in their order: on the first stage."""
        super().__init__(config, ranks)

    @property
    def _pipe(self) -> Pipe:
        if self.ranks.pipe is None:
            raise RuntimeError("there is only one stage")
        return self.ranks.pipe

    def _launch(self, plan: Plan, feed: Feed | None = None) -> Step:
        step = Step(plan)
        batch = self._begin(step)
        if batch is None:
            return step
        model = self.model
        if model.stage.first:
            x = model.embed(batch.tokens)
            self._inside.append((step, batch))
        else:
            x = self._pipe.receive((len(batch.tokens), model.hidden_size), self.dtype, self.device)
        self._pipe.send(model.through(x, batch.positions, batch.attention, self.cache))
        return step

    @torch.inference_mode()
    def finish(self) -> None:
        """The oldest step in the pipe comes out."""
        step, batch = self._inside.popleft()
        x = self._pipe.receive((len(batch.tokens), self.model.hidden_size), self.dtype, self.device)
        self._hidden = hidden = self.model.normed(x)
        if self.ranks.rank == 0:
            self._score(step, batch, hidden)

    def _sample_after(self, step: Step, dropped: Collection[int]) -> None:
        if not self._inside or self._inside[0][0] is not step:
            return
        batch = self._inside[0][1]
        if self._tells:
            self.ranks.send_stage(Finish())
        self.finish()
        kept = [row for row, one in enumerate(step.rows) if one.request_id not in dropped]
        step.rows = [step.rows[row] for row in kept]
        if not kept or self._hidden is None:
            return
        drawn = [batch.drawn[row] for row in kept]
        self._tell(drawn)
        (rows,) = upload([np.array(drawn, dtype=np.int64)], self.device)
        step.logits = self.model.logits(self._hidden[rows])
        self._sample(step, self._start_masks(step))

    def _collect(self, step: Step) -> SamplerOutput:
        self._sample_after(step, ())
        return super()._collect(step)


def start_runner(config: EngineConfig) -> Runner:
    """Rank 0's, which starts the other ranks, if there are to be any. Raises ``StartupError``."""
    return Runner(config) if config.pipeline_parallel == 1 else PipelinedRunner(config)
