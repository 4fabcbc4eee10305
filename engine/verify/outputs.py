"""The engine's outputs for a fixed set of requests. Runs in a process whose kernels were selected before it started."""

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
MAX_NUM_SEQS = 8
TOP_LOGPROBS = 8
"""Most likely tokens that are reported for each sampled one."""


@dataclass(frozen=True, slots=True)
class VerifySetup:
    """The model under test, and the length of answers."""

    model: Path
    device: str
    dtype: str = "auto"
    tokens: int = 24
    """Tokens of an answer."""
    draft: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineOutput:
    tokens: list[list[int]] = field(default_factory=list)
    """Each request's tokens."""
    logprobs: list[list[dict[int, float]]] = field(default_factory=list)
    """Log-probabilities of each token and of the most likely ones at its position, by token."""
    greedy: list[bool] = field(default_factory=list)
    """Which requests are greedy."""
    counts: dict[str, int] = field(default_factory=dict)
    steady: bool = True
    """Whether a second run gave the same tokens."""
    refused: str = ""
    """Why the engine did not start, where that is not a fault."""


class Replays:
    """Stands in for CUDA graphs without a GPU: each replay computes again, into the tensor of the first result."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        hidden = step()

        def replay() -> None:
            self.count += 1
            hidden.copy_(step())

        return replay, hidden


def requests(setup: VerifySetup, vocab: int, longest: int, grammar: bool) -> list[Asked]:
    """Short and long prompts, two with a common prefix, greedy and sampled."""
    draw = random.Random(0)
    common = [draw.randrange(10, vocab) for _ in range(40)]
    prompts = [[draw.randrange(10, vocab) for _ in range(length)] for length in (5, 17, 33, 100, 1, 64)]
    prompts += [[*common, *common[:7]], [*common, 11, 12], common[:5]]
    prompts = [prompt[: longest - setup.tokens - 8] for prompt in prompts]
    wishes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0},
        {"seed": 1},
        {"temperature": 0},
        {"seed": 2, "temperature": 0.8, "top_p": 0.9},
        {"seed": 3, "top_k": 20, "repetition_penalty": 1.1, "min_p": 0.02},
        {"temperature": 0},
        {"temperature": 0},
        # Repetitions, which n-gram speculation looks for.
        {"temperature": 0, "logit_bias": ((11, 100.0), (12, 100.0))},
    ]
    form = Grammar("regex", "[a-z ,.]{200,}") if grammar else None
    return [
        (prompt, SamplingParams(max_tokens=setup.tokens, logprobs=TOP_LOGPROBS, grammar=form, **wish))
        for prompt, wish in zip(prompts, wishes, strict=True)
    ]


def run_feature(
    setup: VerifySetup, features: Mapping[str, Feature], compared: bool, name: str
) -> tuple[EngineOutput, bool]:
    """The outputs with feature ``name``, or of its reference; and whether the process can be used again."""
    feature = features[name]
    try:
        with TemporaryDirectory() as folder:
            outputs = _run(setup, feature, compared, Path(folder))
    except StartupError as error:
        outputs = EngineOutput(refused=error.message)
    gc.collect()
    return outputs, True


def _run(setup: VerifySetup, feature: Feature, compared: bool, folder: Path) -> EngineOutput:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "dtype": setup.dtype,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_batched_tokens": 512,
        "kv_cache_blocks": 512,
        "cuda_graphs": False,
        **feature.both,
        **({} if compared else feature.engine),
    }
    if options.get("speculation") == "draft":
        options["draft_model"] = setup.draft or setup.model
    adapters: list[str | None] = []
    if "max_adapters" in options:
        paths = [write_random(folder / name, setup.model, seed) for seed, name in enumerate("ab")]
        options["adapters"] = tuple((path.name, path) for path in paths)
        adapters = ["a", None, "b", "a", None, "b", "a", None, "b"]
    # Shorter than most models allow, so that the cache holds many sequences.
    length = min(1024, _positions(setup.model))
    config = EngineConfig(model=setup.model, device=setup.device, max_model_len=length, **options)
    engine = OfflineEngine(
        config, blocks=None if compared else feature.blocks, prefix_caching=feature.caching and not compared
    )
    if engine.runner.speculation is not None:
        # Always: whether speculation pays does not matter here.
        engine.runner.speculation.policy = FixedDraftLength(config.max_drafts)
    replays = None
    if options["cuda_graphs"] and engine.runner.device.type == "cpu":
        if path() != "triton":
            raise StartupError(
                "only the Triton kernels skip padding rows, as graphs need: set TOLLGATE_KERNELS=triton"
            )
        replays = Replays()
        runner = engine.runner
        # As on a GPU, where decodes are one group.
        runner._batches = BatchBuilder(runner.cache, runner.device)
        # An interpreter takes long for large ones.
        runner.recordings.record(replays, chunks=(32,))
    asked = requests(setup, engine.runner.model.vocab_size, length, feature.grammar)
    if feature.grammar and engine.runner.grammars is None:
        raise StartupError("the model has no tokenizer, which forms need")
    _, answers = engine.generate(asked, late=1, adapters=adapters)
    _, again = engine.generate(asked, late=0 if feature.caching else 1, adapters=adapters)
    counts = {**asdict(engine.counts), "replays": _replays(engine, replays)}
    return EngineOutput(
        [answer.tokens for answer in again],
        [[{one.token: one.logprob, **dict(one.top)} for one in answer.logprobs] for answer in again],
        [params.temperature == 0 and params.grammar is None and not params.logit_bias for _, params in asked],
        counts,
        [answer.tokens for answer in again] == [answer.tokens for answer in answers],
    )


def _replays(engine: OfflineEngine, replays: Replays | None) -> int:
    if replays is not None:
        return replays.count
    # On a GPU recorded steps are replayed, or they raise.
    return engine.counts.steps if engine.runner.recordings.graphs is not None else 0


def _positions(model: Path) -> int:
    from engine.models.registry import read_config

    return int(read_config(model).get("max_position_embeddings") or 1024)
