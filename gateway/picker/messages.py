"""The messages of Envoy's external processing and of gRPC's health checking, as far as they are used here. What a peer
says beyond them stays in a message as unknown fields.

https://github.com/envoyproxy/envoy/blob/main/api/envoy/service/ext_proc/v3/external_processor.proto
https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.message_classes import BOOL, BYTES, INT32, STRING, STRUCT, Field, MapOf, Table, message_classes

PACKAGE = "envoy.service.ext_proc.v3"
SERVICE = f"{PACKAGE}.ExternalProcessor"
HEALTH_PACKAGE = "grpc.health.v1"
HEALTH_SERVICE = f"{HEALTH_PACKAGE}.Health"

# HeaderValue, HeaderMap, HeaderValueOption and Metadata are of envoy.config.core.v3, HttpStatus of envoy.type.v3: the
# wire has no names.
_EXT_PROC: Table = MappingProxyType(
    {
        "HeaderValue": (Field("key", 1, STRING), Field("value", 2, STRING), Field("raw_value", 3, BYTES)),
        "HeaderMap": (Field("headers", 1, ["HeaderValue"]),),
        "HeaderValueOption": (Field("header", 1, "HeaderValue"), Field("append_action", 3, INT32)),
        "Metadata": (Field("filter_metadata", 1, MapOf(STRUCT)),),
        "HttpStatus": (Field("code", 1, INT32),),
        "ProtocolConfiguration": (
            Field("request_body_mode", 1, INT32),
            Field("response_body_mode", 2, INT32),
        ),
        "HttpHeaders": (Field("headers", 1, "HeaderMap"), Field("end_of_stream", 3, BOOL)),
        "HttpBody": (Field("body", 1, BYTES), Field("end_of_stream", 2, BOOL)),
        "HttpTrailers": (Field("trailers", 1, "HeaderMap"),),
        "ProcessingRequest": (
            Field("request_headers", 2, "HttpHeaders", "request"),
            Field("response_headers", 3, "HttpHeaders", "request"),
            Field("request_body", 4, "HttpBody", "request"),
            Field("response_body", 5, "HttpBody", "request"),
            Field("request_trailers", 6, "HttpTrailers", "request"),
            Field("response_trailers", 7, "HttpTrailers", "request"),
            Field("metadata_context", 8, "Metadata"),
            Field("observability_mode", 10, BOOL),
            Field("protocol_config", 11, "ProtocolConfiguration"),
        ),
        "HeaderMutation": (Field("set_headers", 1, ["HeaderValueOption"]),),
        "StreamedBodyResponse": (Field("body", 1, BYTES), Field("end_of_stream", 2, BOOL)),
        "BodyMutation": (
            Field("body", 1, BYTES, "mutation"),
            Field("streamed_response", 3, "StreamedBodyResponse", "mutation"),
        ),
        "CommonResponse": (
            Field("header_mutation", 2, "HeaderMutation"),
            Field("body_mutation", 3, "BodyMutation"),
            Field("clear_route_cache", 5, BOOL),
        ),
        "HeadersResponse": (Field("response", 1, "CommonResponse"),),
        "BodyResponse": (Field("response", 1, "CommonResponse"),),
        "TrailersResponse": (Field("header_mutation", 1, "HeaderMutation"),),
        "ImmediateResponse": (
            Field("status", 1, "HttpStatus"),
            Field("headers", 2, "HeaderMutation"),
            Field("body", 3, BYTES),
            Field("details", 5, STRING),
        ),
        "ProcessingResponse": (
            Field("request_headers", 1, "HeadersResponse", "response"),
            Field("response_headers", 2, "HeadersResponse", "response"),
            Field("request_body", 3, "BodyResponse", "response"),
            Field("response_body", 4, "BodyResponse", "response"),
            Field("request_trailers", 5, "TrailersResponse", "response"),
            Field("response_trailers", 6, "TrailersResponse", "response"),
            Field("immediate_response", 7, "ImmediateResponse", "response"),
            Field("dynamic_metadata", 8, STRUCT),
        ),
    }
)
_HEALTH: Table = MappingProxyType(
    {
        "HealthCheckRequest": (Field("service", 1, STRING),),
        "HealthCheckResponse": (Field("status", 1, INT32),),
    }
)


@dataclass(frozen=True, slots=True)
class Messages:
    """Their classes."""

    request: Any
    response: Any
    health_request: Any
    health_response: Any


def messages() -> Messages:
    ext_proc, health = message_classes(PACKAGE, _EXT_PROC), message_classes(HEALTH_PACKAGE, _HEALTH)
    return Messages(
        ext_proc["ProcessingRequest"],
        ext_proc["ProcessingResponse"],
        health["HealthCheckRequest"],
        health["HealthCheckResponse"],
    )
