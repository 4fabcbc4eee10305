"""Two and three ranks on the CPU, as real processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.adapter_memory import open_adapters
from engine.channel import Channel, encode
from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import StartupError, UnsupportedModel
from engine.models.registry import load_model
from engine.parallel.group import TPGroup
from engine.parallel.layout import Layout
from engine.parallel.part import Part
from engine.server.tokenizer import Tokenizer
from engine.worker import local_rank, ranks
from engine.worker.local_rank import LocalRank
from engine.worker.pulse import Pulse
from engine.worker.ranks import LeaderRank
from engine.worker.runner import Runner
from tests.engine.live import EngineServer, alive, eventually
from tests.engine.lora import write_adapter
from tests.engine.models.hub import CPU, save
from tests.engine.steps import Outcome, run
from tests.engine.tiny import SHAPE, make_weights
from tests.sampling import slow

GREEDY = SamplingParams(max_tokens=12, temperature=0)
SEEDED = SamplingParams(max_tokens=12, temperature=0.8, seed=5)


@contextmanager
def started(model: Path, size: int = 2, **options: Any) -> Iterator[Runner]:
    options = {"kv_cache_blocks": 60, "threads": 1, **options}
    runner = Runner(EngineConfig(model=model, tensor_parallel=size, **options))
    try:
        yield runner
    finally:
        runner.ranks.close()


def test_what_another_rank_says_before_it_was_asked_is_kept() -> None:
    """It says that it has met the others and, if rank 0 is slow, also what it found, in one piece."""
    ours, theirs = socket.socketpair()
    rank = LocalRank.__new__(LocalRank)
    rank._channel, rank._inbox = Channel(ours), deque()
    with ours, theirs:
        theirs.sendall(encode(True) + encode("it is too small"))
        assert [rank.receive(60), rank.receive(60)] == [True, "it is too small"]


def test_a_rank_that_loads_gives_signs_of_life_which_are_no_messages() -> None:
    ours, theirs = socket.socketpair()
    rank = LocalRank.__new__(LocalRank)
    rank._channel, rank._inbox = Channel(ours), deque()
    with ours, theirs:
        pulse = Pulse(Channel(theirs), interval=0.001)
        before = Channel(ours).receive(None)
        assert set(before) == {None}
        pulse.send("it is too small")
        assert rank.receive(60) == "it is too small"
        pulse.end()
        Channel(theirs).send(True)
        assert rank.receive(60) is True
        with pytest.raises(TimeoutError):
            rank.receive(0)


def test_a_rank_that_is_stopped_while_it_loads_is_given_up(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(LocalRank):
        def __init__(self) -> None:
            super().__init__()
            os.kill(self.pid, signal.SIGSTOP)
            pids.append(self.pid)

    pids: list[int] = []
    monkeypatch.setattr(ranks, "LocalRank", Stopped)
    monkeypatch.setattr(ranks, "PATIENCE", 0.05)
    monkeypatch.setattr(local_rank, "_LEAVE", 0.05)
    with (
        pytest.raises(StartupError, match=r"Rank 1 gave no sign of life for .* stopped"),
        started(tiny_model),
    ):
        pass
    assert pids and not any(map(alive, pids))


def requests(lengths: tuple[int, ...] = (1, 9, 33, 50)) -> list[tuple[list[int], SamplingParams]]:
    numbers = random.Random(1)
    return [
        ([numbers.randrange(2, SHAPE["vocab_size"]) for _ in range(length)], SEEDED if i % 4 == 3 else GREEDY)
        for i, length in enumerate(lengths)
    ]


def traced(runner: Runner, **options: Any) -> tuple[Outcome, list[Tensor]]:
    """And the logits that its tokens were drawn from."""
    seen: list[Tensor] = []
    logits = runner.model.logits
    runner.model.logits = lambda hidden: seen.append(logits(hidden)) or seen[-1].clone()  # type: ignore[method-assign]
    try:
        return run(runner, requests(), budget=20, sequences=4, **options), seen
    finally:
        runner.model.logits = logits  # type: ignore[method-assign]


def agree(model: Path, size: int = 2, asked: list[str | None] | None = None, **options: Any) -> None:
    """``asked``: the requests' adapters."""
    alone = Runner(EngineConfig(model=model, kv_cache_blocks=60, threads=1, **options))
    expected, truth = traced(alone, adapters=asked)
    with started(model, size, **options) as runner:
        found, logits = traced(runner, adapters=asked)
        assert runner.cache.layers[0].keys.shape[1] * size == alone.cache.layers[0].keys.shape[1]
    assert found.tokens == expected.tokens
    for one, other in zip(logits, truth, strict=True):
        assert (one - other).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, {}),
        *slow(
            (2, {"num_key_value_heads": 4, "num_attention_heads": 8, "tie_word_embeddings": True}),
            (3, {"num_attention_heads": 6, "num_key_value_heads": 3}),
        ),
    ],
    ids=["groups", "tied-head", "three-ranks"],
)
def test_ranks_say_what_one_says(model_of: Callable[..., Path], size: int, changes: dict[str, Any]) -> None:
    agree(model_of(**changes), size)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *slow(
            ("Llama", {"attention_bias": True, "mlp_bias": True}),
            ("Qwen3", {"head_dim": 16}),
            ("Cohere2", {"sliding_window": 9, "logit_scale": 0.5}),
            ("Starcoder2", {}),
            ("Apertus", {}),
            ("Qwen2Moe", {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32}),
        ),
        ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
        ("Mixtral", {"num_local_experts": 4}),
        ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9}),
    ],
)
def test_families_are_shared_too(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    """Biases, norms of heads, experts."""
    save(tmp_path / "model", family, **changes)
    agree(tmp_path / "model")


@pytest.mark.parametrize(
    ("family", "named"),
    [("Glm4", "fused projections"), ("Olmo2", "over all heads"), ("Phi3", "fused projections")],
)
def test_what_cannot_be_shared_is_refused_by_name(tmp_path: Path, family: str, named: str) -> None:
    save(tmp_path, family)
    with pytest.raises(UnsupportedModel, match=f"{named}.*--tensor-parallel"):
        load_model(tmp_path, CPU, torch.float32, part=Part(TPGroup(0, 2)))


@pytest.mark.parametrize(("method", "width"), [*slow(("int8", 128), ("int4", 128)), ("int4", 96)])
def test_weights_in_fewer_bits_are_shared_too(model_of: Callable[..., Path], method: str, width: int) -> None:
    """Quantized, then cut, in the midst of a group if need be: the same weights as one process has. Activations keep 16
    bits, by the part that a rank has of them."""
    options: dict[str, Any] = {"kv_cache_blocks": 60, "threads": 1, "quantization": method}
    model = model_of(intermediate_size=width)
    _, truth = traced(Runner(EngineConfig(model=model, **options)))
    with started(model, **options) as runner:
        _, found = traced(runner)
    # Products of four bits round to bfloat16 on some processors, and those that are cut in a group do not.
    rough = 0.02 if method == "int4" else 2e-4
    assert (found[0] - truth[0]).abs().max() <= rough * truth[0].abs().max()


@pytest.mark.slow
def test_adapters_are_shared_too(tmp_path: Path, tiny_model: Path) -> None:
    weights = load_file(tiny_model / "model.safetensors")
    one = write_adapter(tmp_path / "one", weights, rank=3, seed=1)
    two = write_adapter(tmp_path / "two", weights, rank=8, seed=2, targets=("q_proj", "down_proj"))
    names = ["one", None, "two", "one"]
    agree(tiny_model, asked=names, adapters=(("one", one), ("two", two)))


def test_an_adapter_comes_and_goes_on_all_ranks(tmp_path: Path, tiny_model: Path) -> None:
    weights = load_file(tiny_model / "model.safetensors")
    folder = write_adapter(tmp_path / "one", weights, rank=3)
    prompts = requests((9, 20))
    alone = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=60, threads=1, adapters=(("one", folder),)))
    expected = run(alone, prompts, adapters=["one", None]).tokens
    with started(tiny_model, max_adapters=1) as runner:
        assert runner.shared_adapters is not None
        for key in ("one#1", "one#2"):
            runner.load_adapter(key, folder)
            assert run(runner, prompts, adapters=[key, None]).tokens == expected
            runner.shared_adapters.unload(key)


