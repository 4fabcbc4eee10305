"""Results as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from engine.evaluation.measures import POSITIONS, Figure, Measures

HEAD = (
    "| weights and cache | texts | weights, MiB | KL, nats | perplexity | of the reference's | same token "
    "| right tokens | exact answers |\n|---|---|--:|--:|--:|--:|--:|--:|--:|"
)


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    weights_mib: float
    strata: dict[str, Measures]
    kl_by_position: list[float | None]
    beyond: list[str]
    """The limits that are not kept, in words."""

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Its rows of the table under ``HEAD``."""
        for stratum, found in self.strata.items():
            exact = "–" if found.exact is None else f"{found.exact.value:.1%} of {found.reference_exact:.1%}"
            yield (
                f"| {self.name} | {stratum} | {self.weights_mib:.1f} | {_interval(found.kl, '.4f')} "
                f"| {_interval(found.perplexity, '.3f')} | {_interval(found.ratio, '.3f')} "
                f"| {_interval(found.agreement, '.1%')} "
                f"| {found.right.value:.1%} of {found.reference_right:.1%} | {exact} |"
            )

    def positions(self) -> str:
        ends = [*map(str, POSITIONS), ""]
        ranges = zip(["1", *(str(end + 1) for end in POSITIONS)], ends, self.kl_by_position, strict=True)
        told = ", ".join(
            f"{start} to {end}: {kl:.4f}" if end else f"from {start}: {kl:.4f}"
            for start, end, kl in ranges
            if kl is not None
        )
        return f"{self.name}: KL by position: {told}"


def _interval(figure: Figure, form: str) -> str:
    return f"{figure.value:{form}} ({figure.low:{form}}–{figure.high:{form}})"
