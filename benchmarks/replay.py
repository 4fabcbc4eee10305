"""What would the scheduler have made of a real day? It replays recorded arrivals with a runner that only takes time.

    python -m benchmarks.replay [--requests 2000] [--blocks 25000] [--speed 1.0] [--max-itl-ratio 2.0] [--json FILE]

The traces: Azure's conversation and code (https://github.com/Azure/AzurePublicDataset), which tell lengths only, so
that no two prompts have anything in common; and Mooncake's conversation (https://github.com/kvcache-ai/Mooncake),
which tells a hash for each 512 tokens of a prompt and what stands before them. Where they are not there, a made-up one
is replayed. Seconds are those of a cost model, not of this machine:

    a step = 8 ms + 25 µs for each token of a prompt + 50 µs for each sequence that decodes

which is about a model of eight billion parameters on one large GPU. Arrivals are sped up or slowed down so that it is
kept busy (``SPEED``; ``--speed`` is on top of it). Each conversation belongs to one of three tiers, drawn at random.
Where prompts have something in common, the second row is without the tiers' weights; elsewhere it is without the
bound on how much longer prompts may make the steps of those that decode, whose price is the waiting. ``hits`` are the
prompts' tokens that were found in the prefix cache when a request began, ``best`` those that a cache without bounds
would have had. Only the last column is measured here: the median of the processor time of ``schedule`` and ``update``.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, RequestOutput, SamplerOutput
from engine.core.prefill_chunk import PrefillChunkController
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.tiers.tiered_cache import TierSet
from engine.errors import ContextLengthExceeded, QueueFull

DATA = Path(__file__).parents[2] / "shared/data/traces"
SPEED = {"azure_conv": 3.0, "azure_code": 2.0, "mooncake_conversation": 0.3}
HASHED = 512
"""Tokens that a hash of a trace stands for."""
BASE, PREFILL, DECODE = 8e-3, 25e-6, 50e-6
"""Seconds: of a step, of a prompt's token, of a sequence that decodes."""
ANSWER = 2**32 - 1
"""The token of all answers: no prompt has it."""


@dataclass(frozen=True, slots=True)
class Tier:
    name: str
    share: float
    weight: float
    priority: int


TIERS = (Tier("free", 0.6, 1.0, 0), Tier("pro", 0.3, 4.0, 1), Tier("enterprise", 0.1, 16.0, 2))


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    """Seconds."""
    hashes: tuple[int, ...]
    """One for each 512 tokens; the same number stands for the same tokens after the same others."""
    length: int
    generate: int

    @property
    def prompt(self) -> list[int]:
        tokens: list[int] = []
        for number in self.hashes:
            tokens += range(number * HASHED, (number + 1) * HASHED)
        del tokens[self.length :]
        return tokens

    @property
    def conversation(self) -> int:
        """The first hash is often a system prompt's."""
        return self.hashes[min(1, len(self.hashes) - 1)]


