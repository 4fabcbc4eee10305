"""What KV memory in tiers is worth: a conversation that returns, and a recorded day by size of tier.

    python -m benchmarks.kv_tiers conversation --model FILE.gguf [--tokens 8192] [--repeats 3]
    python -m benchmarks.kv_tiers mooncake [--requests 2000] [--blocks 25000] [--tiers 1,3,15]

``conversation`` computes a prompt on this machine, evicts it by others, and lets it return: from the device, from host
memory, and after a restart from the file, which the operating system may still have in memory (``page cache``). Seconds
are to the first token, medians; ``equal``: whether the answers are.

``mooncake`` replays Mooncake's trace (https://github.com/kvcache-ai/Mooncake) through the engine's own scheduler as
``benchmarks.replay`` does, with its cost model of an eight-billion model on a large GPU, whose block of 16 tokens has
2 MiB. Blocks take the time that they took here: first the engine's own copier copies such blocks to and from host
memory and a file of this machine, and its bandwidths are the simulation's. Copies to the device add to their step;
those from it have a stream of their own. Host memory has so many times the device's blocks (``--tiers``), the disk
none or four times as many as that.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.replay import DATA, SPEED, Arrival, Replay, Result, best_hits, made_up, traces
from engine.core.plan import Plan
from engine.core.tiers.copier import Copied
from engine.core.tiers.tier import Tier
from engine.core.tiers.tiered_cache import TierSet

BLOCK_BYTES = 2 * 2**20
"""Of 16 tokens: 32 layers, 8 KV heads of 128 dimensions, keys and values in 16 bits."""
TRACE = "mooncake_conversation"


class SimulatedCopier:
    """Takes as long as bytes over bandwidth say, by the clock of a replay."""

    block_bytes = BLOCK_BYTES

    def __init__(self, load_bandwidth: float, read_bandwidth: float, write_bandwidth: float) -> None:
        """Bytes a second."""
        self.load_bandwidth = load_bandwidth
        self.read_bandwidth = read_bandwidth
        self._write_bandwidth = write_bandwidth
        self.replay: Replay | None = None
        self.seconds = 0.0
        """Of copies to the device since the last step."""
        self._ends = {True: 0.0, False: 0.0}
        """When the thread that reads, and the one that writes, are free again."""
        self._under_way: dict[bool, deque[tuple[float, Copied]]] = {True: deque(), False: deque()}

    def save(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Beside the steps, by a stream of its own."""

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.seconds += len(pairs) * BLOCK_BYTES / self.load_bandwidth

    def write(self, key: bytes, slot: int, place: int, depth: int) -> None:
        self._begin(Copied(key, slot, place, read=False), BLOCK_BYTES / self._write_bandwidth)

    def read(self, key: bytes, place: int, slot: int) -> None:
        self._begin(Copied(key, slot, place, read=True), BLOCK_BYTES / self.read_bandwidth)

    def copied(self) -> list[Copied]:
        found = []
        for under_way in self._under_way.values():
            while under_way and under_way[0][0] <= self._now:
                found.append(under_way.popleft()[1])
        return found

    def wait(self, seconds: float) -> None:
        ends = [under_way[0][0] for under_way in self._under_way.values() if under_way]
        if self.replay is not None:
            self.replay.now = max(self._now, min(ends, default=self._now))

    def close(self) -> None:
        """There is nothing to end."""

    @property
    def _now(self) -> float:
        return self.replay.now if self.replay is not None else 0.0

    def _begin(self, copied: Copied, seconds: float) -> None:
        self._ends[copied.read] = max(self._now, self._ends[copied.read]) + seconds
        self._under_way[copied.read].append((self._ends[copied.read], copied))


class TieredReplay(Replay):
    def __init__(
        self, arrivals: list[Arrival], copier: SimulatedCopier, tiers: TierSet, **options: Any
    ) -> None:
        super().__init__(arrivals, tiers=tiers, **options)
        self._copier = copier
        copier.replay = self

    def _compute(self, plan: Plan) -> float:
        copying, self._copier.seconds = self._copier.seconds, 0.0
        return super()._compute(plan) + copying


def replayed(
    arrivals: list[Arrival], bandwidths: tuple[float, float, float], host: int, disk: int, **options: Any
) -> Result:
    """``host``, ``disk``: blocks, of which 0 are none."""
    if not host:
        return Replay(arrivals, **options).run()
    copier = SimulatedCopier(*bandwidths)
    tiers = TierSet(Tier(host), Tier(disk) if disk else None, copier)
    return TieredReplay(arrivals, copier, tiers, **options).run()


