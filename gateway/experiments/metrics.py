"""What experiments compare: what each metric is of a request, and which way is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.policy.schema import Metric


@dataclass(frozen=True, slots=True)
class Measure:
    about: str
    better: Literal["higher", "lower", "neither"]
    unit: Literal["share", "score", "dollars", "seconds", "tokens"]

    @property
    def of_share(self) -> bool:
        """Whether each request is 0 or 1."""
        return self.unit == "share"


METRICS: Mapping[Metric, Measure] = {
    "score": Measure("what callers think of answers, 0 to 1, of those that they rated", "higher", "score"),
    "errors": Measure(
        "requests that failed by the fault of a server, ours or a provider's", "lower", "share"
    ),
    "refusals": Measure("answers in which the model, or its provider's filter, declines", "lower", "share"),
    "blocked": Measure("requests or answers that a guard blocks", "neither", "share"),
    "cost": Measure("dollars of a request, with all that was sent on its account", "lower", "dollars"),
    "ttft": Measure("seconds from a request's arrival to its answer's first token", "lower", "seconds"),
    "length": Measure("tokens of an answer", "neither", "tokens"),
}