def azure(path: Path, most: int) -> Iterator[Arrival]:
    number, first = 0, None
    with path.open() as lines:
        for row, _ in zip(csv.DictReader(lines), range(most), strict=False):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or at
            length = max(1, int(row["ContextTokens"]))
            hashes = tuple(range(number, number - (-length // HASHED)))
            number += len(hashes)
            yield Arrival((at - first).total_seconds(), hashes, length, max(1, int(row["GeneratedTokens"])))


def mooncake(path: Path, most: int) -> Iterator[Arrival]:
    with path.open() as lines:
        for line, _ in zip(lines, range(most), strict=False):
            row = json.loads(line)
            hashes, at = tuple(row["hash_ids"]), row["timestamp"] / 1000
            yield Arrival(
                at, hashes, min(row["input_length"], HASHED * len(hashes)), max(1, row["output_length"])
            )


def made_up(requests: int, *, seed: int = 0, rate: float = 4.0) -> list[Arrival]:
    """Conversations that begin with one of three system prompts and grow by a turn every minute or so."""
    rng, number, at, open_chats, found = Random(seed), 3, 0.0, [], []
    for _ in range(requests):
        at += rng.expovariate(rate)
        if open_chats and rng.random() < 0.7:
            chat = open_chats[rng.randrange(len(open_chats))]
        else:
            chat = [rng.randrange(3)]
            open_chats = [*open_chats[-40:], chat]
        grown = rng.randint(1, 6)
        chat += range(number, number + grown)
        number += grown
        length = HASHED * len(chat) - rng.randrange(HASHED)
        found.append(Arrival(at, tuple(chat), length, rng.randint(1, 300)))
    return found


def best_hits(arrivals: list[Arrival], block_size: int, hashed: int = HASHED) -> int:
    """Prompt tokens that a cache without bounds would have, were each prompt computed before the next arrives.
    ``hashed``: tokens that a hash stands for."""
    seen: dict[int, int] = {}
    hits = 0
    for arrival in arrivals:
        known = 0
        for number in arrival.hashes:
            known += seen.get(number, 0)
            if seen.get(number, 0) < hashed:
                break
        hits += min(known, arrival.length - 1) // block_size * block_size
        for index, number in enumerate(arrival.hashes):
            seen[number] = max(seen.get(number, 0), min(hashed, arrival.length - index * hashed))
    return hits


@dataclass
class Result:
    requests: int = 0
    refused: int = 0
    simulated_s: float = 0.0
    steps: int = 0
    queue_p50_s: float = 0.0
    queue_p99_s: float = 0.0
    ttft_p50_s: float = 0.0
    ttft_p99_s: float = 0.0
    hit_rate: float = 0.0
    best_hit_rate: float = 0.0
    hit_rate_by_tier: dict[str, float] = field(default_factory=dict)
    preempted: int = 0
    kv_use_mean: float = 0.0
    kv_use_max: float = 0.0
    scheduler_ms: float = 0.0
    scheduler_p99_ms: float = 0.0


@dataclass(slots=True)
class Seen:
    arrival: Arrival
    request: Request
    tier: Tier
    queued: float = 0.0
    ttft: float = 0.0
    hit: int = 0


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Replay:
    """A server with a clock of its own."""

    def __init__(
        self,
        arrivals: list[Arrival],
        *,
        blocks: int = 25_000,
        block_size: int = 16,
        sequences: int = 128,
        budget: int = 2048,
        waiting: int = 100_000,
        speed: float = 1.0,
        weights: bool = True,
        priorities: bool = False,
        max_itl_ratio: float = 2.0,
        prefix_caching: bool = True,
        tiers: TierSet | None = None,
        check: int = 0,
    ) -> None:
        """``max_itl_ratio``: by how much a chunk of a prompt may lengthen the steps of those that decode; 0 is off.
        ``tiers``: KV memory beyond the device's.
        ``check``: steps after which the integrity of the blocks is checked again and again; 0 is never."""
        self.now = 0.0
        self.scheduler = Scheduler(
            BlockPool(blocks),
            block_size=block_size,
            max_num_seqs=sequences,
            max_batched_tokens=budget,
            max_model_len=blocks * block_size,
            max_waiting=waiting,
            clock=lambda: self.now,
            prefix_caching=prefix_caching,
            tiers=tiers,
        )
        self._arrivals = arrivals
        self._speed = speed
        self._weights = weights
        self._priorities = priorities
        self._prefill_chunk = PrefillChunkController(max_itl_ratio, budget)
        self._check = check
        self._seen: dict[int, Seen] = {}
        self._refused = 0
        self._preempted = 0
        self._uses: list[tuple[float, float]] = []
        """Seconds, and the share of the blocks that was held for them."""
        self._costs: list[float] = []

    def run(self) -> Result:
        """Until all have ended."""
        scheduler, following = self.scheduler, 0
        while following < len(self._arrivals) or not scheduler.idle:
            if scheduler.idle:
                self.now = max(self.now, self._arrivals[following].at / self._speed)
            while following < len(self._arrivals) and self._arrivals[following].at / self._speed <= self.now:
                self._submit(following, self._arrivals[following])
                following += 1
            if not scheduler.idle:
                self._step()
        return self._result()

    def _submit(self, number: int, arrival: Arrival) -> None:
        # Hashes that follow one another must not fall into tiers that follow one another.
        lot = Random(arrival.conversation).random()
        tier = TIERS[0] if lot < TIERS[0].share else TIERS[1] if lot < 1 - TIERS[2].share else TIERS[2]
        request = Request(
            number,
            arrival.prompt,
            SamplingParams(arrival.generate),
            priority=tier.priority if self._priorities else 0,
            weight=tier.weight if self._weights else 1.0,
            submitted=arrival.at / self._speed,
        )
        try:
            self.scheduler.submit(request)
        except (ContextLengthExceeded, QueueFull):
            self._refused += 1
        else:
            self._track(number, arrival, request, tier)

    def _track(self, number: int, arrival: Arrival, request: Request, tier: Tier = TIERS[0]) -> None:
        self._seen[number] = Seen(arrival, request, tier)

    def _token(self, number: int, generated: int) -> int:
        return ANSWER

    def _expired(self, number: int) -> None:
        """It was dropped, as its deadline passed."""

    def _took(self, output: RequestOutput) -> None:
        """It gained a token."""

    def _step(self) -> None:
        scheduler = self.scheduler
        scheduler.prefill_chunk = self._prefill_chunk.chunk(scheduler.num_prefills)
        began = time.thread_time()
        plan = scheduler.schedule()
        planned = time.thread_time() - began
        for number, _ in plan.expired:
            self._expired(number)
        if not plan.requests:
            if scheduler.idle:
                return
            if scheduler.queues.loading:
                scheduler.wait(1.0)
                return
            raise RuntimeError("there are requests, but none of them can run")
        for number in plan.admitted:
            seen = self._seen[number]
            seen.queued = self.now - seen.request.submitted
            seen.hit = seen.request.computed
        seconds = self._compute(plan)
        self.now += seconds
        sampled = SamplerOutput(
            {
                one.request_id: [self._token(one.request_id, len(one.history) - one.prompt_length)]
                for one in plan.requests
                if one.sampling is not None
            }
        )
        for scheduled in plan.requests:
            if scheduled.sampling is not None and len(scheduled.history) == scheduled.prompt_length:
                seen = self._seen[scheduled.request_id]
                seen.ttft = self.now - seen.request.submitted
        used = scheduler.pool.used / scheduler.pool.total
        began = time.thread_time()
        outputs = scheduler.update(plan, sampled)
        self._costs.append(planned + time.thread_time() - began)
        self._preempted += len(plan.preempted)
        self._uses.append((seconds, used))
        for output in outputs:
            self._took(output)
            if output.finish is not None:
                # Its tokens are no longer needed, and there are many.
                self._seen[output.request_id].request.tokens = []
        if self._check and len(self._costs) % self._check == 0:
            scheduler.check_integrity()

    def _compute(self, plan: Plan) -> float:
        decoding = sum(scheduled.generating for scheduled in plan.requests)
        prefilling = plan.tokens - decoding
        seconds = BASE + PREFILL * prefilling + DECODE * decoding
        self.scheduler.latency.observe(seconds, prefill_tokens=prefilling, decode_tokens=decoding)
        self._prefill_chunk.observe(seconds, prefill_tokens=prefilling, decode_tokens=decoding)
        return seconds

    def _result(self) -> Result:
        seen = list(self._seen.values())
        tokens = sum(one.arrival.length for one in seen) or 1
        busy = sum(seconds for seconds, _ in self._uses) or 1.0
        tiers = {}
        for tier in TIERS:
            own = [one for one in seen if one.tier is tier]
            tiers[tier.name] = sum(one.hit for one in own) / (sum(one.arrival.length for one in own) or 1)
        return Result(
            requests=len(seen),
            refused=self._refused,
            simulated_s=self.now,
            steps=len(self._costs),
            queue_p50_s=percentile([one.queued for one in seen], 0.5),
            queue_p99_s=percentile([one.queued for one in seen], 0.99),
            ttft_p50_s=percentile([one.ttft for one in seen], 0.5),
            ttft_p99_s=percentile([one.ttft for one in seen], 0.99),
            hit_rate=sum(one.hit for one in seen) / tokens,
            best_hit_rate=best_hits([one.arrival for one in seen], self.scheduler.block_size) / tokens,
            hit_rate_by_tier=tiers,
            preempted=self._preempted,
            kv_use_mean=sum(seconds * used for seconds, used in self._uses) / busy,
            kv_use_max=max((used for _, used in self._uses), default=0.0),
            scheduler_ms=1000 * statistics.median(self._costs or [0.0]),
            scheduler_p99_ms=1000 * percentile(self._costs, 0.99),
        )


def traces(folder: Path, most: int) -> dict[str, list[Arrival]]:
    """Those that are there."""
    found = {}
    for name, read in (
        ("azure_conv.csv", azure),
        ("azure_code.csv", azure),
        ("mooncake_conversation.jsonl", mooncake),
    ):
        path = folder / name
        if path.exists():
            found[path.stem] = list(read(path, most))
    return found


HEAD = (
    f"{'trace':<32} {'requests':>8} {'steps':>7} {'queue p50':>9} {'p99':>6} {'TTFT p50':>8} {'p99':>6} {'hits':>6} "
    f"{'best':>6} {'free':>6} {'pro':>6} {'enterpr.':>8} {'preempted':>9} {'KV mean':>7} {'max':>5} {'scheduler':>9}"
)


def row(name: str, found: Result) -> str:
    tiers = found.hit_rate_by_tier
    return (
        f"{name:<32} {found.requests:8d} {found.steps:7d} {found.queue_p50_s:8.2f}s {found.queue_p99_s:5.1f}s "
        f"{found.ttft_p50_s:7.2f}s {found.ttft_p99_s:5.1f}s {found.hit_rate:6.1%} {found.best_hit_rate:6.1%} "
        f"{tiers['free']:6.1%} {tiers['pro']:6.1%} {tiers['enterprise']:8.1%} {found.preempted:9d} "
        f"{found.kv_use_mean:7.1%} {found.kv_use_max:5.0%} {found.scheduler_ms:7.3f}ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000, help="of each trace")
    parser.add_argument("--blocks", type=int, default=25_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--budget", type=int, default=2048, help="tokens a step")
    parser.add_argument("--waiting", type=int, default=100_000, help="requests that may wait")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--max-itl-ratio", type=float, default=2.0)
    parser.add_argument("--priorities", action="store_true", help="tiers have priorities, too")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = traces(options.data, options.requests)
    if not found:
        print(f"No traces in {options.data}: a made-up one is replayed.\n")
        found = {"made up": made_up(options.requests)}
    settings: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("blocks", "block_size", "sequences", "budget", "waiting", "max_itl_ratio", "priorities")
    }
    results = {}
    print(HEAD)
    for name, arrivals in found.items():
        # Only where prompts have something in common do weights make a difference.
        common = best_hits(arrivals, options.block_size) > 0
        variants = {name: {}, f"{name}, no weights": {"weights": False}}
        if not common:
            variants = {name: {}, f"{name}, no bound": {"max_itl_ratio": 0.0}}
        for label, change in variants.items():
            chosen = {**settings, "speed": options.speed * SPEED.get(name, 1.0), **change}
            results[label] = Replay(arrivals, **chosen).run()
            print(row(label, results[label]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({name: asdict(one) for name, one in results.items()}, indent=1))


if __name__ == "__main__":
    main()
