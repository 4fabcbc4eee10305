"""One look through a trace before it is replayed: how many, from when to when, how long its backends took."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar

from gateway.lab.replay.errors import ReplayError
from gateway.lab.replay.service_times import ServiceTimes, least_squares
from gateway.lab.traffic.reading import TrafficError, read_traffic
from gateway.recording.recorded_request import RecordedRequest

T = TypeVar("T")
KEPT = 10_000
"""Answers of a backend on which its times are measured, drawn from all."""
FEWEST = 8
"""Answers below which nothing is measured."""
ROUNDS = 3
TRIMMED = 3.0
"""Times the median deviation beyond which an answer waited, or was disturbed: its time is no backend's."""
REPLAYED = frozenset({"chat", "completions", "embeddings", "messages", "responses", "generate"})
USUAL_ANSWER = 256
"""Tokens of an answer where no record tells."""


def requests_of(
    path: Path, most: int | None, leaves_out: Callable[[RecordedRequest], object] = lambda _: None
) -> Iterator[RecordedRequest]:
    """The first ``most`` of those that are replayed; others are told to ``leaves_out``. Raises ``ReplayError``."""
    count = 0
    try:
        for one in read_traffic(path):
            if one.api not in REPLAYED:
                leaves_out(one)
                continue
            if count == most:
                return
            count += 1
            yield one
    except TrafficError as error:
        raise ReplayError(str(error)) from None


@dataclass(slots=True)
class _Samples:
    """Of one backend and model: an even draw of all (Vitter's algorithm R)."""

    first: list[tuple[float, float, float]] = field(default_factory=list)
    """Uncached tokens, load, seconds to the first token."""
    token: list[tuple[float, float]] = field(default_factory=list)
    """Load, seconds a token."""
    whole: list[tuple[float, float, float, float]] = field(default_factory=list)
    """Uncached tokens, load, tokens, seconds of answers that came at once."""
    seen: int = 0

    def add(self, one: RecordedRequest, load: int, random: Random) -> None:
        self.seen += 1
        place = self.seen - 1 if self.seen <= KEPT else random.randrange(self.seen)
        if place >= KEPT:
            return
        uncached = float(max(0, one.prompt_tokens - one.cached_tokens))
        if one.ttft is None:
            if one.duration is not None:
                _put(self.whole, place, (uncached, float(load), float(one.completion_tokens), one.duration))
            return
        _put(self.first, place, (uncached, float(load), one.ttft))
        if one.duration is not None and one.completion_tokens > 1:
            each = (one.duration - one.ttft) / (one.completion_tokens - 1)
            _put(self.token, place, (float(load), max(0.0, each)))

    def times(self) -> ServiceTimes | None:
        """None where too little was seen."""
        if len(self.first) >= FEWEST:
            first = _fit(
                [(1.0, uncached, load) for uncached, load, _ in self.first], [s[2] for s in self.first]
            )
            each = _fit([(1.0, load) for load, _ in self.token], [s[1] for s in self.token])
            if first is not None:
                token = each or [0.0, 0.0]
                return ServiceTimes(first[0], first[1], first[2], token[0], token[1], len(self.first))
        if len(self.whole) >= FEWEST:
            rows = [(1.0, uncached, tokens, tokens * load) for uncached, load, tokens, _ in self.whole]
            found = _fit(rows, [s[3] for s in self.whole])
            if found is not None:
                return ServiceTimes(found[0], found[1], 0.0, found[2], found[3], len(self.whole))
        return None


def _put(samples: list[T], place: int, sample: T) -> None:
    if place < len(samples):
        samples[place] = sample
    else:
        samples.append(sample)