def test_ranks_page_adapters_alike(tmp_path: Path, tiny_model: Path) -> None:
    """Three adapters, one slot: each step is the same on all, though the second reads what the first has read."""
    weights = load_file(tiny_model / "model.safetensors")
    adapters = tuple(
        (str(seed), write_adapter(tmp_path / str(seed), weights, rank=seed, seed=seed)) for seed in (1, 2, 3)
    )
    prompts, names = requests((9, 20, 9, 20, 9)), ["1", "2", "3", "1", None]
    alone = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=60, threads=1, adapters=adapters))
    expected = run(alone, prompts, adapters=names).tokens
    options: dict[str, Any] = {"adapters": adapters, "max_adapters": 1, "max_cpu_adapters": 1}
    with started(tiny_model, **options) as runner:
        opened = open_adapters(EngineConfig(model=tiny_model, **options), runner)
        assert opened is not None
        memory, slots = opened
        for _ in range(2):
            assert run(runner, prompts, adapters=names, paged=(memory, slots)).tokens == expected
        assert slots.swaps >= 5 and memory.reads >= 5
        memory.forget("2")


def test_preempted_ranks_say_the_same(tiny_model: Path) -> None:
    alone = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=60, threads=1))
    long = SamplingParams(max_tokens=40, temperature=0)
    crowd = [(prompt, long) for prompt, _ in requests((10, 12, 9, 11, 15))]
    expected = run(alone, crowd).tokens
    with started(tiny_model) as runner:
        outcome = run(runner, crowd, blocks=8)
    assert outcome.preempted > 0
    assert outcome.tokens == expected


