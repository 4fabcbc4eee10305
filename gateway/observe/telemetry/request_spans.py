"""A request that has ended, as spans: its own, and one for each stage that decided something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gateway.observe.telemetry.content import Answer, input_attributes
from gateway.spans import Attributes, Decision, Span, Trace, Value, new_span_id
from gateway.types import Call, ChatRequest

DECIDED: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "quota": lambda facts: facts.get("reserved_tokens") or "refused" in facts or "unmetered" in facts,
    "guard_input": bool,
    "cache": lambda facts: facts.get("result") != "bypass",
    "guard_output": bool,
    "truncate": bool,
    "cascade": bool,
    "shadow": bool,
    "route": lambda facts: len(facts.get("candidates", ())) > 1 or facts.get("why") != "primary",
    "queue": lambda facts: facts.get("position") or "refused" in facts,
}
"""Whether a stage that noted these facts had anything to decide. ``fallback``'s decisions are the attempts."""
_MOST_ITEMS, _LONGEST = 16, 256


def export_request(trace: Trace, call: Call, status: int, reason: str | None) -> None:
    """The request has ended: send its spans."""
    end, notes = time.perf_counter(), call.receipt.notes
    trace.leave(_decided(call, end), notes)
    request = request_span(trace, call, status, reason, end)
    if trace.content:
        told = content_attributes(trace.asked, trace.answer)
        answered = next((span for span in reversed(trace.attempts) if span.error is None), request)
        answered.attributes.update(told)
    trace.close([request, *decision_spans(trace, call, end)])


def _decided(call: Call, end: float) -> float:
    """When the last stage that the request came to had decided: with the answer's first chunk, or its end."""
    first = call.receipt.notes.get("meter", {}).get("first_token")
    return end if first is None else call.started + float(first)


def request_span(trace: Trace, call: Call, status: int, error: str | None, end: float) -> Span:
    notes = call.receipt.notes
    attributes: Attributes = {
        **_http(call.route, status),
        "tollgate.request_id": call.request_id,
        "tollgate.model": call.model,
        "tollgate.tenant": call.principal.tenant,
        "tollgate.key_id": call.principal.key_id,
        "tollgate.tier": call.principal.tier,
        "tollgate.stream": call.request.stream,
        "tollgate.attempts": call.receipt.attempts,
    }
    if call.cached is not None:
        attributes["tollgate.cached"] = call.cached
    for stage, fact in (("quota", "cost_usd"), ("meter", "first_token")):
        if isinstance(value := notes.get(stage, {}).get(fact), int | float):
            attributes[f"tollgate.{fact}"] = value
    return _server(trace, call.route, attributes, (call.started, end), status, error)


def refused_span(
    trace: Trace, request_id: str, route: str, started: float, end: float, status: int, error: str
) -> Span:
    """A request that was refused before it became a call."""
    attributes: Attributes = {**_http(route, status), "tollgate.request_id": request_id}
    return _server(trace, route, attributes, (started, end), status, error)


def decision_spans(trace: Trace, call: Call, end: float) -> Iterator[Span]:
    notes = call.receipt.notes
    decisions = [*trace.decisions]
    first = notes.get("meter", {}).get("first_token")
    if "guard_output" in notes:
        # It decides while the answer passes, not when the request does.
        decisions = [one for one in decisions if one.stage != "guard_output"]
        began = end if first is None else call.started + first
        decisions.append(Decision("guard_output", began, end))
    if call.cached is not None and not any(one.stage == "cache" for one in decisions):
        decisions.append(Decision("cache", call.started, end))  # a repeated request passes no stage
    for decision in decisions:
        facts = notes.get(decision.stage, {}) if decision.facts is None else decision.facts
        if facts and decision.stage in DECIDED and DECIDED[decision.stage](facts):
            yield Span(
                f"tollgate.{decision.stage}",
                "internal",
                trace.trace_id,
                new_span_id(),
                trace.span_id,
                trace.unix_ns(decision.start),
                trace.unix_ns(min(decision.end, end)),
                dict(flattened(facts, f"tollgate.{decision.stage}")),
                error=str(facts["refused"]) if isinstance(facts.get("refused"), str) else None,
            )


def content_attributes(asked: ChatRequest | None, answer: Answer | None) -> Attributes:
    found = {} if asked is None else input_attributes(asked)
    if answer is not None and (output := answer.json()):
        found["gen_ai.output.messages"] = output
    return found


def flattened(facts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Value]]:
    """A receipt's facts as attributes: ``{"guards": {"pii": {"found": 2}}}`` is ``….guards.pii.found``."""
    for name, value in facts.items():
        key = f"{prefix}.{name}"
        if isinstance(value, bool | int | float):
            yield key, value
        elif isinstance(value, str):
            yield key, value[:_LONGEST]
        elif isinstance(value, Mapping):
            yield from flattened(value, key)
        elif isinstance(value, list | tuple) and value and not isinstance(value[0], Mapping):
            yield key, tuple(str(one)[:_LONGEST] for one in value[:_MOST_ITEMS])


def _http(route: str, status: int) -> Attributes:
    return {"http.request.method": "POST", "http.route": route, "http.response.status_code": status}


def _server(
    trace: Trace,
    route: str,
    attributes: Attributes,
    times: tuple[float, float],
    status: int,
    error: str | None,
) -> Span:
    if error is not None:
        attributes["error.type"] = error
    return Span(
        f"POST {route}".strip(),
        "server",
        trace.trace_id,
        trace.span_id,
        trace.parent_id,
        trace.unix_ns(times[0]),
        trace.unix_ns(times[1]),
        attributes,
        # The server failed only from 500 on; what the caller did wrong is its own error (semantic conventions, HTTP).
        error=error if status >= 500 else None,
        trace_state=trace.state,
        parent_is_remote=True,
    )
