"""Models whose layers keep a state of each request: what is said is as if alone, and every slot comes back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from engine.bootstrap import load_engine
from engine.config import EngineConfig
from engine.core.sampling_params import Grammar, SamplingParams
from engine.errors import StartupError
from engine.grammar.masks import GrammarManager
from engine.worker.batch import BatchBuilder
from engine.worker.runner import Runner
from kernels.native.recording import available
from tests.engine.lora import merge, write_adapter
from tests.engine.models.hub import expected, save
from tests.engine.steps import Outcome, run
from tests.engine.test_out_of_memory import looping
from tests.engine.tiny import make_tokenizer
from tests.engine.worker.triton_run import Recorder

GREEDY = SamplingParams(max_tokens=24, temperature=0)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "short convolutions": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
    "gated delta net": (
        "Qwen3Next",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_experts": 0,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 8,
        },
    ),
}
Saved = tuple[Path, transformers.PreTrainedModel]


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    family, changes = MODELS[request.param]
    folder = tmp_path_factory.mktemp("states")
    model = save(folder, family, **changes)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder, model


@pytest.fixture(scope="module")
def runner(saved: Saved) -> Runner:
    return runner_of(saved[0])


def runner_of(folder: Path, **options: Any) -> Runner:
    made = Runner(EngineConfig(**{"model": folder, "threads": 1, "kv_cache_blocks": 200, **options}))
    made.warm_up()
    return made


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 320, (length,), generator=generator).tolist()


PROMPTS = [prompt(50, 0), prompt(5, 1), prompt(33, 2), prompt(1, 3), prompt(17, 4)]
REQUESTS = [(tokens, GREEDY) for tokens in PROMPTS]


def check(outcome: Outcome, model: transformers.PreTrainedModel, prompts: list[list[int]] = PROMPTS) -> None:
    for i, tokens in enumerate(prompts):
        answer = outcome.tokens[i]
        theirs = expected(model, tokens + answer)[len(tokens) - 1 : -1]
        assert answer == theirs.argmax(-1).tolist()
        assert len(answer) >= GREEDY.max_tokens


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"sequences": 2, "budget": 12, "late": 3}, {"sequences": 4, "budget": 7, "late": 1}],
    ids=["together", "two at a time", "small steps"],
)
def test_tokens_are_those_of_transformers(
    saved: Saved, runner: Runner, options: dict[str, int], ahead: bool
) -> None:
    """Where a slot has had another request before, too."""
    check(run(runner, REQUESTS, ahead=ahead, **options), saved[1])


@pytest.mark.parametrize("ahead", [False, True])
def test_preempted_requests_begin_again_from_nothing(saved: Saved, runner: Runner, ahead: bool) -> None:
    params = replace(GREEDY, max_tokens=60)
    prompts = [prompt(length, length) for length in (5, 6, 7, 8)]
    outcome = run(
        runner, [(tokens, params) for tokens in prompts], sequences=4, budget=24, blocks=11, ahead=ahead
    )
    assert outcome.preempted > 0
    check(outcome, saved[1], prompts)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("checkpoints", [9, 1])
def test_prefixes_are_found_where_their_state_was_kept(
    saved: Saved, runner: Runner, ahead: bool, checkpoints: int
) -> None:
    """What several prompts have in common, and a chat's turns; also where few can be kept."""
    common, turn = prompt(50, 9), prompt(40, 8)
    chats = [[*common, *prompt(20 + 5 * i, 20 + i)] for i in range(4)]
    chats += [turn, [*turn, *prompt(25, 5)], [*turn, *prompt(25, 5), *prompt(25, 6)]]
    requests = [(tokens, GREEDY) for tokens in chats]
    options = {"sequences": 2, "budget": 48, "late": 12, "ahead": ahead}
    outcome = run(runner, requests, checkpoints=checkpoints, **options)
    check(outcome, saved[1], chats)
    # The second prompt shows what is common, the third and the fourth find it; and each turn finds the one before.
    assert outcome.hit_tokens == 2 * 48 + 32 + 64 if checkpoints > 1 else outcome.hit_tokens > 0
    assert run(runner, requests, **options).hit_tokens == 0


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sequences", [2, 12])
def test_choices_go_on_from_a_copy_of_the_state(runner: Runner, sequences: int, ahead: bool) -> None:
    """With room for all of them, and without."""
    params = SamplingParams(max_tokens=16, seed=7)
    requests = [(tokens, params) for tokens in PROMPTS[:3]]
    outcome = run(runner, requests, sequences=sequences, budget=24, choices=3, ahead=ahead)
    for choice in range(3):
        alone = run(runner, [(tokens, replace(params, seed=7 + choice)) for tokens, _ in requests])
        assert [outcome.tokens[i + 1000 * choice] for i in range(3)] == list(alone.tokens.values())
    assert outcome.tokens[0] != outcome.tokens[1000] != outcome.tokens[2000]


