"""OTLP as JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): ids are hexadecimal, 64-bit
integers are texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.spans import Value
from gateway.version import version

_INFORMATION = 9
"""The severity's number."""


def log_record(
    name: str, unix_ns: int, trace_id: str, span_id: str, attributes: Mapping[str, Value]
) -> dict[str, Any]:
    """The event ``name``; without ids (empty) it belongs to no span."""
    record: dict[str, Any] = {
        "timeUnixNano": str(unix_ns),
        "observedTimeUnixNano": str(unix_ns),
        "severityNumber": _INFORMATION,
        "eventName": name,
        # Receivers of before events had a name of their own look here.
        "attributes": pairs({"event.name": name, **attributes}),
    }
    if trace_id:
        record |= {"traceId": trace_id, "flags": 1}
    if span_id:
        record["spanId"] = span_id
    return record


def logs(records: Sequence[Mapping[str, Any]], resource: Mapping[str, Value]) -> dict[str, Any]:
    """What is posted to ``/v1/logs``."""
    return {"resourceLogs": [{**_from(resource), "scopeLogs": [{**_scope(), "logRecords": [*records]}]}]}


def spans(found: Sequence[Mapping[str, Any]], resource: Mapping[str, Value]) -> dict[str, Any]:
    """What is posted to ``/v1/traces``."""
    return {"resourceSpans": [{**_from(resource), "scopeSpans": [{**_scope(), "spans": [*found]}]}]}


def pairs(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [*_values(value)]}}


def _values(values: Iterable[str]) -> Iterable[dict[str, Any]]:
    return ({"stringValue": value} for value in values)


def _from(resource: Mapping[str, Value]) -> dict[str, Any]:
    return {"resource": {"attributes": pairs(resource)}}


def _scope() -> dict[str, Any]:
    return {"scope": {"name": "tollgate", "version": version()}}
