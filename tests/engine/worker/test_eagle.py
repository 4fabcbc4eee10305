"""Heads that draft from hidden states, through the real worker and scheduler: no token may change."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.plan import Plan, SamplerOutput
from engine.core.sampling_params import Grammar, SamplingParams
from engine.errors import StartupError, UnsupportedModel
from engine.worker.cpu_recordings import CpuRecordings
from engine.worker.eagle import EagleProposer
from engine.worker.growing_tree import TreeShape
from engine.worker.runner import Runner
from tests.engine import dense
from tests.engine.heads import eagle_weights, write_eagle, write_medusa
from tests.engine.steps import run
from tests.engine.tiny import SHAPE
from tests.engine.worker.drafting import drive
from tests.engine.worker.narrow import SAID, write_narrow
from tests.engine.worker.test_draft_model import GREEDY, WARM, always, mixed, prompts
from tests.engine.worker.test_speculative import PROMPT, answers, chi_square

SAMPLED = SamplingParams(max_tokens=3, temperature=6.0, top_k=4)
BLOCKS = 400


@pytest.fixture(scope="module")
def narrow(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_narrow(tmp_path_factory.mktemp("models") / "narrow", tiny_model)


@pytest.fixture(scope="module")
def plain(narrow: Path) -> Runner:
    return Runner(EngineConfig(model=narrow, kv_cache_blocks=BLOCKS, threads=1))


@pytest.fixture(
    scope="module", params=["eagle", "eagle_of_all_tokens", "medusa", "eagle_in_trees", "medusa_in_trees"]
)
def drafted(narrow: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Runner:
    folder = tmp_path_factory.mktemp("heads") / "head"
    kind = request.param.split("_")[0]
    if kind == "medusa":
        write_medusa(folder)
        weights = load_file(folder / "medusa_lm_head.safetensors")
        for i in range(3):
            said = torch.zeros(SHAPE["vocab_size"], 1)
            said[SAID] = 1
            weights[f"{i}.1.weight"] *= 3 * said
        save_file(weights, folder / "medusa_lm_head.safetensors")
    else:
        weights = eagle_weights(vocabulary=[2, *SAID, 300])
        if request.param == "eagle_of_all_tokens":
            weights = eagle_weights()
            weights["lm_head.weight"][[i for i in range(SHAPE["vocab_size"]) if i not in SAID]] = 0
        write_eagle(folder, weights=weights)
    config = EngineConfig(
        model=narrow, kv_cache_blocks=BLOCKS, threads=1, speculation=kind, draft_model=folder
    )
    if request.param == "eagle_of_all_tokens":
        return always(Runner(config))
    trees = 7 if "trees" in request.param else 0
    runner = Runner(replace(config, draft_tree=trees))
    # From here on steps are replayed, where there is C.
    runner.warm_up()
    always(runner, trees or 4)
    assert runner.speculation is not None
    if isinstance(runner.speculation.proposer, EagleProposer):
        # Random heads are never sure.
        runner.speculation.proposer.shape = TreeShape(depth=4, width=2, children=3, keep=0, grow=0)
    return runner


@pytest.mark.parametrize(
    ("chunk", "disturb"),
    [(512, 0.0), (7, 0.0), (512, 0.15), (23, 0.1)],
    ids=["", "chunked_prefill", "disturbed", "both"],
)
def test_no_token_and_no_logprob_changes(plain: Runner, drafted: Runner, chunk: int, disturb: float) -> None:
    expected = drive(plain, mixed())
    reported = drive(drafted, mixed(), chunk=chunk, disturb=disturb, seed=3)
    assert reported.tokens == expected.tokens
    for row, other in zip(reported.logprobs, expected.logprobs, strict=True):
        assert [one.token for one in row] == [one.token for one in other]
    assert 5 < sum(reported.kept) < reported.checked
    assert (reported.preempted > 2) == bool(disturb)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"budget": 12, "late": 2, "sequences": 8},
        {"blocks": 9, "sequences": 8, "budget": 64},
        {"blocks": 8, "sequences": 8, "budget": 16},
    ],
    ids=["", "chunked_prefill", "preempted", "crowded"],
)
def test_the_scheduler_gets_the_same_tokens(plain: Runner, drafted: Runner, options: dict[str, int]) -> None:
    expected = run(plain, mixed())
    reported = run(drafted, mixed(), **options)
    assert reported.tokens == expected.tokens
    assert (reported.preempted > 0) == ("blocks" in options)


def test_choices_of_a_prompt_and_prefixes_are_drafted_as_well(plain: Runner, drafted: Runner) -> None:
    assert drafted.speculation is not None
    shared = prompts([40], seed=6)[0]
    requests = [(shared + tail, replace(WARM, seed=10 * i)) for i, tail in enumerate(prompts([3, 12, 30], 7))]
    expected = run(plain, requests, choices=3, late=4)
    before = drafted.speculation.accepted
    reported = run(drafted, requests, choices=3, late=4, blocks=40)
    assert reported.tokens == expected.tokens
    assert reported.copies > 0
    assert reported.hit_tokens >= 64
    assert drafted.speculation.accepted - before > 10


def test_a_grammar_holds_beside_requests_without(plain: Runner, drafted: Runner) -> None:
    """Its requests get chains."""
    assert drafted.speculation is not None
    bound = Grammar("regex", "(GI|K[GIM]|M+K|I)+")
    said = [replace(kind, grammar=bound, seed=i, max_tokens=24) for i, kind in enumerate([GREEDY, WARM] * 3)]
    requests = [*zip(prompts([9, 20, 33, 40, 5, 12], seed=8), said, strict=True), *mixed()[:3]]
    before = drafted.speculation.accepted
    assert run(drafted, requests).tokens == run(plain, requests).tokens
    assert drafted.speculation.accepted - before > 10


def test_the_distribution_is_the_targets(narrow: Path, drafted: Runner) -> None:
    """Of 2,048 seeds."""
    assert drafted.speculation is not None
    weights = load_file(narrow / "model.safetensors")

    def after(tokens: list[int]) -> dict[int, float]:
        values, ids = dense.logits(weights, SHAPE, PROMPT + tokens)[-1].topk(4)
        return dict(
            zip(ids.tolist(), (values.double() / SAMPLED.temperature).softmax(-1).tolist(), strict=True)
        )

    truth = {
        (a, b, c): p * q * r
        for a, p in after([]).items()
        for b, q in after([a]).items()
        for c, r in after([a, b]).items()
    }
    before = drafted.speculation.accepted
    found = answers(drafted, 2048, SAMPLED)
    assert found.keys() <= truth.keys()
    assert drafted.speculation.accepted - before > 200
    assert chi_square(found, truth) < 3


def test_a_prompt_in_chunks_leaves_the_head_as_one_at_once(narrow: Path, tmp_path: Path) -> None:
    """Its drafts are the same."""
    folder = write_eagle(tmp_path / "head", weights=eagle_weights(vocabulary=[2, *SAID, 300]))
    found = []
    for chunk in (512, 7):
        config = EngineConfig(
            model=narrow, kv_cache_blocks=BLOCKS, threads=1, speculation="eagle", draft_model=folder
        )
        requests = [(prompt, GREEDY) for prompt in prompts([90, 64, 33])]
        runner = always(Runner(config))
        results = [drive(runner, [request], chunk=chunk).kept for request in requests]
        found.append(results)
    assert found[0] == found[1]


def test_a_head_of_shorter_context_falls_silent(narrow: Path, tmp_path: Path) -> None:
    folder = write_eagle(tmp_path / "head", max_position_embeddings=40)
    runner = always(
        Runner(
            EngineConfig(model=narrow, kv_cache_blocks=60, threads=1, speculation="eagle", draft_model=folder)
        )
    )
    reported = drive(runner, [(prompt, GREEDY) for prompt in prompts([30, 38, 39, 60])])
    assert 0 < reported.checked < 60


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize("blocks", [1, 2, 40])
def test_warming_up_leaves_no_trace(tiny_model: Path, tmp_path: Path, kind: str, blocks: int) -> None:
    folder = write_eagle(tmp_path / "head") if kind == "eagle" else write_medusa(tmp_path / "head")
    config = EngineConfig(
        model=tiny_model, kv_cache_blocks=blocks, threads=1, speculation=kind, draft_model=folder
    )
    runner = Runner(config)
    assert runner.speculation is not None
    policy = runner.speculation.policy
    runner.warm_up()
    assert runner.speculation.policy is policy
    assert (runner.speculation.proposed, runner.speculation.accepted) == (0, 0)


def test_blocks_behind_the_models_windows_are_kept_for_the_head(
    model_of: Callable[..., Path], tmp_path: Path
) -> None:
    model = model_of(architectures=["MistralForCausalLM"], sliding_window=32)
    config = EngineConfig(model=model, kv_cache_blocks=40, threads=1)
    assert Runner(config).windows == [32]
    folder = write_eagle(tmp_path / "head")
    assert Runner(replace(config, speculation="eagle", draft_model=folder)).windows == [None]


def test_the_heads_cache_counts(tiny_model: Path, tmp_path: Path) -> None:
    """One layer beside the model's two."""
    config = EngineConfig(model=tiny_model, kv_cache_memory=9 * 2**20, threads=1)
    alone = Runner(config)
    folder = write_eagle(tmp_path / "head")
    both = Runner(replace(config, speculation="eagle", draft_model=folder))
    assert both.block_bytes == 1.5 * alone.block_bytes
    assert both.cache.blocks == alone.cache.blocks * 2 // 3


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_pickles_and_quantized_heads_draft_too(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    write = write_eagle if kind == "eagle" else write_medusa
    requests = [(prompt, SamplingParams(max_tokens=12, temperature=0)) for prompt in prompts([9, 20])]
    for quantization in (None, "int8"):
        expected = drive(
            Runner(EngineConfig(model=tiny_model, kv_cache_blocks=60, threads=1, quantization=quantization)),
            requests,
        )
        config = EngineConfig(
            model=tiny_model,
            kv_cache_blocks=60,
            threads=1,
            speculation=kind,
            draft_model=write(tmp_path / f"head-{quantization}", pickled=True),
            quantization=quantization,
        )
        reported = drive(always(Runner(config)), requests)
        assert reported.checked > 0
        if quantization is None:
            assert reported.tokens == expected.tokens


def test_a_head_may_have_fewer_bits_than_its_model(tiny_model: Path, tmp_path: Path) -> None:
    requests = [(prompt, SamplingParams(max_tokens=12, temperature=0)) for prompt in prompts([9, 20])]
    plain = EngineConfig(model=tiny_model, kv_cache_blocks=60, threads=1)
    config = replace(plain, speculation="eagle", draft_model=write_eagle(tmp_path / "head"))
    said = []
    for bits in (None, "int8", "int4"):
        runner = always(Runner(replace(config, draft_quantization=bits)))
        assert drive(runner, requests).tokens == drive(Runner(plain), requests).tokens
        assert runner.speculation is not None
        assert isinstance(runner.speculation.proposer, EagleProposer)
        said.append(runner.speculation.proposer.head.fuse(torch.ones(1, 192)))
    errors = [float((one - said[0]).norm() / said[0].norm()) for one in said[1:]]
    assert 0 < errors[0] < 0.02 < errors[1] < 0.2


def test_a_head_for_another_model_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    def start(folder: Path, kind: str = "eagle") -> None:
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation=kind, draft_model=folder))

    with pytest.raises(StartupError, match="--draft-model"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="eagle"))
    with pytest.raises(StartupError, match="--draft-model"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=8, speculation="medusa"))
    weights = eagle_weights()
    weights["d2t"][-1] = 1
    with pytest.raises(UnsupportedModel, match="vocabulary of 320"):
        start(write_eagle(tmp_path / "vocabulary", weights=weights))
    folder = write_eagle(tmp_path / "layers", eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 28]})
    with pytest.raises(UnsupportedModel, match="layers \\(2, 16, 29\\), but the model has 2"):
        start(folder)
    wide = {**SHAPE, "hidden_size": 128}
    folder = write_eagle(tmp_path / "wide", weights=eagle_weights(wide), hidden_size=128)
    with pytest.raises(UnsupportedModel, match="hidden states of 128, the model of 64"):
        start(folder)
    folder = write_medusa(tmp_path / "medusa")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "medusa_num_layers": 2}))
    with pytest.raises(UnsupportedModel, match="no Medusa heads"):
        start(folder, "medusa")
    with pytest.raises(StartupError, match="not ngram"):
        EngineConfig(model=tiny_model, speculation="ngram", draft_model=folder)


