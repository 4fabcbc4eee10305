from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, ScheduledRequest
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import InvalidRequest, StartupError
from engine.layers.linear import Linear
from engine.layers.lora import AdaptedLinear, AdapterBank
from engine.layers.quantized import Int4Linear, Int8Linear
from engine.parallel.group import TPGroup
from engine.weights.quantize import to_int4, to_int8
from engine.worker.runner import Runner
from tests.engine import dense
from tests.engine.lora import load, merge, write_adapter
from tests.engine.steps import run
from tests.engine.tiny import SHAPE

GREEDY = SamplingParams(max_tokens=16, temperature=0)
LENGTHS = [1, 9, 33, 16, 60, 5, 47, 20]
NAMES = ["one", None, "two", "three", "one", "two", None, "three"]


@pytest.fixture(scope="module")
def weights(tiny_model: Path) -> dict[str, Tensor]:
    return load_file(tiny_model / "model.safetensors")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Tensor]) -> dict[str, Path]:
    """Of different ranks, layers and scales."""
    home = tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(home / "one", weights, rank=2, seed=1),
        "two": write_adapter(
            home / "two", weights, rank=5, alpha=3, targets=("q_proj", "v_proj"), seed=2, use_rslora=True
        ),
        "three": write_adapter(
            home / "three",
            weights,
            rank=8,
            targets=("v_proj", "up_proj", "down_proj"),
            ranks={"layers.1.mlp.up_proj": 3},
            alpha_pattern={"v_proj": 16.0},
            seed=3,
        ),
    }


@pytest.fixture(scope="module")
def runner(tiny_model: Path, folders: dict[str, Path]) -> Runner:
    config = EngineConfig(
        model=tiny_model, kv_cache_blocks=200, threads=1, adapters=tuple(folders.items()), max_adapters=4
    )
    return Runner(config)


@pytest.fixture(scope="module")
def merged(weights: dict[str, Tensor], folders: dict[str, Path]) -> dict[str | None, dict[str, Tensor]]:
    return {None: weights, **{name: merge(weights, folder) for name, folder in folders.items()}}


@pytest.fixture(scope="module")
def expected(merged: dict[str | None, dict[str, Tensor]]) -> list[list[int]]:
    """What dense forwards over merged weights say."""
    pairs = zip(NAMES, prompts(), strict=True)
    return [dense.greedy(merged[name], SHAPE, prompt, GREEDY.max_tokens) for name, prompt in pairs]


def prompts(seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(2, SHAPE["vocab_size"]) for _ in range(length)] for length in LENGTHS]


def logits(runner: Runner, *asked: tuple[list[int], str | None]) -> list[Tensor]:
    """Of all tokens of prompts that share a step."""
    scheduled, first = [], 0
    for i, (tokens, adapter) in enumerate(asked):
        count = -(-len(tokens) // runner.block_size)
        blocks = list(range(first, first + count))
        # Draft tokens, so that the batch says which rows are whose.
        draft_tokens = len(tokens) - 1
        scheduled.append(
            ScheduledRequest(
                i, tokens, 0, blocks, GREEDY, False, num_draft_tokens=draft_tokens, adapter=adapter
            )
        )
        first += count
    batch = runner._batches.build(Plan(scheduled))
    assert runner.adapters is not None
    with torch.inference_mode():
        runner.adapters.select(batch.adapters, runner.device)
        hidden = runner.model.forward(batch.tokens, batch.positions, batch.attention, runner.cache)
        found = runner.model.logits(hidden)
    return [
        found[
            [
                int(row)
                for row, sampling_row in zip(batch.logits_indices, batch.sampling_rows, strict=True)
                if sampling_row.request_id == i
            ]
        ]
        for i in range(len(asked))
    ]


def test_logits_equal_those_of_merged_weights(
    runner: Runner, merged: dict[str | None, dict[str, Tensor]]
) -> None:
    asked = [(prompt, name) for prompt, name in zip(prompts(), NAMES, strict=True) if len(prompt) > 1]
    for (prompt, name), found in zip(asked, logits(runner, *asked), strict=True):
        expected = dense.logits(merged[name], SHAPE, prompt)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-4)
        if name:
            assert (expected - dense.logits(merged[None], SHAPE, prompt)).abs().max() > 1


@pytest.mark.parametrize(("budget", "late"), [(512, 0), (16, 0), (9, 2)])
def test_many_adapters_in_one_batch_say_what_merged_weights_say(
    runner: Runner, expected: list[list[int]], budget: int, late: int
) -> None:
    requests = [(prompt, GREEDY) for prompt in prompts()]
    outcome = run(runner, requests, budget=budget, sequences=8, late=late, adapters=NAMES)
    assert list(outcome.tokens.values()) == expected
    assert outcome.largest > 3


