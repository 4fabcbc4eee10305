"""A model server as ``benchmarks.replica_choice`` plays it: steps that take time by a cost model, a KV cache in blocks.

It follows the engine's scheduler where that decides when a prompt is computed and what is still cached: chunked prefill
under the engine's own control of chunks, prompts that overtake, blocks that are evicted by least recent use. It knows
blocks of 512 tokens alone, as Mooncake's trace tells them, and runs decodes without prompts many steps at a time; so it
is some fifty times as fast as the scheduler itself, against which ``replica_choice model`` holds it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.replay import HASHED
from benchmarks.replica_cores import Cores
from engine.core.prefill_chunk import PrefillChunkController


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of a step, of a prompt's token, of a sequence that decodes."""

    step: float = 8e-3
    prefill: float = 25e-6
    decode: float = 50e-6
    outside: float = 0.0
    """Of a request, until its first token, outside of steps."""


@dataclass(slots=True)
class Job:
    """One request."""

    number: int
    at: float
    """When it came to the gateway."""
    blocks: Sequence[int]
    length: int
    generate: int
    began: Callable[[float], None] = lambda now: None
    ended: Callable[[float], None] = lambda now: None
    hit: int = 0
    """Tokens of the prompt that were cached."""
    left: int = 0
    """Tokens of the prompt to be computed."""
    own: int = 0
    """Blocks of the answer, and of the prompt where they are nobody's yet."""
    pinned: int = 0
    """Of ``blocks``, those that it holds in the cache."""
    first: float | None = None


