"""One look through a trace before it is replayed: how many, from when to when, how long its backends took."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from gateway.lab.replay.errors import ReplayError
from gateway.lab.replay.service_times import ServiceTimes, least_squares
from gateway.lab.traffic.reading import TrafficError, read_traffic
from gateway.recording.recorded_request import RecordedRequest

KEPT = 10_000
"""Answers of a backend on which its times are measured, drawn from all."""
FEWEST = 8
"""Answers below which nothing is measured."""
ROUNDS = 3
TRIMMED = 3.0
"""Times the median deviation beyond which an answer waited, or was disturbed: its time is no backend's."""
WHOLE = 0.9
"""Of an answer's time: one that was not streamed, and whose first token came later, came in one piece."""
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
class _InFlight:
    """When a backend was sent requests, and when each of them ended: in any order, until ``sort``."""

    sent: array[float] = field(default_factory=lambda: array("d"))
    ended: array[float] = field(default_factory=lambda: array("d"))

    def add(self, sent: float, ended: float) -> None:
        self.sent.append(sent)
        self.ended.append(ended)

    def sort(self) -> None:
        self.sent, self.ended = array("d", sorted(self.sent)), array("d", sorted(self.ended))

    def at(self, time: float) -> float:
        """Answers that were in flight just before."""
        return float(max(0, bisect_left(self.sent, time) - bisect_right(self.ended, time)))


@dataclass(slots=True)
class _Samples:
    """Of one backend and model: an even draw of all (Vitter's algorithm R)."""

    drawn: list[tuple[RecordedRequest, float]] = field(default_factory=list)
    """With when each was sent."""
    seen: int = 0

    def add(self, one: RecordedRequest, sent: float, random: Random) -> None:
        self.seen += 1
        if len(self.drawn) < KEPT:
            self.drawn.append((one, sent))
        elif (place := random.randrange(self.seen)) < KEPT:
            self.drawn[place] = one, sent

    def times(self, in_flight: Mapping[str, _InFlight]) -> ServiceTimes | None:
        """None where too little was seen."""
        first: list[tuple[tuple[float, ...], float]] = []
        token: list[tuple[tuple[float, ...], float]] = []
        whole: list[tuple[tuple[float, ...], float]] = []
        for one, sent in self.drawn:
            load = in_flight[one.backend].at(sent)
            uncached, tokens = float(max(0, one.prompt_tokens - one.cached_tokens)), one.completion_tokens
            ttft, duration = one.since_sent(one.ttft), one.since_sent(one.duration)
            # An answer that comes whole has its first token when it has its last.
            came_whole = (
                not one.stream and duration is not None and ttft is not None and ttft > WHOLE * duration
            )
            if ttft is not None and not came_whole:
                first.append(((1.0, uncached, load), ttft))
                if duration is not None and tokens > 1:
                    token.append(((1.0, load), max(0.0, (duration - ttft) / (tokens - 1))))
            elif duration is not None:
                whole.append(((1.0, uncached, float(tokens), tokens * load), duration))
        if len(first) >= FEWEST and (found := _fit(first)) is not None:
            each = _fit(token) or [0.0, 0.0]
            return ServiceTimes(found[0], found[1], found[2], each[0], each[1], len(first))
        if len(whole) >= FEWEST and (found := _fit(whole)) is not None:
            return ServiceTimes(found[0], found[1], 0.0, found[2], found[3], len(whole))
        return None


def _fit(samples: Sequence[tuple[tuple[float, ...], float]]) -> list[float] | None:
    """By least squares, without what lies far beyond the rest: above all, requests that waited in a queue of which no
    record tells."""
    if len(samples) < FEWEST:
        return None
    found = None
    for _ in range(ROUNDS):
        found = least_squares([row for row, _ in samples], [value for _, value in samples])
        if found is None:
            return None
        beyond = [
            value - sum(factor * part for factor, part in zip(found, row, strict=True))
            for row, value in samples
        ]
        spread = sorted(map(abs, beyond))[len(beyond) // 2]
        kept = [index for index, over in enumerate(beyond) if over <= TRIMMED * spread + 1e-9]
        if len(kept) == len(samples) or len(kept) < FEWEST:
            break
        samples = [samples[index] for index in kept]
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
    unsent: int = 0
    """Answers of backends of which no record tells when they were sent: it may have a wait in its times."""
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
    in_flight: dict[str, _InFlight] = {}

    def leave_out(_: RecordedRequest) -> None:
        found.left_out += 1

    for one in _counted(requests_of(path, most, leave_out), found, told):
        if one.outcome == "completed" and one.completion_tokens:
            count, tokens = found.lengths.get(one.model, (0, 0))
            found.lengths[one.model] = count + 1, tokens + one.completion_tokens
        if one.duration is None or not one.backend or one.outcome == "refused":
            continue
        if one.cache in ("exact", "semantic"):
            continue
        sent = one.at + (one.sent or 0.0)
        in_flight.setdefault(one.backend, _InFlight()).add(sent, max(sent, one.at + one.duration))
        if one.outcome == "completed":
            found.cached_at[one.backend] = found.cached_at.get(one.backend, 0) + one.cached_tokens
            found.answered_at[one.backend] = found.answered_at.get(one.backend, 0) + 1
            found.unsent += one.sent is None
            if one.ttft is not None and one.ttft < (one.sent or 0.0):
                continue  # it had begun elsewhere: this backend's times are not known
            samples.setdefault((one.backend, one.target), _Samples()).add(one, sent, random)
            together.add(one, sent, random)
    for backend in in_flight.values():
        backend.sort()
    if not found.requests:
        raise ReplayError(
            f"{path}: none of its requests is of an API that is replayed: {', '.join(sorted(REPLAYED))}"
        )
    found.measured = {
        name: times for name, one in samples.items() if (times := one.times(in_flight)) is not None
    }
    found.overall = together.times(in_flight)
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
