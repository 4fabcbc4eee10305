"""A step that runs out of memory costs requests at most, not the engine: with the real loop over a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.channel import Channel
from engine.config import EngineConfig
from engine.core.request import Sibling
from engine.core.sampling_params import Grammar, SamplingParams
from engine.engine_core import EngineCore
from engine.errors import OutOfMemory, StartupError
from engine.messages import Outputs, Step, Submit
from engine.worker.runner import Runner
from tests.engine.steps import run

REASON = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.00 GiB"
GREEDY = SamplingParams(max_tokens=12, temperature=0)


class Client:
    """The other process's end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.tokens: dict[int, list[int]] = {}
        self.ended: set[int] = set()
        self.refused: dict[int, str] = {}
        self.last: Step | None = None

    def ask(self, *requests: tuple[list[int], SamplingParams], siblings: int = 0) -> None:
        first = len(self.tokens)
        for number, (prompt, params) in enumerate(requests, first):
            others = [Sibling(1000 * (i + 1) + number, params) for i in range(siblings)]
            self.tokens |= {number: [], **{one.id: [] for one in others}}
            self._channel.send(Submit(number, prompt, params, time.monotonic(), siblings=others))
        while self.tokens.keys() - self.ended - self.refused.keys():
            for outputs in self._channel.receive(None):
                self._take(outputs)

    def _take(self, outputs: Outputs) -> None:
        self.last = outputs.step
        for output in outputs.requests:
            self.tokens[output.request_id] += output.tokens
            if output.finish is not None:
                self.ended.add(output.request_id)
        self.refused |= {refusal.request_id: refusal.error for refusal in outputs.refusals}
        for refusal in outputs.refusals:
            assert "20.00 GiB" not in OutOfMemory(refusal.reason).message
            assert "CUDA out of memory" in OutOfMemory(refusal.reason).message


@contextmanager
def looping(
    model: Path, fails: Callable[[list[int]], bool], **options: Any
) -> Iterator[tuple[Client, EngineCore]]:
    """``fails``: whether a step of these tokens finds no memory. It has computed everything by then."""
    here, there = socket.socketpair()
    config = EngineConfig(
        model=model, max_num_seqs=4, kv_cache_blocks=100, threads=1, check_integrity=True, **options
    )
    core = EngineCore(config, Channel(there))
    forward = core._runner.model.forward

    def failing(tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        hidden = forward(tokens, *rest)
        if fails(tokens.tolist()):
            raise torch.OutOfMemoryError(REASON)
        return hidden

    core._runner.model.forward = failing  # type: ignore[method-assign]

    def work() -> None:
        with suppress(EOFError):
            core.run()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield Client(Channel(here)), core
    finally:
        here.close()
        thread.join(60)
        there.close()


@pytest.mark.parametrize("options", [{"speculation": "ngram"}, {"overlap": "on"}])
def test_steps_become_smaller_and_nobody_loses_a_token(
    options: dict[str, str], tiny_model: Path, tiny_runner: Runner
) -> None:
    params = [
        GREEDY,
        SamplingParams(max_tokens=12, seed=3, repetition_penalty=1.1),
        SamplingParams(max_tokens=12, temperature=0, grammar=Grammar("regex", "[a-z ]{40,}")),
        SamplingParams(max_tokens=12, temperature=0, logprobs=2),
    ]
    lengths = [150, 90, 33, 61]
    requests = [(list(range(2, 2 + n)), one) for n, one in zip(lengths, params, strict=True)]
    with looping(tiny_model, lambda tokens: len(tokens) > 40, **options) as (client, core):
        client.ask(*requests)
        assert client.last is not None and client.last.out_of_memory > 0
        assert core._scheduler.max_batched_tokens <= 40
        assert not client.refused
        assert client.tokens == run(tiny_runner, requests).tokens
        before = client.last.out_of_memory
        client.ask((list(range(2, 100)), GREEDY))
        assert client.last.out_of_memory == before


@pytest.mark.parametrize("chunk", [8, 29, 512])
@pytest.mark.parametrize("siblings", [0, 1])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_where_no_step_is_small_enough_a_request_goes(
    overlap: str, siblings: int, chunk: int, tiny_model: Path, tiny_runner: Runner
) -> None:
    """``chunk``: with 8, one that was preempted computes its answer anew beside the large one."""
    requests = [([5, 6, 7], GREEDY), ([90] * 30, GREEDY)]
    large = ([*range(2, 60), 200, 9], GREEDY)
    with looping(tiny_model, lambda tokens: 200 in tokens, overlap=overlap) as (client, core):
        core._prefill_chunks.chunk = lambda _: chunk  # type: ignore[method-assign]
        client.ask(*requests, large, siblings=siblings)
        assert client.refused == dict.fromkeys([2, *([1002] if siblings else [])], "OutOfMemory")
        client.ask(requests[0])
        expected = run(tiny_runner, requests).tokens
        assert {number: client.tokens[number] for number in (0, 1)} == expected
        assert client.tokens[max(client.ended - {1000, 1001})] == expected[0]


def test_other_errors_are_not_taken_for_it(tiny_runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("of another kind")

    monkeypatch.setattr(tiny_runner.model, "forward", broken)
    with pytest.raises(RuntimeError, match="of another kind"):
        run(tiny_runner, [([5], GREEDY)])


def test_a_start_without_memory_says_what_to_do(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError(REASON)

    monkeypatch.setattr(Runner, "_allocate", full)
    with pytest.raises(StartupError, match=r"--kv-cache-memory.*--max-batched-tokens"):
        Runner(EngineConfig(model=tiny_model, threads=1))