def test_drafts_and_choices_are_the_first_ranks_alone(tiny_model: Path) -> None:
    """Draft tokens are checked by all ranks, and blocks that choices share are copied on all."""
    prompt = ([7, 8, 9, 10] * 12)[:45]
    texts = []
    for size in (1, 2):
        with started(tiny_model, size, speculation="ngram") as runner:
            scheduler = Scheduler(
                BlockPool(60),
                block_size=16,
                max_num_seqs=8,
                max_batched_tokens=20,
                max_model_len=512,
                max_waiting=9,
                max_drafts=4,
            )
            params = [
                SamplingParams(max_tokens=20, temperature=t, seed=i) for i, t in enumerate((0, 0.9, 0.9))
            ]
            siblings = [Sibling(i, params[i]) for i in (1, 2)]
            scheduler.submit(Request(0, prompt, params[0], siblings=siblings))
            tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
            copies = drafts = 0
            while not scheduler.idle:
                plan = scheduler.schedule()
                copies += len(plan.copies)
                drafts += sum(scheduled.num_draft_tokens for scheduled in plan.requests)
                for output in scheduler.update(plan, runner.execute(plan)):
                    tokens[output.request_id] += output.tokens
            assert copies > 0
            assert drafts > 0
            texts.append(tokens)
    assert texts[0] == texts[1]


def test_ranks_agree_on_the_smallest_cache() -> None:
    class Three(LeaderRank):
        def __init__(self) -> None:
            self.layout = Layout(3)
            self._peers = []
            self.reported: list[object] = []

        def _receive_from(self, rank: int) -> int:
            return {1: 70, 2: 40}[rank]

        def _broadcast(self, message: object, ranks: int | None = None) -> None:
            self.reported.append(message)

    tp = Three()
    assert (tp.all_reduce_min(50), tp.reported) == (40, [40])
    assert (tp.all_reduce_min(30), tp.reported) == (30, [40, 30])


