"""Draft tokens that no host has seen when the next step is launched: no token may change, and they are right as often.

On a CPU each step is computed when it is submitted, but from the tensors that a GPU would read.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.plan import SamplerOutput
from engine.core.sampling_params import SamplingParams
from engine.worker.batch import BatchBuilder
from engine.worker.draft_sampler import uniforms
from engine.worker.runner import Runner
from engine.worker.sampler import mixed
from engine.worker.sampler import uniforms as host_uniforms
from engine.worker.speculative import FixedDraftLength
from engine.worker.step import Step
from tests.engine.heads import eagle_weights, write_eagle, write_medusa
from tests.engine.steps import Outcome, run
from tests.engine.tiny import SHAPE
from tests.engine.worker.narrow import SAID, write_narrow
from tests.engine.worker.test_overlap import REQUESTS

LONG = [
    (prompt, SamplingParams(max_tokens=40, temperature=0.8 * (i % 2), seed=i, top_p=0.95))
    for i, (prompt, _) in enumerate(REQUESTS)
]
BLOCKS = 200


@pytest.fixture(scope="module")
def narrow(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_narrow(tmp_path_factory.mktemp("models") / "narrow", tiny_model)


@pytest.fixture(scope="module", params=["draft", "eagle", "medusa"])
def config(
    narrow: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> EngineConfig:
    folder = tmp_path_factory.mktemp("drafts") / "draft"
    if request.param == "eagle":
        write_eagle(folder, weights=eagle_weights(vocabulary=[2, *SAID, 300]))
    elif request.param == "medusa":
        write_medusa(folder)
        weights = load_file(folder / "medusa_lm_head.safetensors")
        for i in range(3):
            weights[f"{i}.1.weight"][[j for j in range(SHAPE["vocab_size"]) if j not in SAID]] = 0
        save_file(weights, folder / "medusa_lm_head.safetensors")
    else:
        shutil.copytree(narrow, folder)
        weights = load_file(folder / "model.safetensors")
        noise = torch.Generator().manual_seed(1)
        for name, weight in weights.items():
            if weight.dim() > 1:
                weights[name] = weight + 0.1 * weight.std() * torch.randn(weight.shape, generator=noise)
        save_file(weights, folder / "model.safetensors")
    return EngineConfig(
        model=narrow, kv_cache_blocks=BLOCKS, threads=1, speculation=request.param, draft_model=folder
    )


def drafting(config: EngineConfig) -> Runner:
    runner = Runner(config)
    assert runner.speculation is not None
    runner.speculation.policy = FixedDraftLength(3)
    return runner


@pytest.fixture(scope="module")
def plain(narrow: Path) -> Runner:
    return Runner(EngineConfig(model=narrow, kv_cache_blocks=BLOCKS, threads=1))


@pytest.fixture(scope="module")
def fed(config: EngineConfig) -> Runner:
    runner = drafting(replace(config, overlap="on"))
    assert runner.feeds_drafts
    return runner


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequences": 4, "budget": 24, "late": 2},
        {"blocks": 10, "budget": 64, "sequences": 16},
        {"choices": 3, "late": 1},
    ],
    ids=["together", "one after the other", "few blocks", "choices"],
)
def test_no_token_changes(plain: Runner, fed: Runner, options: dict[str, int]) -> None:
    expected = run(plain, REQUESTS, **options)
    found = run(fed, REQUESTS, ahead=True, **options)
    assert found.tokens == expected.tokens
    assert {number: [one.token for one in logprobs] for number, logprobs in found.logprobs.items()} == {
        number: [one.token for one in logprobs] for number, logprobs in expected.logprobs.items()
    }
    assert found.ahead > found.steps / 2
    if "blocks" in options and fed._loaded.config.speculation != "draft":
        assert found.preempted > 0


def proposals(runner: Runner, ahead: bool) -> tuple[Outcome, dict[tuple[int, int], list[int]]]:
    """By request and its tokens by then."""
    found: dict[tuple[int, int], list[int]] = {}
    collect = runner.collect

    def collected(step: Step) -> SamplerOutput:
        output = collect(step)
        for scheduled in step.plan.requests:
            if drafts := output.draft_tokens.get(scheduled.request_id):
                length = len(scheduled.history) + len(output.tokens[scheduled.request_id])
                found[scheduled.request_id, length] = drafts
        return output

    runner.collect = collected  # type: ignore[method-assign]
    outcome = run(runner, LONG, ahead=ahead)
    del runner.collect
    return outcome, found


def test_they_are_those_that_the_host_would_propose(fed: Runner, config: EngineConfig) -> None:
    in_turn, wanted = proposals(drafting(config), ahead=False)
    for ahead in (False, True):
        outcome, found = proposals(fed, ahead)
        assert outcome.tokens == in_turn.tokens
        both = wanted.keys() & found.keys()
        # After other steps there are others; near the end fewer, as all of the step before may be right.
        assert len(both) > len(wanted) / 2
        same = sum(found[key] == wanted[key][: len(found[key])] for key in both)
        # Sums in another order may tip a token over.
        assert same >= 0.97 * len(both)
    if config.speculation == "draft":
        assert outcome.steps < 30


def test_so_it_is_where_decodes_are_a_group(plain: Runner, config: EngineConfig) -> None:
    """As on a GPU; a CPU computes float32 on the path of prompts."""
    fed = drafting(replace(config, overlap="on"))
    fed._batches = BatchBuilder(fed.cache, fed.device, keeping=True)
    expected, found = run(plain, LONG, late=1), run(fed, LONG, late=1, ahead=True)
    same = sum(found.tokens[number] == tokens for number, tokens in expected.tokens.items())
    # Sums in another order may tip a token over.
    assert same >= len(LONG) - 1


def test_uniform_numbers_are_those_of_the_host() -> None:
    seeds = [0, 1, 7, 2**63, 2**64 - 1, -5]
    positions = [0, 3, 10**6, 17, 1, 2]
    found = uniforms(torch.from_numpy(mixed(seeds).view("int64")), torch.tensor(positions))
    assert found.tolist() == host_uniforms(seeds, positions).tolist()
