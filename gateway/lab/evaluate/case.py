"""A set's cases: what is asked, and what an answer must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.lab.evaluate.answer import Answer
from gateway.lab.evaluate.checks import Verdict


@dataclass(frozen=True, slots=True)
class Similar:
    """The cosine of its embedding and this text's is ``at_least`` so much."""

    text: str
    at_least: float


@dataclass(frozen=True, slots=True)
class Rubric:
    """A judge model gives the answer ``at_least`` so many of five points by this text."""

    text: str
    at_least: int


Check = Callable[[Answer], Verdict] | Similar | Rubric


@dataclass(frozen=True, slots=True)
class Case:
    """``body`` is a chat completion's without its model; ``task`` is what the case is counted under, beside all."""

    id: str
    body: Mapping[str, Any]
    checks: tuple[Check, ...]
    task: str
    reference: str = ""

    def question(self) -> str:
        """What a judge is shown of it."""
        return "\n\n".join(
            f"{message.get('role')}: {_text(message.get('content'))}" for message in self.body["messages"]
        )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
