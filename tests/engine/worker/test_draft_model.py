"""Speculation through the real worker: no token may change."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.weights.source import locate
from engine.worker.draft_model import DraftModelProposer
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength
from tests.engine.tiny import SHAPE, write_model
from tests.engine.worker.drafting import drive

Requests = list[tuple[list[int], SamplingParams]]
GREEDY = SamplingParams(max_tokens=24, temperature=0)
WARM = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.95)


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(2, SHAPE["vocab_size"]) for _ in range(length)] for length in lengths]


LENGTHS = [1, 2, 15, 16, 17, 33, 64, 90]


def mixed() -> Requests:
    """Everything that changes how tokens are drawn, or when they end."""
    kinds = [
        GREEDY,
        WARM,
        replace(WARM, top_k=20, min_p=0.05),
        replace(GREEDY, repetition_penalty=1.3, frequency_penalty=0.4),
        replace(WARM, presence_penalty=0.7, logit_bias=((40, 2.0), (41, -3.0))),
        replace(GREEDY, logprobs=3, max_tokens=19),
        replace(WARM, logprobs=2, stop_token_ids=frozenset(range(30, 60)), min_tokens=6),
        replace(WARM, max_tokens=7, temperature=1.5),
    ]
    return [
        (prompt, replace(kind, seed=i))
        for i, (prompt, kind) in enumerate(zip(prompts(LENGTHS), kinds, strict=True))
    ]


@pytest.fixture(scope="module")
def likeness(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that often says what the tiny one says."""
    folder = tmp_path_factory.mktemp("models") / "likeness"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, weight in weights.items():
        noise = torch.randn(weight.shape, generator=generator) * weight.std()
        weights[name] = weight + 0.05 * noise if weight.dim() > 1 else weight
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def drafted(tiny_model: Path, likeness: Path) -> Runner:
    config = EngineConfig(
        model=tiny_model, speculation="draft", draft_model=likeness, kv_cache_blocks=200, threads=1
    )
    return always(Runner(config))


def always(runner: Runner, most: int = 4) -> Runner:
    assert runner.speculation is not None
    runner.speculation.policy = FixedDraftLength(most)
    return runner


