"""How long a backend takes for an answer: to its first token by the prompt and the load, and between two by the load.

first token = first + prompt x (tokens of the prompt that are not cached) + first_load x (answers in flight)
each token  = token + token_load x (answers in flight)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from gateway.lab.replay.errors import ReplayError
from gateway.policy.schema import parse_duration


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Seconds. The defaults are those of a mid-sized model on one GPU, and a guess: where a trace has no times, and
    nobody gives any, the report says so."""

    first: float = 0.2
    prompt: float = 0.0001
    first_load: float = 0.0
    token: float = 0.02
    token_load: float = 0.0002
    answers: int = 0
    """On which they were measured; 0 where they are given, or a guess."""

    def to_first(self, uncached: int, load: int) -> float:
        return self.first + self.prompt * uncached + self.first_load * load

    def between(self, load: int) -> float:
        return self.token + self.token_load * load

    def __str__(self) -> str:
        first = f"{self.first * 1000:.0f} ms + {self.prompt * 1e6:.0f} µs a token of the prompt{_more(self.first_load)}"
        return f"{first} to the first token, then {self.token * 1000:.3g} ms a token{_more(self.token_load)}"


def _more(seconds: float) -> str:
    return f" + {seconds * 1e6:.3g} µs for each other answer in flight" if seconds else ""


NAMES = tuple(one.name for one in fields(ServiceTimes) if one.name != "answers")
EXAMPLE = "first=200ms,prompt=0.1ms,first_load=1ms,token=20ms,token_load=0.2ms"


def parse_service(text: str) -> tuple[str, ServiceTimes]:
    """``[BACKEND:]first=200ms,token=20ms`` as the backend's name (empty: all) and its times. Raises ``ReplayError``."""
    backend, colon, given = text.rpartition(":")
    values: dict[str, float] = {}
    for part in given.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in NAMES or not equals:
            raise ReplayError(f"--service '{text}': '{part}' should be one of {', '.join(NAMES)}: {EXAMPLE}")
        try:
            values[name] = _seconds(value)
        except ValueError:
            raise ReplayError(f"--service '{text}': '{value}' should be a time: {EXAMPLE}") from None
    still = {"first": 0.2, "prompt": 0.0001, "first_load": 0.0, "token": 0.02, "token_load": 0.0} | values
    first, prompt, first_load, token, token_load = (still[name] for name in NAMES)
    return backend if colon else "", ServiceTimes(first, prompt, first_load, token, token_load)


def _seconds(text: str) -> float:
    """As policies have durations, and below a millisecond, too."""
    if text.endswith("us"):
        return float(text[:-2]) / 1e6
    if text.endswith("ms"):
        return float(text[:-2]) / 1e3
    return parse_duration(text)


@dataclass(frozen=True, slots=True)
class Services:
    """Of all backends: as given, else as measured at that backend, else at all of the trace's, else a guess."""

    given: Mapping[str, ServiceTimes]
    measured: Mapping[tuple[str, str], ServiceTimes]
    """By backend and the backend's name of the model."""
    overall: ServiceTimes | None

    def of(self, backend: str, target: str) -> tuple[ServiceTimes, str]:
        """And where they are from."""
        if (given := self.given.get(backend) or self.given.get("")) is not None:
            return given, "given"
        if (own := self.measured.get((backend, target))) is not None:
            return own, f"measured on {own.answers:,} of its answers"
        same = [times for (_, model), times in self.measured.items() if model == target]
        if same:
            best = max(same, key=lambda one: one.answers)
            return best, f"of the same model elsewhere, measured on {best.answers:,} answers"
        if self.overall is not None:
            return self.overall, f"of all backends of the trace, measured on {self.overall.answers:,} answers"
        return ServiceTimes(), "a guess: the trace has no times, and --service gives none"


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float] | None:
    """Coefficients, none below nothing: what would be is left out. Solved by the normal equations, whose columns are
    scaled first; None where nothing is left."""
    width = len(rows[0]) if rows else 0
    kept = [*range(width)]
    while kept:
        scales = [max((abs(row[i]) for row in rows), default=0.0) or 1.0 for i in kept]
        found = _solved(rows, values, kept, scales)
        if found is None:
            kept.pop()  # the last depends on the others
            continue
        worst = min(range(len(found)), key=lambda i: found[i])
        if found[worst] < 0:
            del kept[worst]
            continue
        coefficients = [0.0] * width
        for index, place in enumerate(kept):
            coefficients[place] = found[index]
        return coefficients
    return None


def _solved(
    rows: Sequence[Sequence[float]], values: Sequence[float], kept: Sequence[int], scales: Sequence[float]
) -> list[float] | None:
    size = len(kept)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row, value in zip(rows, values, strict=True):
        scaled = [row[place] / scale for place, scale in zip(kept, scales, strict=True)]
        for i in range(size):
            line, factor = matrix[i], scaled[i]
            for j in range(size):
                line[j] += factor * scaled[j]
            line[size] += factor * value
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        if abs(matrix[pivot][i]) < 1e-9 * len(rows):
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                for j in range(i, size + 1):
                    matrix[k][j] -= factor * matrix[i][j]
    return [matrix[i][size] / matrix[i][i] / scales[i] for i in range(size)]
