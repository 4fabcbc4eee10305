"""The engine's loop without its process: scheduler and runner, no HTTP."""

from __future__ import annotations

import time
from itertools import count

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, Progress
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.worker.runner import Runner


class Loop:
    def __init__(self, config: EngineConfig) -> None:
        self.runner = Runner(config)
        self._scheduler = Scheduler(
            BlockPool(self.runner.cache.blocks),
            block_size=config.block_size,
            max_sequences=config.max_num_seqs,
            max_tokens_per_step=config.max_batched_tokens,
            max_model_len=self.runner.max_model_len,
            max_waiting=1000,
            prefix_caching=False,
        )
        self._budget = config.max_batched_tokens
        self.runner.warm_up()
        self._ids = count()

    def decode(self, prompts: list[list[int]], tokens: int) -> list[float]:
        """Seconds of each step in which every prompt gains one token, drawing and scheduling included."""
        # Those that begin first go on until the last has begun.
        waiting = -(-sum(map(len, prompts)) // self._budget)
        for prompt in prompts:
            self._submit(prompt, tokens + waiting + len(prompts))
        times = []
        while not self._scheduler.idle:
            began = time.perf_counter()
            plan, _ = self._step()
            if plan.tokens == len(prompts) == len(plan.work):
                times.append(time.perf_counter() - began)
        return times[:tokens]

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from a prompt to its first token."""
        self._submit(prompt, 1)
        began = time.perf_counter()
        while not self._scheduler.idle:
            self._step()
        return time.perf_counter() - began

    def generate(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[list[int]]]:
        """Seconds for all (prompt, tokens of its answer), and the answers."""
        began = time.perf_counter()
        ids = [self._submit(prompt, tokens) for prompt, tokens in requests]
        answers: dict[int, list[int]] = {number: [] for number in ids}
        while not self._scheduler.idle:
            for gain in self._step()[1]:
                answers[gain.request_id] += gain.tokens
        return time.perf_counter() - began, list(answers.values())

    def _submit(self, prompt: list[int], tokens: int) -> int:
        number = next(self._ids)
        self._scheduler.submit(Request(number, prompt, SamplingParams(max_tokens=tokens, temperature=0)))
        return number

    def _step(self) -> tuple[Plan, list[Progress]]:
        plan = self._scheduler.schedule()
        return plan, self._scheduler.update(plan, self.runner.execute(plan))