def test_what_cannot_be_shared_is_refused(model_of: Callable[..., Path]) -> None:
    model = model_of(num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    command = [sys.executable, "-m", "engine", "serve", "--port", "0", "--model", str(model)]
    ended = subprocess.run(
        [*command, "--tensor-parallel", "2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 1
    assert "2 ranks cannot share 3" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_more_ranks_than_gpus_are_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(StartupError, match="need as many GPUs; PyTorch finds 1"):
        LeaderRank(EngineConfig(model=tiny_model, tensor_parallel=2), torch.device("cuda"))


def test_a_start_that_fails_or_is_interrupted_leaves_no_ranks_behind(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every later start of this process would be told of a group that exists already."""
    config = EngineConfig(model=tiny_model, tensor_parallel=2, kv_cache_blocks=60, threads=1)

    def interrupt(*parts: object, **options: object) -> None:
        raise KeyboardInterrupt

    for where in ("engine.worker.loaded_model.load_model", "engine.worker.ranks.meet"):
        with monkeypatch.context() as patch:
            patch.setattr(where, interrupt)
            with pytest.raises(KeyboardInterrupt):
                Runner(config)
        assert not children()
    with started(tiny_model) as runner:
        assert run(runner, requests()).tokens


def children() -> list[str]:
    """Of this process, those that are ranks."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in pids if "rank_process" in Path(f"/proc/{pid}/cmdline").read_text()]


def server_name(server: EngineServer) -> str:
    return str(server.http.get("/v1/models").json()["data"][0]["id"])


def second_rank(server: EngineServer) -> int:
    pid = server.core_pid
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    (follower,) = children
    return follower


def test_a_server_of_two_ranks_and_the_death_of_either(long_model: Path, tmp_path: Path) -> None:
    options = ("--tensor-parallel", "2", "--kv-cache-blocks", "2000")
    prompt, params = [5, 6, 7, 90, 91], SamplingParams(max_tokens=20, temperature=0)
    alone = Runner(EngineConfig(model=long_model, kv_cache_blocks=60, threads=1))
    expected = run(alone, [(prompt, params)]).tokens[0]
    with EngineServer(long_model, *options, log=tmp_path / "two.log") as server:
        body = {"model": server_name(server), "prompt": prompt, "max_tokens": 20, "temperature": 0}
        (choice,) = server.post("/v1/completions", **body).json()["choices"]
        assert choice["text"] == Tokenizer(long_model).decode(expected)
        body = {"model": server_name(server), "prompt": "a", "max_tokens": 20_000, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(second_rank(server), signal.SIGKILL)
            rest = "".join(lines)
        assert "engine_died" in rest
        assert server.process.wait(300) == 1
        assert "rank 1 died" in server.log
    with EngineServer(long_model, *options, log=tmp_path / "three.log") as server:
        follower = second_rank(server)
        os.kill(server.core_pid, signal.SIGKILL)
        eventually(lambda: not alive(follower))
        assert server.process.wait(300) == 1


@pytest.mark.slow
def test_an_idle_server_leaves_when_a_rank_dies_and_ends_all_when_told(
    tiny_model: Path, tmp_path: Path
) -> None:
    options = ("--tensor-parallel", "2", "--kv-cache-blocks", "60")
    with EngineServer(tiny_model, *options, log=tmp_path / "one.log") as server:
        os.kill(second_rank(server), signal.SIGKILL)
        assert server.process.wait(300) == 1
    with EngineServer(tiny_model, *options, log=tmp_path / "two.log") as server:
        follower = second_rank(server)
        server.signal(signal.SIGTERM)
        assert server.process.wait(300) == 0
        eventually(lambda: not alive(follower))
        assert "died" not in server.log


def test_weights_of_the_tiny_model_are_no_multiples(tiny_model: Path) -> None:
    """Ranks with the same part would go unnoticed if parts were alike."""
    weight = make_weights(SHAPE)["model.layers.0.self_attn.q_proj.weight"]
    assert not torch.allclose(*weight.chunk(2))
