"""What would become of a request, stage by stage: plain data, for a terminal, a page and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gateway.lab.policy_lines import PolicyLine

Verdict = Literal["passes", "changes", "answers", "refuses", "not_reached"]
"""What a stage does with the request."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What was not done, and why not."""

    what: str
    why: str
    policy: tuple[PolicyLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    stage: str
    verdict: Verdict
    said: str
    """For people."""
    policy: tuple[PolicyLine, ...] = ()
    """The lines that decided it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs."""
    rows: tuple[tuple[str, tuple[PolicyLine, ...]], ...] = ()
    """Details, one a line, each with its own lines of the policy."""
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int | None
    """None: a model is asked, and it depends on its answer."""
    said: str
    model: str | None = None
    backend: str | None = None
    target: str | None = None
    error: str | None = None
    message: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the caller, with the answer or the error, as far as they are known by then."""


@dataclass(frozen=True, slots=True)
class Explanation:
    asked: Mapping[str, Any]
    outcome: Outcome
    steps: tuple[Step, ...]
    assumed: tuple[str, ...] = ()
    """What is not known, and what was taken in its place."""

    def data(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """For a terminal."""
        told = [self.outcome.said, ""]
        width = max(len(step.stage) for step in self.steps)
        for step in self.steps:
            told.append(f"{step.stage:<{width}}  {step.said}{_at(step.policy)}")
            indent = " " * (width + 2)
            told += [f"{indent}- {text}{_at(policy)}" for text, policy in step.rows]
            told += [f"{indent}x {other.what}: {other.why}{_at(other.policy)}" for other in step.alternatives]
        if self.outcome.headers:
            told += ["", "Headers that the caller gets:"]
            told += [f"  {name}: {value}" for name, value in self.outcome.headers.items()]
        if self.assumed:
            told += ["", "Taken as given:"]
            told += [f"  - {one}" for one in self.assumed]
        return [*told, "", "Nothing was sent, and nothing was counted."]


def _at(policy: tuple[PolicyLine, ...]) -> str:
    return f"  [{'; '.join(map(str, policy))}]" if policy else ""