def test_a_step_without_memory_costs_no_token(saved: Saved, runner: Runner) -> None:
    """It has changed states by then."""
    folder, model = saved
    for overlap in ("off", "on"):
        with looping(folder, lambda tokens: len(tokens) > 20, overlap=overlap) as (client, core):
            client.ask(*REQUESTS)
            assert client.last is not None and client.last.out_of_memory > 0
            assert not client.refused
            check(Outcome(client.tokens), model)
            core._scheduler.check_integrity()


def test_a_late_mask_is_awaited(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is computed again would change the state again."""
    bound = SamplingParams(max_tokens=16, temperature=0, grammar=Grammar("regex", "[a-z]{20}"))
    requests = [(PROMPTS[1], bound), (PROMPTS[2], GREEDY)]
    wanted = run(runner, requests).tokens
    compute, slow = GrammarManager._fill_slow, []

    def slowly(self: GrammarManager, task: Any) -> Any:
        slow.append(task)
        task.matcher.slow = True
        time.sleep(0.02)
        bits = compute(self, task)
        task.matcher.slow = True
        return bits

    monkeypatch.setattr(GrammarManager, "_fill_slow", slowly)
    assert run(runner, requests).tokens == wanted
    assert len(slow) > 10


def test_weights_and_keys_in_fewer_bits_stay_near(saved: Saved) -> None:
    folder, _ = saved
    plain, small = (
        run(runner_of(folder, **options), [(PROMPTS[0], replace(GREEDY, logprobs=0))]).logprobs[0]
        for options in ({}, {"quantization": "int8", "kv_cache_dtype": "int8"})
    )
    assert abs(plain[0].logprob - small[0].logprob) < 0.5


def test_deterministic_tokens_do_not_depend_on_steps(saved: Saved) -> None:
    runner = runner_of(saved[0], deterministic=True, dtype="bfloat16")
    params = replace(GREEDY, logprobs=1)
    requests = [(tokens, params) for tokens in PROMPTS]
    together = run(runner, requests)
    apart = run(runner, requests, sequences=3, budget=5, late=2)
    assert together.tokens == apart.tokens and together.logprobs == apart.logprobs


@pytest.mark.parametrize("ahead", [False, True])
def test_recordings_read_whose_states_are_whose(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """As CUDA graphs, with idle rows; a recorder that computes again stands for the GPU."""
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    runner = Runner(EngineConfig(model=saved[0], threads=1, kv_cache_blocks=200, max_num_seqs=8))
    runner._batches = BatchBuilder(runner.cache, runner.device)
    recorder = Recorder()
    runner.recordings.record(recorder)
    outcome = run(runner, REQUESTS, sequences=3, budget=24, late=2, ahead=ahead)
    check(outcome, saved[1])
    assert recorder.replays > outcome.steps / 2
    # The prompt of one token begins with a state that is nothing, whatever its slot holds.
    check(run(runner, REQUESTS[3:4]), saved[1], PROMPTS[3:4])


@pytest.mark.skipif(not available(), reason="no C compiler")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_replayed_on_a_cpu_have_the_same_bits(saved: Saved, dtype: str) -> None:
    runner = runner_of(saved[0], dtype=dtype)
    assert runner.recordings.graphs is not None
    params = [replace(GREEDY, logprobs=1, max_tokens=9 + 5 * i) for i in range(len(PROMPTS))]
    requests = list(zip(PROMPTS, params, strict=True))
    replayed = run(runner, requests, sequences=4)
    assert {sequences for sequences, _ in runner.recordings.graphs._recorded} == {1, 2, 3, 4}
    runner.recordings.graphs = None
    plain = run(runner, requests, sequences=4)
    assert (replayed.tokens, replayed.logprobs) == (plain.tokens, plain.logprobs)
    # Token by token there is nothing to record.
    assert runner_of(saved[0], dtype=dtype, deterministic=True).recordings.graphs is None


def test_an_adapter_changes_what_merged_weights_change(saved: Saved, tmp_path: Path) -> None:
    folder, model = saved
    weights = load_file(folder / "model.safetensors")
    layers = {name: weight for name, weight in weights.items() if weight.dim() == 2}
    targets = ("q_proj", "in_proj", "in_proj_qkvz", "out_proj", "o_proj")
    adapter = write_adapter(tmp_path / "one", layers, rank=4, targets=targets)
    runner = runner_of(folder, adapters=(("one", adapter),))
    outcome = run(runner, REQUESTS, adapters=["one"] * len(REQUESTS), sequences=4, budget=24)
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    try:
        model.load_state_dict(merge(layers, adapter), strict=False)
        check(outcome, model)
    finally:
        model.load_state_dict(kept)
    assert run(runner, REQUESTS).tokens != outcome.tokens


def test_a_start_tells_of_states(saved: Saved, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    config = EngineConfig(model=saved[0], threads=1, kv_cache_blocks=50, max_num_seqs=3)
    loaded = load_engine(config)
    assert loaded.scheduler.prefixes is not None and loaded.ready.prefix_caching
    states = loaded.runner.cache.states
    assert states is not None
    held = sum(tensor.nbytes for layer in states.layers.values() for tensor in layer)
    assert loaded.ready.memory["states"] == held == loaded.runner.state_bytes
    assert f"of each of 3 sequences and 1 prefixes, {held:,} bytes" in caplog.text
    assert len(loaded.runner.cache.layers) + len(states.layers) in (3, 4)
    # Blocks are of the layers with attention alone.
    assert loaded.runner.block_bytes == 2 * 2 * 16 * 16 * 4
    for none in ({"state_checkpoints": 0}, {"prefix_caching": False}):
        without = load_engine(replace(config, **none))
        assert without.scheduler.prefixes is None and not without.ready.prefix_caching
        assert without.runner.state_bytes * 5 == held * 4


def test_what_cannot_be_is_refused_by_name(saved: Saved, tiny_model: Path) -> None:
    folder, _ = saved
    with pytest.raises(StartupError, match=r"--speculation ngram.*taken back"):
        Runner(EngineConfig(model=folder, threads=1, speculation="ngram"))
    with pytest.raises(StartupError, match="cannot propose draft tokens"):
        Runner(EngineConfig(model=tiny_model, threads=1, speculation="draft", draft_model=folder))
    with pytest.raises(StartupError, match="tensor parallelism: leave out --tensor-parallel"):
        Runner(EngineConfig(model=folder, threads=1, tensor_parallel=2))
    for where in ({"model": tiny_model}, {"model": folder, "prefix_caching": False}):
        with pytest.raises(StartupError, match="--state-checkpoints keeps states of cached prefixes"):
            Runner(EngineConfig(threads=1, state_checkpoints=2, **where))
    with pytest.raises(StartupError, match=r"states.*50000000 sequences.*--max-num-seqs"):
        Runner(EngineConfig(model=folder, threads=1, max_num_seqs=50_000_000))
