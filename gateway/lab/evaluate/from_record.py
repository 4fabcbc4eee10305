"""A set made of recorded traffic: what people asked, and what was answered then, as the reference."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gateway.lab.evaluate.errors import SetError
from gateway.lab.traffic.reading import TrafficError, read_traffic
from gateway.recording.recorded_request import RecordedRequest

MOST = 20_000
"""Candidates that are held of each stratum."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``rubric``: a judge grades texts by it; else they are to be ``similar`` (a cosine) to the recorded answer."""

    sample: int
    rubric: str | None = None
    similar: float = 0.8


def write_set(trace: Path, path: Path, wanted: Wanted) -> int:
    """The number of cases, a line each. Raises ``SetError``; what is at ``path`` already stays."""
    try:
        cases = sampled(read_traffic(trace), wanted)
    except TrafficError as error:
        raise SetError(str(error)) from None
    if not cases:
        raise SetError(
            f"{trace}: no completed chat with its text is in it; the policy's 'record: {{texts: masked}}' keeps texts"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)
    except FileExistsError:
        raise SetError(f"{path}: is there already; name another file, or leave --from-record out") from None
    return len(cases)


def sampled(traffic: Iterable[RecordedRequest], wanted: Wanted) -> list[dict[str, Any]]:
    """``wanted.sample`` cases of completed chats, of each model and task as many as the traffic has, one at least.

    Which ones depends on their ids alone: the sample of a record that has grown is mostly the same.
    """
    strata: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    counts: dict[str, int] = {}
    for number, request in enumerate(traffic):
        if (case := _case(request, wanted)) is None:
            continue
        name = case["task"]
        counts[name] = counts.get(name, 0) + 1
        identity = request.request_id or str(number)
        key = (-_place(identity), identity, {"id": identity, **case})
        kept = strata.setdefault(name, [])
        if len(kept) < min(wanted.sample, MOST):
            heapq.heappush(kept, key)
        elif key[:2] > kept[0][:2]:
            heapq.heapreplace(kept, key)
    shares = _shares(counts, wanted.sample)
    chosen = [
        case for name in sorted(strata) for _, _, case in sorted(strata[name], key=_order)[: shares[name]]
    ]
    return _unlike(chosen)


def _order(entry: tuple[int, str, dict[str, Any]]) -> tuple[int, str]:
    return (-entry[0], entry[1])


def _place(identity: str) -> int:
    return int.from_bytes(blake2b(identity.encode(), digest_size=8).digest())


def _shares(counts: Mapping[str, int], sample: int) -> dict[str, int]:
    """By largest remainders, one at least."""
    total = sum(counts.values())
    exact = {name: count * min(sample, total) / total for name, count in counts.items()}
    shares = {name: max(1, int(value)) for name, value in exact.items()}
    left = min(sample, total) - sum(shares.values())
    for name in sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name)):
        if left <= 0:
            break
        if shares[name] < counts[name]:
            shares[name], left = shares[name] + 1, left - 1
    return shares


def _unlike(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without repeated ids, which a merged record may have."""
    return [*{case["id"]: case for case in cases}.values()]


def _case(request: RecordedRequest, wanted: Wanted) -> dict[str, Any] | None:
    """None for what cannot be asked again, or has no answer to be compared with."""
    if request.text is None or request.outcome != "completed":
        return None
    try:
        told = json.loads(request.text)
        messages, answers, params = told["messages"], told["answers"], dict(told.get("params") or {})
    except (ValueError, KeyError, TypeError):
        return None
    if not messages or not answers or not all(isinstance(one, dict) for one in (*messages, *answers)):
        return None
    answer = answers[0]
    calls = [call.get("function") or {} for call in answer.get("tool_calls") or []]
    reference = _text(answer.get("content"))
    checks = [*_checks(calls, reference, wanted)]
    if not checks:
        return None
    for name in ("n", "stream", "model", "messages"):
        params.pop(name, None)
    task = f"{request.answered or request.model} {_kind(calls, params)}"
    return {"task": task, "messages": messages, "params": params, "reference": reference, "checks": checks}


def _checks(calls: Sequence[Mapping[str, Any]], reference: str, wanted: Wanted) -> Iterator[dict[str, Any]]:
    if calls:
        try:
            arguments = json.loads(calls[0].get("arguments") or "{}")
        except ValueError:
            return
        if isinstance(arguments, dict) and calls[0].get("name"):
            yield {"tool_call": {"name": calls[0]["name"], "arguments": arguments}}
    elif wanted.rubric is not None:
        yield {"judge": wanted.rubric}
    elif reference.strip():
        yield {"similar": reference, "at_least": wanted.similar}


def _kind(calls: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> str:
    if calls or params.get("tools"):
        return "tools"
    return "json" if params.get("response_format") else "text"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