def test_branches_are_accepted_and_moved_into_place(drafted: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would show nothing of trees."""
    if not drafted._trees:
        pytest.skip("chains")
    moved, shapes = [], set()
    move, execute = drafted.cache.move, drafted.execute

    def watched(plan: Plan) -> SamplerOutput:
        shapes.update(tuple(one.draft_parents) for one in plan.requests)
        return execute(plan)

    monkeypatch.setattr(drafted.cache, "move", lambda pairs: (moved.extend(pairs), move(pairs)))
    monkeypatch.setattr(drafted, "execute", watched)
    drive(drafted, mixed())
    # Of one sequence alone, and often enough to be recorded.
    for _ in range(3):
        drive(drafted, mixed()[:1])
    assert len(moved) > 4
    if isinstance(drafted.recordings.graphs, CpuRecordings):
        assert (1, 8) in drafted.recordings.graphs._recorded
    assert len(shapes) > 1 and any(
        list(shape) != list(range(-1, len(shape) - 1)) for shape in shapes if shape
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"draft_tree": 64}, "from 1 to 63"),
        ({"speculation": "ngram", "draft_model": None}, "not ngram"),
        ({"deterministic": True}, "--deterministic"),
        ({"kv_cache_dtype": "int4"}, "--kv-cache-dtype int4"),
        ({"tensor_parallel": 2}, "--tensor-parallel"),
    ],
)
def test_what_does_not_go_with_trees_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    given = {"speculation": "eagle", "draft_model": Path("head"), "draft_tree": 8, **changes}
    with pytest.raises(StartupError, match=complaint):
        EngineConfig(model=Path("model"), **given)


def test_trees_over_sliding_windows_are_refused(model_of: Callable[..., Path], tmp_path: Path) -> None:
    model = model_of(architectures=["MistralForCausalLM"], sliding_window=32)
    folder = write_eagle(tmp_path / "head")
    with pytest.raises(StartupError, match="sliding windows"):
        Runner(
            EngineConfig(
                model=model,
                kv_cache_blocks=40,
                threads=1,
                speculation="eagle",
                draft_model=folder,
                draft_tree=4,
            )
        )
