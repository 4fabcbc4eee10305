"""The messages of KEDA's external scaler protocol (``externalscaler.proto``, KEDA 2), as protobuf classes."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.message_classes import BOOL, DOUBLE, INT64, STRING, Field, MapOf, Table, message_classes

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_TABLE: Table = MappingProxyType(
    {
        "ScaledObjectRef": (
            Field("name", 1, STRING),
            Field("namespace", 2, STRING),
            Field("scalerMetadata", 3, MapOf(STRING)),
        ),
        "IsActiveResponse": (Field("result", 1, BOOL),),
        "GetMetricSpecResponse": (Field("metricSpecs", 1, ["MetricSpec"]),),
        "MetricSpec": (
            Field("metricName", 1, STRING),
            Field("targetSize", 2, INT64),
            Field("targetSizeFloat", 3, DOUBLE),
        ),
        "GetMetricsRequest": (
            Field("scaledObjectRef", 1, "ScaledObjectRef"),
            Field("metricName", 2, STRING),
        ),
        "GetMetricsResponse": (Field("metricValues", 1, ["MetricValue"]),),
        "MetricValue": (
            Field("metricName", 1, STRING),
            Field("metricValue", 2, INT64),
            Field("metricValueFloat", 3, DOUBLE),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    request: Any
    """A class of messages."""
    response: Any
    streams: bool = False


def methods() -> tuple[Method, ...]:
    """Those of the service, with classes of their own."""
    kinds = message_classes(PACKAGE, _TABLE)
    reference, active = kinds["ScaledObjectRef"], kinds["IsActiveResponse"]
    return (
        Method("IsActive", reference, active),
        Method("StreamIsActive", reference, active, streams=True),
        Method("GetMetricSpec", reference, kinds["GetMetricSpecResponse"]),
        Method("GetMetrics", kinds["GetMetricsRequest"], kinds["GetMetricsResponse"]),
    )