def _fit(rows: Sequence[tuple[float, ...]], values: Sequence[float]) -> list[float] | None:
    """By least squares, without what lies far beyond the rest: requests that waited in a queue, above all."""
    if len(rows) < FEWEST:
        return None
    found = None
    for _ in range(ROUNDS):
        found = least_squares(rows, values)
        if found is None:
            return None
        beyond = [
            value - sum(factor * part for factor, part in zip(found, row, strict=True))
            for row, value in zip(rows, values, strict=True)
        ]
        spread = sorted(map(abs, beyond))[len(beyond) // 2]
        kept = [index for index, over in enumerate(beyond) if over <= TRIMMED * spread + 1e-9]
        if len(kept) == len(rows) or len(kept) < FEWEST:
            break
        rows, values = [rows[index] for index in kept], [values[index] for index in kept]
    return found


@dataclass(slots=True)
class Survey:
    requests: int = 0
    first: float = 0.0
    last: float = 0.0
    """Their arrivals, as recorded."""
    in_order: bool = True
    left_out: int = 0
    """Of other APIs."""
    have_callers: int = 0
    have_models: int = 0
    have_prompts: int = 0
    """Have a ``prompt_key``."""
    have_blocks: int = 0
    have_findings: int = 0
    cached_at: dict[str, int] = field(default_factory=dict)
    """By backend: tokens that its answers had from a prompt cache."""
    answered_at: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By model: answers that were complete, and their tokens."""
    measured: dict[tuple[str, str], ServiceTimes] = field(default_factory=dict)
    overall: ServiceTimes | None = None

    def usual_answer(self, model: str) -> int:
        """Tokens of an answer where none was recorded."""
        count, tokens = self.lengths.get(model) or (0, 0)
        if not count:
            count = sum(one[0] for one in self.lengths.values())
            tokens = sum(one[1] for one in self.lengths.values())
        return max(1, round(tokens / count)) if count else USUAL_ANSWER


def survey(path: Path, most: int | None, told: Callable[[int], None] = lambda _: None) -> Survey:
    """``told``: how many were looked at. Raises ``ReplayError``."""
    found = Survey()
    samples: dict[tuple[str, str], _Samples] = {}
    together, random = _Samples(), Random(0)
    in_flight: dict[str, list[float]] = {}

    def leave_out(_: RecordedRequest) -> None:
        found.left_out += 1

    for one in _counted(requests_of(path, most, leave_out), found, told):
        if one.outcome == "completed" and one.completion_tokens:
            count, tokens = found.lengths.get(one.model, (0, 0))
            found.lengths[one.model] = count + 1, tokens + one.completion_tokens
        if one.duration is None or not one.backend:
            continue
        ends = in_flight.setdefault(one.backend, [])
        while ends and ends[0] <= one.at:
            heapq.heappop(ends)
        if one.outcome == "completed" and one.cache not in ("exact", "semantic"):
            found.cached_at[one.backend] = found.cached_at.get(one.backend, 0) + one.cached_tokens
            found.answered_at[one.backend] = found.answered_at.get(one.backend, 0) + 1
            samples.setdefault((one.backend, one.target), _Samples()).add(one, len(ends), random)
            together.add(one, len(ends), random)
        heapq.heappush(ends, one.at + one.duration)
    if not found.requests:
        raise ReplayError(
            f"{path}: none of its requests is of an API that is replayed: {', '.join(sorted(REPLAYED))}"
        )
    found.measured = {name: times for name, one in samples.items() if (times := one.times()) is not None}
    found.overall = together.times()
    return found


def _counted(
    requests: Iterable[RecordedRequest], found: Survey, told: Callable[[int], None]
) -> Iterator[RecordedRequest]:
    for one in requests:
        if not found.requests:
            found.first = found.last = one.at
        elif one.at < found.last:
            found.in_order = False
        found.first, found.last = min(found.first, one.at), max(found.last, one.at)
        found.requests += 1
        found.have_callers += bool(one.tenant or one.key)
        found.have_models += bool(one.model)
        found.have_prompts += bool(one.prompt_key)
        found.have_blocks += bool(one.blocks)
        found.have_findings += bool(one.findings)
        if not found.requests % 5000:
            told(found.requests)
        yield one