@pytest.mark.parametrize(
    ("chunk", "disturb"),
    [(512, 0.0), (7, 0.0), (512, 0.15), (23, 0.1)],
    ids=["", "chunked_prefill", "disturbed", "both"],
)
def test_no_token_and_no_logprob_changes(
    tiny_runner: Runner, drafted: Runner, chunk: int, disturb: float
) -> None:
    plain = drive(tiny_runner, mixed())
    reported = drive(drafted, mixed(), chunk=chunk, disturb=disturb, seed=3)
    assert reported.tokens == plain.tokens
    for row, expected in zip(reported.logprobs, plain.logprobs, strict=True):
        assert [one.token for one in row] == [one.token for one in expected]
        for one, other in zip(row, expected, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert 0 < sum(reported.kept) < reported.checked
    assert set(reported.kept) == {0, 1, 2, 3, 4}
    if disturb:
        assert reported.preempted > 2
    else:
        assert reported.steps < plain.steps


@pytest.fixture(scope="module")
def twin(tiny_model: Path) -> Runner:
    """Its draft is itself: whatever is drafted must come true."""
    config = EngineConfig(
        model=tiny_model, speculation="draft", draft_model=tiny_model, kv_cache_blocks=200, threads=1
    )
    return always(Runner(config))


@pytest.mark.parametrize(
    ("chunk", "disturb"), [(512, 0.0), (7, 0.0), (23, 0.15)], ids=["", "chunked_prefill", "disturbed"]
)
def test_what_the_model_itself_drafts_comes_true(twin: Runner, chunk: int, disturb: float) -> None:
    """So the draft's cache holds what it should, and it draws as the target does."""
    reported = drive(twin, mixed(), chunk=chunk, disturb=disturb, seed=5, lookahead=3)
    assert reported.checked > 40
    assert sum(reported.kept) == reported.checked


def test_a_quantized_draft_is_another_model_and_no_token_changes(
    tiny_runner: Runner, tiny_model: Path
) -> None:
    """Unquantized all of its drafts would come true, as above."""
    config = EngineConfig(
        model=tiny_model,
        speculation="draft",
        draft_model=tiny_model,
        draft_quantization="int4",
        kv_cache_blocks=200,
        threads=1,
    )
    reported = drive(always(Runner(config)), mixed())
    assert reported.tokens == drive(tiny_runner, mixed()).tokens
    assert 0 < sum(reported.kept) < reported.checked
    with pytest.raises(StartupError, match="--draft-quantization is for a --draft-model"):
        EngineConfig(model=tiny_model, draft_quantization="int8")


def test_a_draft_that_rested_catches_up(twin: Runner) -> None:
    assert twin.speculation is not None

    class Seldom(FixedDraftLength):
        steps = 0

        def paused(self, base: int) -> bool:
            self.steps += 1
            return self.steps % 11 < 7

    twin.speculation.policy = Seldom(4)
    requests = [(prompt, replace(WARM, max_tokens=60)) for prompt in prompts([3, 40, 17])]
    reported = drive(twin, requests, chunk=9)
    always(twin)
    assert 30 < reported.checked == sum(reported.kept)


def test_a_long_prompt_is_caught_up_with_a_chunk_a_step(tiny_model: Path) -> None:
    config = EngineConfig(
        model=tiny_model,
        speculation="draft",
        draft_model=tiny_model,
        kv_cache_blocks=60,
        max_num_seqs=8,
        max_batched_tokens=30,
        threads=1,
    )
    runner = always(Runner(config))
    assert runner.speculation is not None
    proposer = runner.speculation.proposer
    assert isinstance(proposer, DraftModelProposer)
    sizes: list[int] = []
    forward = proposer.model.forward

    def count(tokens: torch.Tensor, *others: object) -> torch.Tensor:
        sizes.append(len(tokens))
        return forward(tokens, *others)

    proposer.model.forward = count
    reported = drive(runner, [(prompt, GREEDY) for prompt in prompts([100, 50])])
    assert max(sizes) == 30
    assert sizes[:4] == [30] * 4
    assert 0 < reported.checked == sum(reported.kept)


def blocks_of(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + -(-length // 16)))


def work_on(
    request_id: int, history: list[int], start: int, blocks: list[int], prompt_length: int, drafts: list[int]
) -> ScheduledRequest:
    params = SamplingParams(max_tokens=30, temperature=0)
    return ScheduledRequest(
        request_id,
        history[start:] + drafts,
        start,
        blocks,
        params,
        True,
        history=history,
        prompt_length=prompt_length,
        num_draft_tokens=len(drafts),
        lookahead=4,
    )


def follow(runner: Runner, request_id: int, history: list[int], drafts: list[int], blocks: list[int]) -> int:
    """A few steps more; how many drafts failed."""
    failed = 0
    for _ in range(3):
        sampled = runner.execute(
            Plan([work_on(request_id, history, len(history) - 1, blocks, len(history), drafts)])
        )
        failed += len(drafts) + 1 - len(sampled.tokens[request_id])
        history += sampled.tokens[request_id]
        drafts = sampled.draft_tokens[request_id]
        assert len(drafts) == 4
    return failed


@pytest.mark.parametrize("paused", [False, True])
def test_a_prefix_is_there_for_the_draft_too_or_is_run_again(twin: Runner, paused: bool) -> None:
    """The second request starts behind 48 tokens that only the first has computed."""
    always(twin, 0 if paused else 4)
    (prompt,) = prompts([50], seed=8)
    blocks = blocks_of(80)
    twin.execute(Plan([work_on(70, prompt, 0, blocks, 50, [])]))
    always(twin)
    other = prompt[:48] + prompts([9], seed=9)[0]
    table = blocks[:3] + blocks_of(40, 100)
    plan = Plan([work_on(71, other, 48, table, 57, [])], ended=[70])
    sampled = twin.execute(plan)
    other += sampled.tokens[71]
    assert follow(twin, 71, other, sampled.draft_tokens[71], table) == 0
    twin.execute(Plan(ended=[71]))


def test_copied_blocks_are_copied_for_the_draft_too(twin: Runner) -> None:
    """Two go on from the same 20 tokens, the second in a copy of the block that the first writes into."""
    (prompt,) = prompts([20], seed=4)
    first, second = list(prompt), list(prompt)
    blocks, copy = blocks_of(80), [0, *blocks_of(64, 50)]
    sampled = twin.execute(Plan([work_on(80, first, 0, blocks, 20, [])]))
    first += sampled.tokens[80]
    second.append((first[-1] + 1) % 300)
    scheduled_requests = [
        work_on(80, first, 20, blocks, 20, sampled.draft_tokens[80]),
        work_on(81, second, 20, copy, 20, []),
    ]
    sampled = twin.execute(Plan(scheduled_requests, copies=[(1, 50)]))
    assert len(sampled.tokens[80]) == 5
    first += sampled.tokens[80]
    second += sampled.tokens[81]
    assert follow(twin, 80, first, sampled.draft_tokens[80], blocks) == 0
    assert follow(twin, 81, second, sampled.draft_tokens[81], copy) == 0
    twin.execute(Plan(ended=[80, 81]))


def test_the_memory_of_both_caches_counts(tiny_model: Path, likeness: Path) -> None:
    alone = Runner(EngineConfig(model=tiny_model, kv_cache_memory=10 * 2**20, threads=1))
    both = Runner(
        EngineConfig(
            model=tiny_model,
            kv_cache_memory=10 * 2**20,
            threads=1,
            speculation="draft",
            draft_model=likeness,
        )
    )
    assert both.block_bytes == 2 * alone.block_bytes
    assert both.cache.blocks == alone.cache.blocks // 2


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
@pytest.mark.parametrize("blocks", [1, 2, 40])
def test_warming_up_leaves_no_trace(tiny_model: Path, speculation: str, blocks: int) -> None:
    config = EngineConfig(
        model=tiny_model,
        kv_cache_blocks=blocks,
        threads=1,
        speculation=speculation,
        draft_model=tiny_model if speculation == "draft" else None,
    )
    runner = Runner(config)
    assert runner.speculation is not None
    policy = runner.speculation.policy
    runner.warm_up()
    assert runner.speculation.policy is policy
    assert (runner.speculation.proposed, runner.speculation.accepted) == (0, 0)


def test_another_vocabulary_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", {**SHAPE, "vocab_size": 330})
    runner = Runner(
        EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="draft", draft_model=other, threads=1)
    )
    assert runner.speculation is not None, "the tokenizer is the same: the rest is padding"
    (other / "tokenizer.json").unlink()
    with pytest.raises(StartupError, match="another vocabulary"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="draft", draft_model=other))
    with pytest.raises(StartupError, match="another vocabulary"):
        Runner(
            EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="draft", draft_model=locate("demo"))
        )


def test_a_draft_that_is_not_named_or_not_known_is_said_so(tiny_model: Path) -> None:
    with pytest.raises(StartupError, match="--draft-model"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="draft"))
    with pytest.raises(StartupError, match="'oracle'"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="oracle"))


def test_a_draft_of_shorter_context_falls_silent(tiny_model: Path, model_of: Callable[..., Path]) -> None:
    short = model_of(max_position_embeddings=40)
    config = EngineConfig(
        model=tiny_model, kv_cache_blocks=60, speculation="draft", draft_model=short, threads=1
    )
    runner = always(Runner(config))
    requests = [(prompt, GREEDY) for prompt in prompts([30, 38, 39, 60])]
    reported = drive(runner, requests)
    assert 0 < reported.checked < 40
