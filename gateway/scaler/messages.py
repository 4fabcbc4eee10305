"""The messages of KEDA's external scaler protocol (``externalscaler.proto``, KEDA 2), as protobuf classes.

They are made from a table here, as generated code would have to agree with the installed protobuf's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"

_Field = descriptor_pb2.FieldDescriptorProto
_STRING, _BOOL, _INT64, _DOUBLE = (
    _Field.TYPE_STRING,
    _Field.TYPE_BOOL,
    _Field.TYPE_INT64,
    _Field.TYPE_DOUBLE,
)
_FIELDS: Mapping[str, tuple[tuple[str, int, object], ...]] = MappingProxyType(
    {
        # A field's name and number, and its type: a list's items are of the message that is named.
        "ScaledObjectRef": (("name", 1, _STRING), ("namespace", 2, _STRING), ("scalerMetadata", 3, dict)),
        "IsActiveResponse": (("result", 1, _BOOL),),
        "GetMetricSpecResponse": (("metricSpecs", 1, ["MetricSpec"]),),
        "MetricSpec": (
            ("metricName", 1, _STRING),
            ("targetSize", 2, _INT64),
            ("targetSizeFloat", 3, _DOUBLE),
        ),
        "GetMetricsRequest": (("scaledObjectRef", 1, "ScaledObjectRef"), ("metricName", 2, _STRING)),
        "GetMetricsResponse": (("metricValues", 1, ["MetricValue"]),),
        "MetricValue": (
            ("metricName", 1, _STRING),
            ("metricValue", 2, _INT64),
            ("metricValueFloat", 3, _DOUBLE),
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
    kinds = _classes()
    reference, active = kinds["ScaledObjectRef"], kinds["IsActiveResponse"]
    return (
        Method("IsActive", reference, active),
        Method("StreamIsActive", reference, active, streams=True),
        Method("GetMetricSpec", reference, kinds["GetMetricSpecResponse"]),
        Method("GetMetrics", kinds["GetMetricsRequest"], kinds["GetMetricsResponse"]),
    )


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = made.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
            if kind is dict:
                _map_of_texts(made, field, message)
            elif isinstance(kind, int):
                field.type = kind
            else:
                if isinstance(kind, list):
                    (kind,) = kind
                    field.label = _Field.LABEL_REPEATED
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName("externalscaler.proto")
    return {name: message_factory.GetMessageClass(found.message_types_by_name[name]) for name in _FIELDS}


def _map_of_texts(
    made: descriptor_pb2.DescriptorProto, field: descriptor_pb2.FieldDescriptorProto, message: str
) -> None:
    """A map is a list of entries on the wire (protobuf.dev/programming-guides/proto3, maps)."""
    entry = made.nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for name, number in (("key", 1), ("value", 2)):
        entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_STRING)
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message}.ScalerMetadataEntry"
