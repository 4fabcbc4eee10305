"""A request as traffic is kept and replayed: what was asked, and what became of it; a line of JSON where written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

import orjson

Outcome = Literal["completed", "refused", "failed", "cancelled", "revoked"]
"""Revoked: cut by a guard after its beginning was sent. Refused: by the gateway: limits, guards, a full queue."""
OUTCOMES: frozenset[str] = frozenset(get_args(Outcome))


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """What is not known has its default. Tokens are the answering server's count where it gave one, or an estimate."""

    at: float
    """Its arrival: seconds since 1970, or since the first of its trace."""
    request_id: str = ""
    tenant: str = ""
    key: str = ""
    """The key's id, never the key."""
    user: str = ""
    """A hash of whom the key's holder asked for."""
    tier: str = ""
    api: str = "chat"
    """``chat``, ``completions``, ``embeddings``, ``messages``, ``responses``, …"""
    model: str = ""
    """What was asked for."""
    answered: str = ""
    """The public model that answered: another where it fell back, was downgraded, or went up a cascade."""
    backend: str = ""
    target: str = ""
    """The backend's name of the model."""
    stream: bool = False
    prompt_tokens: int = 0
    max_tokens: int | None = None
    """The most that its caller wanted."""
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt, found in the server's cache."""
    reasoning_tokens: int = 0
    blocks: tuple[int, ...] = ()
    """The prompt in blocks, each a hash over it and all before it: prompts that begin alike have equal first blocks. Of
    one tenant's traffic; other tenants' hashes differ. What follows the last whole block has none."""
    block_tokens: int = 0
    """Tokens for which one of ``blocks`` stands, on average."""
    prompt_key: str = ""
    """Equal for requests of one tenant that an exact cache takes for the same."""
    cache: str = ""
    """``exact``, ``semantic``, ``miss``, ``bypass``; nothing where no cache was asked."""
    outcome: Outcome = "completed"
    status: int = 200
    code: str = ""
    """The error's."""
    findings: tuple[tuple[str, str], ...] = ()
    """Guards that found something, and what each did."""
    ttft: float | None = None
    """Seconds from arrival to the first token; ``duration``: to the end of the answer."""
    duration: float | None = None
    queued: float | None = None
    """Seconds that it waited for a place at ``backend``; None where it came to no queue, or nobody noted it."""
    sent: float | None = None
    """Seconds from arrival until it had that place: guards, earlier attempts, and the queue come before. None where it
    was sent nowhere, or nobody noted it."""
    finish_reason: str = ""
    cost: float = 0.0
    """Dollars."""
    experiment: str = ""
    """The run of the experiment that it was part of, and its ``arm``."""
    arm: str = ""
    generation: int = 0
    """The policy's, in the gateway that answered."""
    priority: int = 0
    deadline: float | None = None
    """Seconds that its caller was willing to wait, from its arrival."""
    tools: bool = False
    text: str | None = None
    """The prompt, and the answer after it, as JSON, masked; only where the policy records texts."""

    def since_sent(self, seconds: float | None) -> float | None:
        """``ttft`` or ``duration`` as the backend had it: without what came before; whole where that is not known."""
        if seconds is None or self.sent is None:
            return seconds
        return max(0.0, seconds - self.sent)

    def to_json(self) -> bytes:
        """A line, without its end: what is not as by default."""
        row = {name: value for name, default in _DEFAULTS if (value := getattr(self, name)) != default}
        return orjson.dumps(row)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RecordedRequest:
        """Raises ``ValueError`` for what no record has."""
        values = {}
        for name, value in row.items():
            convert = _READ.get(name)
            if convert is None:
                raise ValueError(f"a recorded request has no {name!r}; it has {', '.join(_READ)}")
            try:
                values[name] = convert(value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from None
        if "at" not in values:
            raise ValueError("there is no 'at', the second of its arrival")
        return cls(**values)


_DEFAULTS = [(one.name, None if one.default is MISSING else one.default) for one in fields(RecordedRequest)]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no whole number from 0 on")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _outcome(value: Any) -> Any:
    if value not in OUTCOMES:
        raise ValueError(f"{value!r} is none of {', '.join(sorted(OUTCOMES))}")
    return value


def _blocks(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, value))


def _findings(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((_text(guard), _text(action)) for guard, action in value)


def _or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _count,
    "float": _number,
    "bool": _truth,
    "Outcome": _outcome,
    "tuple[int, ...]": _blocks,
    "tuple[tuple[str, str], ...]": _findings,
    "int | None": _or_none(_count),
    "float | None": _or_none(_number),
    "str | None": _or_none(_text),
}
_READ = {one.name: _READERS[str(one.type)] for one in fields(RecordedRequest)} | {"priority": _whole}
