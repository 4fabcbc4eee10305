"""Ranks that are a step ahead, and ranks that replay: with real sums between CPUs, and without a GPU."""

from __future__ import annotations

import socket
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.channel import Channel
from engine.config import EngineConfig
from engine.worker import rank_process
from engine.worker.batch import BatchBuilder
from engine.worker.local_rank import LocalRank
from engine.worker.ranks import told
from engine.worker.recordings import Recordings
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength
from tests.engine.heads import write_eagle, write_medusa
from tests.engine.steps import run
from tests.engine.worker.test_overlap import REQUESTS
from tests.engine.worker.triton_run import Recorder

CONFIG: dict[str, Any] = {"kv_cache_blocks": 60, "threads": 1, "max_num_seqs": 8}


SCARCE = {"blocks": 10, "budget": 64, "sequences": 16}


class RankHere(LocalRank):
    """In a thread, so that it can be given what a CPU lacks."""

    def __init__(self) -> None:
        self._socket, self._theirs = socket.socketpair()
        self._channel, self._inbox = Channel(self._socket), deque()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        channel = Channel(self._theirs)
        try:
            (join,) = channel.receive(None)
            rank_process._run(join, channel)
        except EOFError:
            pass
        finally:
            self._theirs.close()

    def wait(self) -> bool:
        self._thread.join()
        return False

    def close(self) -> None:
        self.stop()
        self._thread.join()


def test_what_one_samples_feeds_the_next_step_of_all(tiny_model: Path) -> None:
    """Of requests of all kinds, with late ones, and where somebody has to give way."""
    alone = Runner(EngineConfig(model=tiny_model, **CONFIG))
    runner = Runner(EngineConfig(model=tiny_model, tensor_parallel=2, overlap="on", **CONFIG))
    try:
        assert runner.overlapping
        for options in ({"sequences": 4, "budget": 16, "late": 2}, SCARCE):
            expected = run(alone, REQUESTS, **options)
            found = run(runner, REQUESTS, ahead=True, **options)
            assert found.tokens == expected.tokens
            assert found.ahead > found.steps / 2
            assert (options is SCARCE) == (found.preempted > 0)
    finally:
        runner.ranks.close()


@pytest.mark.parametrize("speculation", ["draft", "eagle"])
def test_draft_tokens_of_one_feed_the_next_step_of_all(
    tiny_model: Path, tmp_path: Path, speculation: str
) -> None:
    alone = Runner(EngineConfig(model=tiny_model, **CONFIG))
    draft = tiny_model if speculation == "draft" else write_eagle(tmp_path / "head")
    config = EngineConfig(
        model=tiny_model,
        tensor_parallel=2,
        overlap="on",
        speculation=speculation,
        draft_model=draft,
        **CONFIG,
    )
    runner = Runner(config)
    try:
        assert runner.feeds_drafts and runner.speculation is not None
        runner.speculation.policy = FixedDraftLength(3)
        expected = run(alone, REQUESTS, sequences=4, budget=24, late=1)
        found = run(runner, REQUESTS, sequences=4, budget=24, late=1, ahead=True)
        assert found.tokens == expected.tokens
        assert found.ahead > found.steps / 2
        # What drafts is what is drafted for.
        assert speculation != "draft" or runner.speculation.acceptance > 0.5
    finally:
        runner.ranks.close()


@pytest.mark.parametrize("speculation", ["off", "ngram", "medusa"])
def test_all_ranks_replay_the_same_steps(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speculation: str
) -> None:
    """With the recorder that computes again in place of a GPU's."""
    monkeypatch.setattr("engine.worker.ranks.LocalRank", RankHere)
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    recorders: list[Recorder] = []

    def capture(*, beside_threads: bool) -> Recorder:
        assert beside_threads
        recorders.append(Recorder())
        return recorders[-1]

    monkeypatch.setattr("engine.worker.recordings.Capture", capture)
    load = Runner._load

    def load_as_on_a_gpu(self: Runner, config: EngineConfig, device: torch.device) -> None:
        load(self, config, device)
        self.recordings.on_gpu = self.recordings.replays
        self._batches = BatchBuilder(self.cache, self.device, keeping=True)

    config = EngineConfig(model=tiny_model, speculation=speculation, max_drafts=3, **CONFIG)
    if speculation == "medusa":
        config = replace(config, draft_model=write_medusa(tmp_path / "head"))
    expected = run(Runner(config), REQUESTS)
    monkeypatch.setattr(Runner, "_load", load_as_on_a_gpu)
    runner = Runner(replace(config, tensor_parallel=2, overlap="on"))
    try:
        runner.warm_up()
        found = run(runner, REQUESTS, ahead=speculation == "off")
        assert found.tokens == expected.tokens
        # The other rank has nothing to say, and so has perhaps not replayed the last one.
        runner.ranks.close()
        if speculation == "medusa":
            # Rank 0 needs hidden states that a recording does not keep, so the other must not replay either.
            assert not recorders
            return
        assert len(recorders) == 2
        assert recorders[0].replays == recorders[1].replays > found.steps / 3
    finally:
        runner.ranks.close()


def test_where_one_cannot_record_none_replays(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.worker.ranks.LocalRank", RankHere)
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    monkeypatch.setattr("engine.worker.recordings.Capture", lambda **options: Recorder())
    load, record = Runner._load, Recordings.record

    def load_as_on_a_gpu(self: Runner, config: EngineConfig, device: torch.device) -> None:
        load(self, config, device)
        self.recordings.on_gpu = True

    def record_on_one(self: Recordings, recorder: Any) -> None:
        record(self, recorder)
        if self._ranks.rank == 1:
            self.graphs = None
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Runner, "_load", load_as_on_a_gpu)
    monkeypatch.setattr(Recordings, "record", record_on_one)
    runner = Runner(EngineConfig(model=tiny_model, tensor_parallel=2, **CONFIG))
    try:
        runner.warm_up()
        assert runner.recordings.graphs is None
        assert run(runner, REQUESTS[:2]).tokens
    finally:
        runner.ranks.close()


def test_what_the_other_ranks_are_told(tiny_model: Path) -> None:
    """They have no draft model, but steps with as many tokens."""
    config = EngineConfig(
        model=tiny_model,
        tensor_parallel=2,
        speculation="draft",
        draft_model=tiny_model,
        draft_quantization="int8",
        adapters=(("one", tiny_model),),
    )
    found = told(config)
    assert (found.draft_model, found.draft_quantization, found.adapters) == (None, None, ())
    assert (found.speculation, found.max_drafts, found.max_adapters) == ("draft", config.max_drafts, 1)
