"""The KV cache is fitted into what a trial leaves: with a device whose memory is counted here."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.plan import Plan, SamplerOutput
from engine.errors import StartupError
from engine.worker.kv_cache_size import MARGIN, available_bytes
from engine.worker.recordings import Recordings
from engine.worker.runner import Runner


class Device:
    """So much memory, of which ``needed`` is taken once the largest step has run and the graphs are recorded."""

    def __init__(self, total: int, needed: int = 0) -> None:
        self._total, self._needed = total, needed
        self.taken = 0
        self.asked: list[str] = []

    def total(self) -> int:
        return self._total

    def free(self) -> int:
        self.asked.append("free")
        return self._total - self.taken

    def left(self) -> int:
        self.asked.append("left")
        return self._total - self.taken


def test_the_cache_gets_what_is_left_but_for_a_margin() -> None:
    device = Device(1000)
    device.taken = 300

    def trial() -> int:
        device.taken += 40 + 110
        return 40

    assert available_bytes(device, trial) == 700 - 110 - int(MARGIN * 1000)
    assert device.asked == ["free", "left"]
    assert available_bytes(Device(10), lambda: 0) >= 0


def test_a_runner_counts_its_blocks_after_graphs_and_the_largest_step(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    device = Device(2_000_000)
    largest = 0

    def compute(runner: Runner, plan: Plan) -> SamplerOutput:
        nonlocal largest
        largest = max(largest, plan.tokens)
        return SamplerOutput()

    def record(recordings: Recordings) -> None:
        done.append("graphs")
        device.taken += 500_000 + recordings.cache.blocks * recordings.loaded.block_bytes

    def left() -> int:
        done.append("measured")
        return device.total() - device.taken

    monkeypatch.setattr(Runner, "_compute", compute)
    monkeypatch.setattr(Recordings, "record_on_gpu", record)
    monkeypatch.setattr("engine.worker.runner.on_triton", lambda x: True)
    monkeypatch.setattr(device, "left", left)
    monkeypatch.setattr("engine.worker.runner.sample_masked", lambda *_: None)
    options = {"model": tiny_model, "threads": 1, "max_num_seqs": 8, "max_batched_tokens": 100}
    runner = Runner(EngineConfig(**options), meter=device)
    assert done == ["graphs", "measured"] and largest == 100
    wanted = 2_000_000 - 500_000 - int(MARGIN * 2_000_000)
    assert runner.cache.blocks == wanted // runner.block_bytes
    assert not runner.recordings.graphs
    # Never more than all sequences need.
    device = Device(10**12)
    monkeypatch.setattr(device, "left", lambda: 10**12)
    assert Runner(EngineConfig(**options), meter=device).cache.blocks == 8 * 512 // 16
    # Others have nearly all of it.
    device = Device(10**9)
    device.taken = 10**9 - 400_000
    with pytest.raises(StartupError, match="no memory left for a KV cache: lower --max-batched-tokens"):
        Runner(EngineConfig(**options), meter=device)