def test_preempted_they_say_the_same(runner: Runner, expected: list[list[int]]) -> None:
    requests = [(prompt, GREEDY) for prompt in prompts()]
    outcome = run(runner, requests, budget=64, sequences=8, blocks=10, adapters=NAMES)
    assert outcome.preempted > 0
    assert list(outcome.tokens.values()) == expected


def test_the_same_prompt_is_not_the_same_prefix_under_another_adapter(
    runner: Runner, merged: dict[str | None, dict[str, Tensor]]
) -> None:
    prompt = prompts()[4]
    names = [None, "one", None, "two", "one", "three"]
    outcome = run(runner, [(prompt, GREEDY)] * len(names), late=30, adapters=names)
    for i, name in enumerate(names):
        assert outcome.tokens[i] == dense.greedy(merged[name], SHAPE, prompt, GREEDY.max_tokens)


def test_choices_of_one_prompt_share_its_adapter(
    runner: Runner, merged: dict[str | None, dict[str, Tensor]]
) -> None:
    prompt = prompts()[2]
    scheduler = Scheduler(
        BlockPool(100),
        block_size=runner.block_size,
        max_num_seqs=8,
        max_batched_tokens=16,
        max_model_len=512,
        max_waiting=9,
    )
    scheduler.submit(
        Request(1, prompt, GREEDY, adapter="three", siblings=[Sibling(2, GREEDY), Sibling(3, GREEDY)])
    )
    tokens: dict[int, list[int]] = {1: [], 2: [], 3: []}
    while not scheduler.idle:
        plan = scheduler.schedule()
        for output in scheduler.update(plan, runner.execute(plan)):
            tokens[output.request_id] += output.tokens
    assert list(tokens.values()) == [dense.greedy(merged["three"], SHAPE, prompt, GREEDY.max_tokens)] * 3


def test_neighbours_change_no_bit(runner: Runner) -> None:
    """Neither those with other adapters, nor how many there are, nor where they stand."""
    asked = list(zip(prompts(), NAMES, strict=True))[1:]
    alone = [logits(runner, one)[0] for one in asked]
    for order in (asked, asked[::-1], asked[2:] + asked[:2]):
        found = logits(runner, *order)
        for one, its in zip(order, found, strict=True):
            if len(one[0]) > 1:
                assert torch.equal(its, alone[asked.index(one)])


def test_rows_without_adapter_are_those_of_an_engine_without_any(
    runner: Runner, tiny_runner: Runner, expected: list[list[int]]
) -> None:
    assert tiny_runner.adapters is None
    base = prompts()[6]
    (found,) = logits(runner, (base, None))
    plain = tiny_runner._batches.build(Plan([ScheduledRequest(0, base, 0, list(range(4)), None, False)]))
    with torch.inference_mode():
        hidden = tiny_runner.model.forward(plain.tokens, plain.positions, plain.attention, tiny_runner.cache)
        truth = tiny_runner.model.logits(hidden)
    assert torch.equal(found, truth)
    _, beside = logits(runner, (prompts()[4], "one"), (base, None))
    assert torch.equal(beside, truth)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_layer_can_be_adapted(tmp_path: Path, bits: int) -> None:
    """Its own rows stay as they are; the adapter's are added in full precision."""
    torch.manual_seed(0)
    parts = {"layer.q_proj": 64, "layer.v_proj": 32}
    weights = {f"{name}.weight": torch.randn(width, 64) for name, width in parts.items()}
    whole = torch.cat(list(weights.values()))
    base = Int8Linear(to_int8(whole)) if bits == 8 else Int4Linear(to_int4(whole, 32), invariant=True)
    bank = AdapterBank(1, 8, TPGroup())
    layer = AdaptedLinear(base, bank, parts, 64, 0, torch.device("cpu"), torch.float32)
    folder = write_adapter(tmp_path, weights, rank=4)
    load(bank, "it", folder)
    merged = merge(weights, folder)
    delta = torch.cat([merged[name] - weights[name] for name in weights])
    x = torch.randn(9, 64)
    before = base(x)
    for runs, rows in (
        ([("it", 2, 4), ("it", 4, 5)], [2, 3, 4]),
        ([("it", 0, 1), ("it", 6, 9)], [0, 6, 7, 8]),
    ):
        bank.select(runs, x.device)
        after = layer(x)
        torch.testing.assert_close(after[rows], before[rows] + x[rows] @ delta.T, rtol=1e-5, atol=1e-4)
        others = [row for row in range(9) if row not in rows]
        assert torch.equal(after[others], before[others])