def measured() -> tuple[float, float, float]:
    """Bytes a second that the engine's copier needs here for blocks of ``BLOCK_BYTES``: to load, to read, to write."""
    import torch

    from engine.worker.tiers.block_copier import BlockCopier
    from engine.worker.tiers.block_file import BlockFile

    count = 64
    with tempfile.TemporaryDirectory() as folder:
        file = BlockFile(Path(folder), {}, BLOCK_BYTES, (count + 1) * BLOCK_BYTES)
        layers = [torch.ones(count, BLOCK_BYTES // 64, dtype=torch.uint8) for _ in range(64)]
        copier = BlockCopier(layers, count, file)
        copier.save([(block, block) for block in range(count)])
        for _ in range(3):
            copier.load([(block, block) for block in range(count)])
        began = time.perf_counter()
        for block in range(count):
            copier.write(bytes([block]) * 16, block, block, 1)
        _await(copier, count)
        wrote = time.perf_counter() - began
        for block in range(count):
            copier.read(bytes([block]) * 16, block, block)
        _await(copier, count)
        found = copier.load_bandwidth, copier.read_bandwidth, count * BLOCK_BYTES / wrote
        copier.close()
    return found


def _await(copier: Any, count: int) -> None:
    while count:
        copier.wait(1.0)
        count -= len(copier.copied())


def mooncake(options: argparse.Namespace) -> None:
    arrivals = traces(options.data, options.requests).get(TRACE)
    if arrivals is None:
        print(f"{TRACE} is not in {options.data}: a made-up trace is replayed.\n")
        arrivals = made_up(options.requests)
    bandwidths = options.bandwidths or measured()
    told = "load {:.1f}, read {:.1f}, write {:.1f} GB/s".format(*(one / 1e9 for one in bandwidths))
    print("given:" if options.bandwidths else "measured:", told, flush=True)
    best = best_hits(arrivals, 16) / sum(one.length for one in arrivals)
    print(f"{'host':>8} {'disk':>8} {'hits':>6} {'best':>6} {'TTFT p50':>9} {'p99':>7} {'queue p50':>9}")
    sizes = [(0, 0)]
    for times in options.tiers:
        sizes += [(times * options.blocks, 0), (times * options.blocks, 4 * times * options.blocks)]
    for host, disk in sizes:
        found = replayed(
            arrivals, bandwidths, host, disk, blocks=options.blocks, speed=SPEED[TRACE], check=options.check
        )
        print(
            f"{host:8d} {disk:8d} {found.hit_rate:6.1%} {best:6.1%} {found.ttft_p50_s:8.2f}s {found.ttft_p99_s:6.1f}s "
            f"{found.queue_p50_s:8.2f}s",
            flush=True,
        )


def conversation(options: argparse.Namespace) -> None:
    from engine.config import EngineConfig
    from engine.core.sampling_params import SamplingParams
    from engine.offline import OfflineEngine
    from engine.weights.source import locate

    tokens, rng = options.tokens, Random(0)
    text = [rng.randrange(1000, 20_000) for _ in range(tokens)]
    blocks = tokens // 16 + 40
    params = SamplingParams(max_tokens=8, temperature=0)
    seconds: dict[str, list[float]] = {}
    answers: dict[str, set[tuple[int, ...]]] = {}

    with tempfile.TemporaryDirectory() as folder:

        def opened() -> OfflineEngine:
            config = EngineConfig(
                model=locate(str(options.model)),
                kv_cache_blocks=blocks,
                max_model_len=tokens + 128,
                host_kv_memory=options.host,
                disk_kv=Path(folder) / "kv",
                disk_kv_size=options.host,
            )
            return OfflineEngine(config, prefix_caching=True)

        def ask(engine: OfflineEngine, name: str, prompt: list[int]) -> None:
            _, (answer,) = engine.generate([(prompt, params)])
            seconds.setdefault(name, []).append(answer.times[0])
            answers.setdefault(name, set()).add(tuple(answer.tokens))

        engine = opened()
        for number in range(options.repeats):
            # Another beginning each time, so that nothing is known of it; the same end.
            first = [100 + number, *text[1:]]
            ask(engine, "computed anew", first)
            ask(engine, "device", first)
            ask(engine, "evicted by another", [200 + number, *text[1:]])
            ask(engine, "host memory", first)
            engine.settle()
        engine.close()
        for number in range(options.repeats):
            del engine
            gc.collect()
            engine = opened()
            ask(engine, "disk, after a restart", [100 + number, *text[1:]])
            engine.close()
    anew = statistics.median(seconds["computed anew"])
    print(f"{'from':<24} {'seconds':>8} {'times as fast':>13} {'equal':>6}")
    for name in ("computed anew", "device", "host memory", "disk, after a restart"):
        taken = statistics.median(seconds[name])
        equal = answers[name] == answers["computed anew"]
        print(f"{name:<24} {taken:8.2f} {anew / taken:13.1f} {equal!s:>6}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("conversation")
    one.add_argument("--model", required=True)
    one.add_argument("--tokens", type=int, default=8192)
    one.add_argument("--repeats", type=int, default=3)
    one.add_argument("--host", type=int, default=2**30, help="bytes of host memory, and of the file")
    one.set_defaults(run=conversation)
    two = commands.add_parser("mooncake")
    two.add_argument("--requests", type=int, default=2000)
    two.add_argument("--blocks", type=int, default=25_000, help="on the device")
    two.add_argument("--tiers", type=lambda text: [int(part) for part in text.split(",")], default=[1, 3, 15])
    two.add_argument(
        "--bandwidths",
        type=lambda text: tuple(float(part) * 1e9 for part in text.split(",")),
        metavar="LOAD,READ,WRITE",
        help="GB/s, in place of those measured here, where something else runs",
    )
    two.add_argument("--check", type=int, default=0, help="steps after which integrity is checked; 0: never")
    two.add_argument("--data", type=Path, default=DATA)
    two.set_defaults(run=mooncake)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
