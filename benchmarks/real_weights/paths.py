"""The engine alone, one prompt after the other and each at once, beside the ways in which it serves many.

Each prompt is continued by a few tokens, whose distributions over the whole vocabulary are compared: those behind the
prompt, and those of decode steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.offline import OfflineEngine, OfflineOutput

TOKENS = 3
_AT_ONCE = 8
_ALONE = {"max_num_seqs": 1, "max_batched_tokens": 4096}
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of ``EngineConfig``, where they differ from the engine's that is alone."""
    twice: bool = False
    """Prompts are sent twice with the prefix cache on; the second answers are compared."""
    adapters: bool = False
    """Of each three prompts two have an adapter, not the same; beside an engine that has the adapters, too."""
    limit: float = 2e-3
    """Nats a token, on average. Without ``--deterministic`` products of many rows are rounded to bfloat16 elsewhere
    than those of few, which is less than half of what bfloat16 and 4 bits take from the model anyway."""
    seen: str = ""
    """The counter that shows that it happened."""


WAYS = (
    Way("in chunks of 24 tokens", {"max_batched_tokens": 24}, seen="chunks"),
    Way("eight at once", {"max_num_seqs": _AT_ONCE}),
    Way("with prefix hits", twice=True, seen="hit_tokens"),
    Way("eight at once, with adapters", {"max_num_seqs": _AT_ONCE}, adapters=True),
    Way("KV cache in int8", {"kv_cache_dtype": "int8"}, limit=5e-3),
    Way("KV cache in int4", {"kv_cache_dtype": "int4"}, limit=1e-1),
    Way("KV cache in fp8", {"kv_cache_dtype": "fp8"}, limit=2e-2),
)


@dataclass(frozen=True, slots=True)
class Continued:
    """What follows a prompt: tokens, and the distribution that each was taken from."""

    tokens: list[int]
    logprobs: Tensor
    """float32 [tokens, vocabulary]."""


@dataclass(frozen=True, slots=True)
class Found:
    way: Way
    positions: int
    kl: float
    largest: float
    same: int
    """Positions with the same token."""
    equal: int
    """Positions whose distributions are the same to the bit."""

    @property
    def wrong(self) -> bool:
        return not self.kl <= self.way.limit

    def line(self) -> str:
        counts = f"{self.positions} | {self.equal} | {self.same}"
        return f"| {self.way.name} | {counts} | {self.kl:.1e} | {self.largest:.1e} |"


HEAD = """| beside the engine alone | positions | equal to the bit | same token | KL, mean | largest |
|---|--:|--:|--:|--:|--:|"""


class Alone:
    """The engine to which others are compared: its answers, with adapters and without, computed once each."""

    def __init__(self, folder: Path, dtype: str, adapters: tuple[tuple[str, Path], ...]) -> None:
        self._folder, self._dtype, self._adapters = folder, dtype, adapters
        self._kept: dict[bool, list[Continued]] = {}

    def beside(self, way: Way, prompts: Sequence[list[int]]) -> Found:
        """Raises ``SystemExit`` where what the way is about did not happen."""
        if way.adapters not in self._kept:
            self._kept[way.adapters] = list(self._continue(prompts, Way("", adapters=way.adapters)))
        found = list(self._continue(prompts, way))
        kl, same, equal = [], 0, 0
        for one, other in zip(self._kept[way.adapters], found, strict=True):
            for place, (token, mine) in enumerate(zip(one.tokens, other.tokens, strict=True)):
                expected, got = one.logprobs[place].double(), other.logprobs[place].double()
                kl.append(float((expected.exp() * (expected - got)).sum()))
                equal += torch.equal(expected, got)
                same += token == mine
                if token != mine:
                    break
        return Found(way, len(kl), sum(kl) / len(kl), max(kl), same, equal)

    def _continue(self, prompts: Sequence[list[int]], way: Way) -> Iterator[Continued]:
        options = {**_ALONE, **way.options}
        longest = max(map(len, prompts)) + TOKENS
        if way.adapters:
            options |= {"adapters": self._adapters, "max_adapters": len(self._adapters)}
        config = EngineConfig(
            model=self._folder,
            device="cpu",
            dtype=self._dtype,
            max_model_len=longest,
            block_size=_BLOCK,
            kv_cache_blocks=_AT_ONCE * (-(-longest // _BLOCK) + 1),
            cuda_graphs=False,
            **options,
        )
        engine = OfflineEngine(config, prefix_caching=way.twice)
        params = SamplingParams(max_tokens=TOKENS, temperature=0, logprobs=engine.runner.model.vocab_size)
        names = [name for name, _ in self._adapters]
        every = [
            [None, *names][number % (len(names) + 1)] if way.adapters else None
            for number in range(len(prompts))
        ]
        # A few at a time: a vocabulary's logprobs as Python's numbers are large.
        for start in range(0, len(prompts), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            asked, chosen = [(prompt, params) for prompt in prompts[part]], every[part]
            if way.twice:
                engine.generate(asked, adapters=chosen)
            _, answers = engine.generate(asked, adapters=chosen)
            yield from map(_continued, answers)
        if way.seen and not getattr(engine.counts, way.seen):
            raise SystemExit(f"{way.name}: it did not happen, {way.seen} is 0")


def _continued(answer: OfflineOutput) -> Continued:
    rows = torch.empty(len(answer.tokens), len(answer.logprobs[0].top))
    for row, found in zip(rows, answer.logprobs, strict=True):
        ids, values = zip(*found.top, strict=True)
        row[torch.tensor(ids)] = torch.tensor(values)
    return Continued(answer.tokens, rows)