def test_drafts_change_no_token(
    tiny_model: Path, folders: dict[str, Path], expected: list[list[int]]
) -> None:
    config = EngineConfig(
        model=tiny_model, kv_cache_blocks=99, threads=1, adapters=tuple(folders.items()), speculation="ngram"
    )
    requests = [(prompt, GREEDY) for prompt in prompts()]
    assert list(run(Runner(config), requests, sequences=8, adapters=NAMES).tokens.values()) == expected


def test_bfloat16_stays_near(
    tiny_model: Path, folders: dict[str, Path], merged: dict[str | None, dict[str, Tensor]]
) -> None:
    config = EngineConfig(
        model=tiny_model, kv_cache_blocks=99, threads=1, adapters=tuple(folders.items()), dtype="bfloat16"
    )
    asked = [(prompt, name) for prompt, name in zip(prompts(), NAMES, strict=True) if len(prompt) > 1]
    for (prompt, name), found in zip(asked, logits(Runner(config), *asked), strict=True):
        truth = dense.logits(merged[name], SHAPE, prompt)
        near = torch.nn.functional.cosine_similarity(found.float(), truth)
        assert near.mean() > 0.99


def test_an_adapter_comes_and_goes_while_others_run(
    tiny_model: Path, folders: dict[str, Path], merged: dict[str | None, dict[str, Tensor]]
) -> None:
    config = EngineConfig(
        model=tiny_model, kv_cache_blocks=99, threads=1, adapters=(("one", folders["one"]),), max_adapters=2
    )
    runner = Runner(config)
    bank = runner.adapters
    assert bank is not None
    scheduler = Scheduler(
        BlockPool(99),
        block_size=16,
        max_num_seqs=8,
        max_batched_tokens=64,
        max_model_len=512,
        max_waiting=9,
    )
    tokens: dict[int, list[int]] = {1: [], 2: [], 3: []}
    prompt = prompts()[3]
    scheduler.submit(Request(1, prompt, GREEDY, adapter="one"))
    steps = 0
    while not scheduler.idle:
        plan = scheduler.schedule()
        for output in scheduler.update(plan, runner.execute(plan)):
            tokens[output.request_id] += output.tokens
        steps += 1
        if steps == 3:
            load(bank, "two#1", folders["two"])
            assert bank.free_slot is None
            scheduler.submit(Request(2, prompt, GREEDY, adapter="two#1"))
        if len(tokens[2]) == GREEDY.max_tokens and "two#1" in bank.loaded:
            bank.unload("two#1")
            load(bank, "two#2", folders["three"])
            scheduler.submit(Request(3, prompt, GREEDY, adapter="two#2"))
    for i, name in enumerate(("one", "two", "three"), 1):
        assert tokens[i] == dense.greedy(merged[name], SHAPE, prompt, GREEDY.max_tokens)
    assert bank.loaded == {"one", "two#2"}


def test_an_engine_without_adapters_has_no_wrappers(
    runner: Runner, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runner.adapters is not None
    assert len(runner.adapters._layers) == 4 * SHAPE["num_hidden_layers"]
    monkeypatch.delattr("engine.models.builder.AdaptedLinear")
    plain = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=9, threads=1))
    assert plain.adapters is None
    with pytest.raises(NameError):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=9, threads=1, max_adapters=1))


def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, tiny_model: Path, weights: dict[str, Tensor]
) -> None:
    runner = Runner(
        EngineConfig(model=tiny_model, kv_cache_blocks=9, threads=1, max_adapters=1, max_adapter_rank=4)
    )
    bank = runner.adapters
    assert bank is not None
    wide = {name: torch.zeros(weight.shape[0], 80) for name, weight in weights.items() if weight.dim() == 2}
    strange = {
        "model.layers.0.self_attn.q_proj.weight": torch.zeros(64, 64),
        "lm_head.weight": torch.zeros(320, 64),
    }
    cases = [
        (write_adapter(tmp_path / "high", weights, rank=5), "rank is 5, but --max-adapter-rank is 4"),
        (write_adapter(tmp_path / "wide", wide, rank=2), "made for another model"),
        (
            write_adapter(tmp_path / "head", strange, rank=2, targets=("q_proj", "lm_head")),
            "changes lm_head, which",
        ),
    ]
    for folder, complaint in cases:
        with pytest.raises(InvalidRequest, match=complaint):
            load(bank, "it", folder)
    assert not bank.loaded
    assert not any(layer._pairs for layer in bank._layers)
    with pytest.raises(StartupError, match="The adapter high cannot be loaded"):
        Runner(
            EngineConfig(
                model=tiny_model,
                kv_cache_blocks=9,
                threads=1,
                adapters=(("high", tmp_path / "high"),),
                max_adapter_rank=4,
            )
        )


