"""What the engine says to the same requests, one way or another. Runs in a process whose kernels were chosen before."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.sampling_params import Grammar, SamplingParams
from engine.errors import StartupError
from engine.offline import Asked, OfflineEngine
from engine.verify.features import Feature
from engine.verify.lora import write_random
from engine.worker.batch import BatchBuilder
from engine.worker.speculative import FixedDraftLength
from kernels.launch import path

BLOCK = 16
SEATS = 8
TOP = 8
"""Tokens whose log-probabilities are told beside each."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A model, and how much is asked of it."""

    model: Path
    device: str
    dtype: str = "auto"
    tokens: int = 24
    """Of an answer."""
    draft: Path | None = None


@dataclass(frozen=True, slots=True)
class Said:
    tokens: list[list[int]] = field(default_factory=list)
    """Of each request."""
    logprobs: list[list[dict[int, float]]] = field(default_factory=list)
    """Of each of these, and of the likeliest beside it."""
    greedy: list[bool] = field(default_factory=list)
    """Which requests always take the likeliest token."""
    counts: dict[str, int] = field(default_factory=dict)
    steady: bool = True
    """Whether a second run said the same."""
    refused: str = ""
    """Why it would not start, where that is no fault."""


class Replays:
    """In place of CUDA graphs where there is no GPU: each replay computes anew, and writes where the first result
    stands."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        hidden = step()

        def replay() -> None:
            self.count += 1
            hidden.copy_(step())

        return replay, hidden


def requests(asking: Asking, vocab: int, longest: int, grammar: bool) -> list[Asked]:
    """Short and long prompts, two that begin alike, greedy and drawn."""
    draw = random.Random(0)
    common = [draw.randrange(10, vocab) for _ in range(40)]
    prompts = [[draw.randrange(10, vocab) for _ in range(length)] for length in (5, 17, 33, 100, 1, 64)]
    prompts += [[*common, *common[:7]], [*common, 11, 12], common[:5]]
    prompts = [prompt[: longest - asking.tokens - 8] for prompt in prompts]
    wishes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0},
        {"seed": 1},
        {"temperature": 0},
        {"seed": 2, "temperature": 0.8, "top_p": 0.9},
        {"seed": 3, "top_k": 20, "repetition_penalty": 1.1, "min_p": 0.02},
        {"temperature": 0},
        {"temperature": 0},
        # What comes again and again is what n-gram speculation looks for.
        {"temperature": 0, "logit_bias": ((11, 100.0), (12, 100.0))},
    ]
    form = Grammar("regex", "[a-z ,.]{200,}") if grammar else None
    return [
        (prompt, SamplingParams(max_tokens=asking.tokens, logprobs=TOP, grammar=form, **wish))
        for prompt, wish in zip(prompts, wishes, strict=True)
    ]


def say(asking: Asking, features: Mapping[str, Feature], compared: bool, name: str) -> tuple[Said, bool]:
    """What is said with feature ``name``, or by what it is compared with; and whether the process can go on."""
    feature = features[name]
    try:
        with TemporaryDirectory() as folder:
            said = _say(asking, feature, compared, Path(folder))
    except StartupError as error:
        said = Said(refused=error.message)
    gc.collect()
    return said, True


def _say(asking: Asking, feature: Feature, compared: bool, folder: Path) -> Said:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "dtype": asking.dtype,
        "max_num_seqs": SEATS,
        "max_batched_tokens": 512,
        "kv_cache_blocks": 512,
        "cuda_graphs": False,
        **feature.both,
        **({} if compared else feature.engine),
    }
    if options.get("speculation") == "draft":
        options["draft_model"] = asking.draft or asking.model
    adapters: list[str | None] = []
    if "max_adapters" in options:
        paths = [write_random(folder / name, asking.model, seed) for seed, name in enumerate("ab")]
        options["adapters"] = tuple((path.name, path) for path in paths)
        adapters = ["a", None, "b", "a", None, "b", "a", None, "b"]
    # Shorter than most models can: the cache holds many of them.
    length = min(1024, _positions(asking.model))
    config = EngineConfig(model=asking.model, device=asking.device, max_model_len=length, **options)
    engine = OfflineEngine(
        config, blocks=None if compared else feature.blocks, prefix_caching=feature.caching and not compared
    )
    if engine.runner.speculation is not None:
        # Whether guesses pay is not asked here.
        engine.runner.speculation.policy = FixedDraftLength(config.max_drafts)
    replays = None
    if options["cuda_graphs"] and engine.runner.device.type == "cpu":
        if path() != "triton":
            raise StartupError(
                "kernels that bear idle rows are those for GPUs: TOLLGATE_KERNELS=triton tries them"
            )
        replays = Replays()
        runner = engine.runner
        # As on a GPU, where decodes are a group.
        runner._batches = BatchBuilder(runner.cache, runner.device)
        runner.record(replays)
    asked = requests(asking, engine.runner.model.vocab_size, length, feature.grammar)
    if feature.grammar and engine.runner.grammars is None:
        raise StartupError("the model has no tokenizer, which forms need")
    _, answers = engine.generate(asked, late=1, adapters=adapters)
    _, again = engine.generate(asked, late=0 if feature.caching else 1, adapters=adapters)
    counts = {**asdict(engine.counts), "replays": _replays(engine, replays)}
    return Said(
        [answer.tokens for answer in again],
        [[{one.token: one.logprob, **dict(one.top)} for one in answer.logprobs] for answer in again],
        [params.temperature == 0 and params.grammar is None and not params.logit_bias for _, params in asked],
        counts,
        [answer.tokens for answer in again] == [answer.tokens for answer in answers],
    )


def _replays(engine: OfflineEngine, replays: Replays | None) -> int:
    if replays is not None:
        return replays.count
    # On a GPU what is recorded is replayed, or the step raises.
    return engine.counts.steps if engine.runner._graphs is not None else 0


def _positions(model: Path) -> int:
    from engine.models.registry import read_config

    return int(read_config(model).get("max_position_embeddings") or 1024)