class Server:
    def __init__(
        self,
        *,
        blocks: int = 781,
        block_tokens: int = HASHED,
        sequences: int = 128,
        budget: int = 2048,
        costs: Costs | None = None,
        slowness: float = 1.0,
        max_itl_ratio: float = 2.0,
        now: float = 0.0,
        cores: Cores | None = None,
    ) -> None:
        """``blocks``: of ``block_tokens`` tokens. ``slowness``: how many times as long all takes. ``cores``: of a
        machine that it shares with others, where it stays to the end; without, it has one of its own."""
        self.now = now
        self.total = blocks
        self.block_tokens = block_tokens
        self.busy = 0.0
        self.computed = 0
        """Tokens of prompts."""
        self._sequences = sequences
        self._budget = budget
        self._costs = costs or Costs()
        self._slowness = slowness
        self._chunks = PrefillChunkController(max_itl_ratio, budget)
        self._waiting: deque[Job] = deque()
        self._prefills: list[Job] = []
        self._decodes: list[tuple[int, int, Job]] = []
        """By the decode step in which each ends."""
        self._steps = 0
        """Decode steps."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Cached blocks that nobody holds, the longest unused first."""
        self._held: dict[int, int] = {}
        """Of cached blocks, how many hold them."""
        self._cores = cores
        if cores is not None:
            cores.add(self)
        self._own = 0
        """Blocks that requests hold and nobody finds."""

    @property
    def running(self) -> int:
        return len(self._prefills) + len(self._decodes)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def used(self) -> float:
        return (len(self._held) + self._own) / self.total

    @property
    def jobs(self) -> list[Job]:
        return [*self._waiting, *self._prefills, *(job for _, _, job in self._decodes)]

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._prefills or self._decodes)

    def run(self, until: float) -> None:
        """All steps that begin before ``until``; of all servers that share its cores."""
        if self._cores is not None:
            self._cores.run(until)
            return
        while self.now < until and self.has_work:
            self._step(until)
        self.now = max(self.now, until)

    def drain(self) -> None:
        while self.has_work:
            self._step(float("inf"))

    def _step(self, until: float) -> None:
        seconds, finish = self.begin(until)
        self.now += seconds
        self.busy += seconds
        finish(seconds)

    def begin(self, until: float) -> tuple[float, Callable[[float], None]]:
        """A step, or several of decodes alone: the seconds that it takes on a core of its own, and what is done at its
        end, to be told the seconds that it took."""
        while self._waiting and self.running < self._sequences and self._admit(self._waiting[0]):
            self._waiting.popleft()
        decoding, costs = len(self._decodes), self._costs
        if not self._prefills:
            steps = self._decodes[0][0] - self._steps
            seconds = (costs.step + costs.decode * decoding) * self._slowness
            if until < float("inf"):
                steps = max(1, min(steps, int((until - self.now) / seconds) + 1))

            def decoded(took: float) -> None:
                self._chunks.observe(took / steps, prefill_tokens=0, decode_tokens=decoding)
                self._passed(steps)

            return seconds * steps, decoded
        budget = self._budget - decoding
        if decoding:
            budget = min(budget, self._chunks.chunk(len(self._prefills)))
        given = self._given(budget) if budget > 0 else []
        tokens = sum(count for _, count in given)
        seconds = (costs.step + costs.prefill * tokens + costs.decode * decoding) * self._slowness

        def computed(took: float) -> None:
            self._chunks.observe(took, prefill_tokens=tokens, decode_tokens=decoding)
            self.computed += tokens
            done = []
            for job, count in given:
                job.left -= count
                if not job.left:
                    done.append(job)
            self._passed(1 if decoding else 0)
            for job in done:
                self._began(job)

        return seconds, computed

    def _began(self, job: Job) -> None:
        """Its prompt is computed."""
        self._prefills.remove(job)
        self._cache(job)
        stretched = self._cores.stretched if self._cores is not None else 1.0
        job.first = self.now + self._costs.outside * stretched
        job.began(self.now)
        if job.generate > 1:
            heapq.heappush(self._decodes, (self._steps + job.generate - 1, job.number, job))
        else:
            self._end(job)

    def _given(self, budget: int) -> list[tuple[Job, int]]:
        """The prompts' tokens of a step: half of it to the shortest, where they are much shorter than the first."""
        first = self._prefills[0]
        given, most = [], budget // 2
        for job in sorted(self._prefills[1:], key=lambda one: one.left):
            if most <= 0 or job.left * 5 > first.left:
                break
            count = min(job.left, most)
            given.append((job, count))
            budget, most = budget - count, most - count
        for job in self._prefills:
            if budget <= 0:
                break
            already = next((count for one, count in given if one is job), 0)
            if count := min(job.left - already, budget):
                given = [(one, had) for one, had in given if one is not job]
                given.append((job, already + count))
                budget -= count
        return given

    def _passed(self, steps: int) -> None:
        self._steps += steps
        while self._decodes and self._decodes[0][0] <= self._steps:
            self._end(heapq.heappop(self._decodes)[2])

    def _admit(self, job: Job) -> bool:
        """Whether there is KV memory for it."""
        known = 0
        for block in job.blocks:
            if block not in self._held and block not in self._idle:
                break
            known += 1
        hit = min(known * self.block_tokens, job.length - 1)
        again = sum(block in self._idle for block in job.blocks[:known])
        own = -(-(job.length + job.generate) // self.block_tokens) - known
        free = self.total - len(self._held) - self._own
        if again + own > free and self.running:
            return False
        job.hit, job.left, job.own, job.pinned = hit, job.length - hit, own, known
        for block in job.blocks[:known]:
            self._idle.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        self._own += own
        self._evict()
        self._prefills.append(job)
        return True

    def _cache(self, job: Job) -> None:
        """Its prompt is computed, and found from now on."""
        whole = job.length // self.block_tokens
        for block in job.blocks[job.pinned : whole]:
            if block not in self._held:
                self._own, job.own = self._own - 1, job.own - 1
                self._idle.pop(block, None)
            self._held[block] = self._held.get(block, 0) + 1
        job.pinned = max(job.pinned, whole)

    def _end(self, job: Job) -> None:
        self._own -= job.own
        for block in reversed(job.blocks[: job.pinned]):
            left = self._held[block] - 1
            if left:
                self._held[block] = left
            else:
                del self._held[block]
                self._idle[block] = None
        self._evict()
        job.ended(self.now)

    def _evict(self) -> None:
        most = max(0, self.total - len(self._held) - self._own)
        while len(self._idle) > most:
            self._idle.popitem(last=False)
