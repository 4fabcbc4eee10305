"""A task: what an agent is to do, over either of OpenAI's APIs, and how to see that it was done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

CHAT = "chat"
RESPONSES = "responses"


@dataclass
class Bench:
    """What one run of a task has: a client of the gateway, a model, and what its tools were called with."""

    client: AsyncOpenAI
    model: str
    api: str
    """``chat`` or ``responses``."""
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    """A tool's name and arguments, in the order of the calls."""


class Wrong(Exception):
    """What a task should have led to, and did not."""


@dataclass(frozen=True)
class Task:
    name: str
    framework: str
    do: Callable[[Bench], Awaitable[None]]
    """Raises ``Wrong``, or what the framework raises."""
    guarded: bool = False
    """Asks for the model that the policy guards."""


def holds(condition: object, what: str) -> None:
    if not condition:
        raise Wrong(what)
