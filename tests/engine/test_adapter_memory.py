"""More adapters than slots: each answer is the merged model's, whatever is copied and read meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine.adapter_memory import HostAdapters, open_adapters
from engine.config import EngineConfig
from engine.core.adapter_slots import AdapterSlots
from engine.core.sampling_params import SamplingParams
from engine.worker.runner import Runner
from tests.engine import dense
from tests.engine.lora import merge, write_adapter
from tests.engine.steps import run
from tests.engine.tiny import SHAPE
from tests.examples import examples

MOST = 6
GREEDY = SamplingParams(max_tokens=MOST, temperature=0)
PROMPTS = [[5, 9, 200, 31] * 9, [5, 9, 200, 31] * 5 + [7], [300, 4, 4, 77, 12]]
Expected = Callable[[int | None, int], list[int]]
Paged = tuple[Runner, HostAdapters, AdapterSlots]


def write_many(folder: Path, model: Path, count: int) -> list[Path]:
    weights = load_file(model / "model.safetensors")
    targets = (("q_proj", "v_proj"), ("o_proj", "down_proj"), ("gate_proj", "up_proj", "k_proj"))
    return [
        write_adapter(
            folder / str(number), weights, rank=1 + number % 5, seed=number, targets=targets[number % 3]
        )
        for number in range(count)
    ]


def expecting(model: Path, folders: list[Path]) -> Expected:
    """By adapter and prompt: what a plain implementation says with the merged weights."""
    weights = load_file(model / "model.safetensors")

    @cache
    def expected(adapter: int | None, prompt: int) -> list[int]:
        own = weights if adapter is None else merge(weights, folders[adapter])
        return dense.greedy(own, SHAPE, PROMPTS[prompt], MOST)

    return expected


def paging(model: Path, folders: list[Path], *, slots: int, memory: int, **options: object) -> Paged:
    config = EngineConfig(
        model=model,
        kv_cache_blocks=99,
        threads=1,
        adapters=tuple((str(number), folder) for number, folder in enumerate(folders)),
        max_adapters=slots,
        max_cpu_adapters=memory,
        **options,  # type: ignore[arg-type]
    )
    runner = Runner(config)
    opened = open_adapters(config, runner)
    assert opened is not None
    return runner, *opened


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[Path]:
    return write_many(tmp_path_factory.mktemp("adapters"), tiny_model, 40)


@pytest.fixture(scope="module")
def expected(tiny_model: Path, folders: list[Path]) -> Expected:
    return expecting(tiny_model, folders)


@pytest.fixture(scope="module")
def paged(tiny_model: Path, folders: list[Path]) -> Paged:
    return paging(tiny_model, folders, slots=3, memory=7)


@settings(max_examples=examples(60))
@given(
    asked=st.lists(st.tuples(st.none() | st.integers(0, 39), st.integers(0, 2)), min_size=1, max_size=30),
    late=st.integers(0, 2),
    sequences=st.sampled_from([2, 8]),
    budget=st.sampled_from([8, 64]),
    blocks=st.sampled_from([12, 99]),
    ahead=st.booleans(),
)
def test_each_answer_is_the_merged_models(
    paged: Paged,
    expected: Expected,
    asked: list[tuple[int | None, int]],
    late: int,
    sequences: int,
    budget: int,
    blocks: int,
    ahead: bool,
) -> None:
    """40 adapters, 3 slots, 7 in host memory; arrivals, chunks, preemption and steps made ahead at random."""
    runner, memory, slots = paged
    outcome = run(
        runner,
        [(PROMPTS[prompt], GREEDY) for _, prompt in asked],
        adapters=[None if adapter is None else str(adapter) for adapter, _ in asked],
        late=late,
        sequences=sequences,
        budget=budget,
        blocks=blocks,
        ahead=ahead,
        paged=(memory, slots),
    )
    assert outcome.adapters <= 3 and memory.held <= 7
    for number, (adapter, prompt) in enumerate(asked):
        assert outcome.tokens[number] == expected(adapter, prompt), (number, adapter, prompt)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_so_it_is_with_500_over_8_under_zipf(tmp_path: Path, tiny_model: Path) -> None:
    folders = write_many(tmp_path, tiny_model, 500)
    expected = expecting(tiny_model, folders)
    runner, memory, slots = paging(tiny_model, folders, slots=8, memory=32)
    rng = Random(1)
    weights = [1 / (1 + rank) for rank in range(500)]
    asked = [(adapter, rng.randrange(3)) for adapter in rng.choices(range(500), weights, k=2000)]
    # Each that is never drawn is asked for once.
    asked += [(adapter, 2) for adapter in sorted({*range(500)} - {adapter for adapter, _ in asked})]
    for first in range(0, len(asked), 800):
        part = asked[first : first + 800]
        outcome = run(
            runner,
            [(PROMPTS[prompt], GREEDY) for _, prompt in part],
            adapters=[str(adapter) for adapter, _ in part],
            paged=(memory, slots),
        )
        assert outcome.adapters == 8
        for number, (adapter, prompt) in enumerate(part):
            assert outcome.tokens[number] == expected(adapter, prompt)
    assert slots.swaps > 500 and slots.hits > 500 and memory.reads > 400 and memory.held == 32


def settle(memory: HostAdapters) -> tuple[dict[str, str | None], dict[str, str]]:
    """What ``tick`` says when all is read."""
    loaded: dict[str, str | None] = {}
    failed: dict[str, str] = {}
    deadline = time.monotonic() + 300
    while memory.reading:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        for known, more in zip((loaded, failed), memory.tick(), strict=True):
            known.update(more)  # type: ignore[arg-type]
    return loaded, failed


def test_host_memory_has_those_that_were_wanted_last(tiny_model: Path, folders: list[Path]) -> None:
    runner, memory, _ = paging(tiny_model, folders[:6], slots=1, memory=3)
    assert (memory.known, memory.held) == (6, 3)
    memory.want(["4", "0"], [])
    assert memory.reading and not memory.has("4")
    settle(memory)
    assert [key for key in "012345" if memory.has(key)] == ["0", "2", "4"]
    # What is due for a slot stays, as what is wanted does.
    memory.want(["5"], ["2"])
    settle(memory)
    assert [key for key in "012345" if memory.has(key)] == ["2", "4", "5"]
    assert memory.reads == 2
    assert runner.adapters is not None and set(runner.adapters.held) == {"2", "4", "5"}
    # A slot keeps what host memory drops.
    assert runner.adapters.loaded == {"0"}


def test_files_that_changed_are_not_taken_for_what_they_were(tmp_path: Path, tiny_model: Path) -> None:
    folders = write_many(tmp_path, tiny_model, 3)
    _, memory, slots = paging(tiny_model, folders, slots=1, memory=1)
    write_adapter(folders[1], load_file(tiny_model / "model.safetensors"), rank=2, seed=99)
    (folders[2] / "adapter_model.safetensors").unlink()
    for key in ("1", "2"):
        memory.want([key], [])
        loaded, failed = settle(memory)
        assert not loaded and "not those that were loaded" in failed[key]
        assert not memory.has(key) and key in memory
    memory.load("1#1", folders[1])
    loaded, failed = settle(memory)
    assert loaded["1#1"] and not failed and memory.has("1#1")
    memory.load("bad", tmp_path)
    loaded, failed = settle(memory)
    assert loaded == {"bad": None} and "adapter_config.json cannot be read" in failed["bad"]
    memory.forget("1#1")
    assert "1#1" not in memory and not memory.has("1#1")
    assert len(slots) == 1