class TestOnTriton:
    """In its interpreter, and with these layers alone on it."""

    @pytest.fixture(autouse=True)
    def forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton", reason="triton is installed on Linux alone")
        for module in ("engine.layers.lora", "kernels.lora"):
            monkeypatch.setattr(f"{module}.on_triton", lambda x: True)

    def test_logits_equal_those_of_merged_weights(
        self, tiny_model: Path, folders: dict[str, Path], merged: dict[str | None, dict[str, Tensor]]
    ) -> None:
        config = EngineConfig(
            model=tiny_model, kv_cache_blocks=99, threads=1, adapters=tuple(folders.items()), max_adapters=4
        )
        runner = Runner(config)
        asked = [(prompt, name) for prompt, name in zip(prompts(), NAMES, strict=True) if len(prompt) > 1]
        for (prompt, name), found in zip(asked, logits(runner, *asked), strict=True):
            torch.testing.assert_close(found, dense.logits(merged[name], SHAPE, prompt), rtol=1e-5, atol=2e-4)
        _, beside = logits(runner, asked[0], (prompts()[6], None))
        (alone,) = logits(runner, (prompts()[6], None))
        assert torch.equal(beside, alone)

    def test_slots_are_taken_and_freed(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        parts = {"layer.q_proj": 64, "layer.k_proj": 16, "layer.v_proj": 32}
        weights = {f"{name}.weight": torch.randn(width, 48) for name, width in parts.items()}
        base = Linear(torch.cat(list(weights.values())))
        bank = AdapterBank(2, 8, TPGroup(), max_tokens=4)
        layer = AdaptedLinear(base, bank, parts, 48, 0, torch.device("cpu"), torch.float32)
        folders = {
            "one": write_adapter(tmp_path / "one", weights, rank=4),
            "two": write_adapter(tmp_path / "two", weights, rank=8, targets=("q_proj", "v_proj"), seed=2),
            "three": write_adapter(tmp_path / "three", weights, rank=1, targets=("k_proj",), seed=3),
        }
        x = torch.randn(9, 48)
        before = base(x)

        def check(*runs: tuple[str, int, int]) -> None:
            bank.select(runs, x.device)
            expected = before.clone()
            own = torch.zeros(9, dtype=torch.bool)
            for key, start, stop in runs:
                whole = torch.cat(list(merge(weights, folders[key]).values()))
                expected[start:stop] = x[start:stop] @ whole.T
                own[start:stop] = True
            found = layer(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert torch.equal(found[~own], before[~own])

        load(bank, "one", folders["one"])
        load(bank, "two", folders["two"])
        check(("one", 0, 1), ("two", 1, 4))
        check(("two", 3, 5), ("one", 7, 9))
        check(("one", 2, 3))
        check()
        assert bank.free_slot is None
        bank.unload("one")
        load(bank, "three", folders["three"])
        check(("three", 4, 6), ("two", 6, 9))

    def test_ranks_have_their_share(self, tmp_path: Path) -> None:
        """Of the outputs, and of the inputs: together they say what one alone says."""

        torch.manual_seed(0)
        weights = {"layer.q_proj.weight": torch.randn(32, 48)}
        folder = write_adapter(tmp_path, weights, rank=4)
        change = merge(weights, folder)["layer.q_proj.weight"] - weights["layer.q_proj.weight"]
        x = torch.randn(5, 48)
        parts = []
        for cut in (0, 1):
            for rank in range(2):
                bank = AdapterBank(1, 8, TPGroup(rank, 2))
                wide, high = (48, 16) if cut == 0 else (24, 32)
                layer = AdaptedLinear(
                    lambda rows, high=high: rows.new_zeros(len(rows), high),
                    bank,
                    {"layer.q_proj": 32},
                    48,
                    cut,
                    torch.device("cpu"),
                    torch.float32,
                )
                load(bank, "it", folder)
                bank.select([("it", 0, 5)], x.device)
                parts.append(layer(x[:, rank * wide : (rank + 1) * wide] if cut else x))
        torch.testing.assert_close(torch.cat(parts[:2], 1), x @ change.T, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(parts[2] + parts[3], x @ change.T, rtol=1e-4, atol=1e-4)
