"""What came of a request, beside what a test expects of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gateway.lab.policy_lines import PolicyLine
from gateway.lab.policy_tests.in_process import Answered
from gateway.lab.policy_tests.schema import Expect
from gateway.metering.bill import bill_of
from gateway.metering.price import NANO


@dataclass(frozen=True, slots=True)
class Failure:
    """An expectation that was not met."""

    what: str
    """``status``, ``guards.pii`` …"""
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of one request."""

    answered: Answered
    sent: Sequence[str]
    """What backends were sent for it, as text."""
    decided: tuple[PolicyLine, ...]

    @property
    def notes(self) -> dict[str, dict[str, Any]]:
        call = self.answered.call
        return {} if call is None else call.receipt.notes

    @property
    def error(self) -> str | None:
        if self.answered.status < 400:
            return None
        try:
            told = json.loads(self.answered.body)
        except ValueError:
            return None
        error = told.get("error") if isinstance(told, dict) else None
        return (error.get("code") or error.get("type")) if isinstance(error, dict) else None

    @property
    def cost(self) -> float:
        call = self.answered.call
        if call is None:
            return 0.0
        return bill_of(call.policy, call.upstream_usage).nanodollars / NANO

    @property
    def facts(self) -> dict[str, Any]:
        """For programs."""
        call = self.answered.call
        here = call.candidate if call is not None and call.cached is None else None
        return {
            "status": self.answered.status,
            "error": self.error,
            "model": self.answered.headers.get("x-tollgate-model"),
            "backend": here.target.backend if here is not None else None,
            "cache": self.answered.headers.get("x-tollgate-cache"),
            "cost_usd": self.cost,
            "seconds": round(self.answered.took, 6),
            "waited": self.notes.get("queue", {}).get("waited"),
            "decided_by": [str(line) for line in self.decided],
        }


def failures(expect: Expect, seen: Seen) -> Iterator[Failure]:
    """In the order of the schema."""
    answered, notes, call = seen.answered, seen.notes, seen.answered.call
    here = call.candidate if call is not None and call.cached is None else None
    if expect.status is not None and answered.status not in expect.status:
        why = f" ({_message(answered.body)})" if answered.status >= 400 else ""
        yield Failure("status", _any(expect.status), f"{answered.status}{why}")
    yield from _among("error", _one(expect.error), seen.error)
    refused = None if answered.status < 400 else f"none ({answered.status}: {_message(answered.body)})"
    model = answered.headers.get("x-tollgate-model")
    yield from _among("model", expect.model, model, refused)
    yield from _among("backend", expect.backend, here.target.backend if here else None, refused)
    yield from _among("target", expect.target, here.target.model if here else None, refused)
    yield from _among("why", _one(expect.why), here.why if here else None, refused)
    chosen = notes.get("experiment", {}) if call is not None and call.arm else {}
    of_run = str(chosen.get("name", "none")).partition("#")[0]
    yield from _among("experiment", _one(expect.experiment), of_run)
    yield from _among("arm", _one(expect.arm), chosen.get("arm"), "none, as it is part of no experiment")
    yield from _among("tier", _one(expect.tier), call.principal.tier if call else None)
    if expect.attempts is not None:
        made = call.receipt.attempts if call is not None else 0
        if made != expect.attempts:
            yield Failure("attempts", str(expect.attempts), str(made))
    yield from _among("cache", _one(expect.cache), answered.headers.get("x-tollgate-cache", "none"))
    for guard, action in expect.guards.items():
        actions = {
            stage_facts["guards"][guard]["action"]
            for stage in ("guard_input", "guard_output")
            if guard in (stage_facts := notes.get(stage, {})).get("guards", {})
        }
        if action not in (actions or {"not_asked"}):
            yield Failure(f"guards.{guard}", action, " and ".join(sorted(actions)) or "not_asked")
    yield from _within("cost", expect.cost_at_least, expect.cost_at_most, seen.cost, _dollars)
    waited = notes.get("queue", {}).get("waited", 0.0)
    yield from _within("waits", expect.waits_at_least, expect.waits_at_most, waited, _seconds)
    yield from _within("takes", expect.takes_at_least, expect.takes_at_most, answered.took, _seconds)
    said = answered.body.decode(errors="replace")
    yield from _texts("says", expect.says, expect.says_not, _said(said))
    last = seen.sent[-1] if seen.sent else ""
    yield from _texts("sees", expect.sees, expect.sees_not, last)
    for name, pattern in expect.headers.items():
        value = answered.headers.get(name.lower())
        if value is None or not fnmatchcase(value, pattern):
            yield Failure(f"headers.{name}", f"'{pattern}'", "none" if value is None else f"'{value}'")
    if expect.decided_by is not None and expect.decided_by not in [line.key for line in seen.decided]:
        keys = ", ".join(line.key for line in seen.decided)
        yield Failure("decided_by", expect.decided_by, keys or "no line of the policy")


def _one(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else (value,)


def _any(values: Sequence[object]) -> str:
    return " or ".join(map(str, values))


def _among(
    what: str, expected: Sequence[str] | None, got: str | None, nobody: str | None = None
) -> Iterator[Failure]:
    """``nobody``: why there is none."""
    if expected is not None and (got is None or got not in expected):
        yield Failure(what, _any(expected), (nobody or "none") if got is None else got)


def _within(
    what: str, least: float | None, most: float | None, got: float, shown: Callable[[float], str]
) -> Iterator[Failure]:
    if least is not None and got < least - 1e-9:
        yield Failure(f"{what}_at_least", shown(least), shown(got))
    if most is not None and got > most + 1e-9:
        yield Failure(f"{what}_at_most", shown(most), shown(got))


def _texts(
    what: str, wanted: Sequence[str] | None, unwanted: Sequence[str] | None, text: str
) -> Iterator[Failure]:
    for one in wanted or ():
        if one not in text:
            yield Failure(what, f"'{one}'", f"'{text[:200]}'" if text else "nothing")
    for one in unwanted or ():
        if one in text:
            yield Failure(f"{what}_not", f"no '{one}'", f"'{text[:200]}'")


def _said(body: str) -> str:
    """The answer's text: of a stream, all pieces in one."""
    if not body.startswith(("data: ", "event: ", ": ")):
        return body
    pieces: list[str] = []
    for line in body.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            _gather(json.loads(line[6:]), pieces)
    return "".join(pieces)


def _gather(value: Any, pieces: list[str]) -> None:
    """The pieces of text in one event, of any dialect."""
    match value:
        case {"choices": list(choices)}:
            for choice in choices:
                _gather(choice.get("delta", choice), pieces)
        case {"type": "response.output_text.delta", "delta": str(text)}:
            pieces.append(text)
        case {"delta": {"text": str(text)}} | {"content": str(text)} | {"text": str(text)}:
            pieces.append(text)


def _message(body: bytes) -> str:
    try:
        told = json.loads(body)["error"]
        return str(told["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]


def _dollars(amount: float) -> str:
    return f"${amount:.6f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"
