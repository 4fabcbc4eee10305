"""What is said to the gateway that asks: the forms of Envoy's external processing, and the endpoint picker's headers.

https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/004-endpoint-picker-protocol
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import GatewayError, Overloaded
from gateway.picker.pick import Pick
from gateway.wire.openai.errors import error_body

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
CHUNK = 62_000
"""Bytes of a body that go back in one message: gateways take 64 KiB at most."""
OVERWRITE = 2
"""``HeaderValueOption.append_action``: whatever a client said is replaced."""


class Answers:
    """Makes messages of the class ``response``."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def picked(
        self, what: str, destination: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Any:
        """``what``: ``request_headers`` or ``request_body``, in whose answer it is said. ``body`` takes the place of
        one that came whole."""
        common: dict[str, Any] = {
            "header_mutation": {"set_headers": _options({DESTINATION: destination, **headers})},
            "clear_route_cache": True,
        }
        if body is not None:
            common["body_mutation"] = {"body": body}
        made = self._response(**{what: {"response": common}})
        made.dynamic_metadata.update({NAMESPACE: {DESTINATION: destination}})
        return made

    def passed(self, what: str) -> Any:
        """Nothing of it is changed."""
        return self._response(**{what: {}})

    def streamed(self, what: str, body: bytes, *, end: bool) -> Iterator[Any]:
        """``body`` in pieces; ``end``: nothing follows, no trailers either."""
        for start in range(0, len(body), CHUNK) or (0,):
            last = start + CHUNK >= len(body)
            piece = {"body": body[start : start + CHUNK], "end_of_stream": end and last}
            yield self._response(**{what: {"response": {"body_mutation": {"streamed_response": piece}}}})

    def refused(self, error: GatewayError, request_id: str) -> Any:
        """In the gateway's stead. What an overloaded pool drops is 429, as the protocol has it."""
        status = 429 if isinstance(error, Overloaded) else error.status
        headers = {"content-type": "application/json", **error.headers}
        if error.retry_after is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after))
        return self._response(
            immediate_response={
                "status": {"code": status},
                "headers": {"set_headers": _options(headers)},
                "body": error_body(error, request_id),
                "details": error.code or "",
            }
        )


def destination_of(pick: Pick) -> str:
    return ",".join((pick.endpoint, *pick.fallbacks))


def _options(headers: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"header": {"key": name, "raw_value": value.encode()}, "append_action": OVERWRITE}
        for name, value in headers.items()
    ]


def subset_of(request: Any) -> frozenset[str] | None:
    """The only endpoints that may be picked, as a gateway says in its metadata; None where it says nothing of it."""
    said = _metadata(request, SUBSET_NAMESPACE, SUBSET)
    if said is None:
        return None
    texts = [said.string_value] if said.WhichOneof("kind") == "string_value" else []
    if said.WhichOneof("kind") == "list_value":
        texts = [one.string_value for one in said.list_value.values]
    return frozenset(one.strip() for text in texts for one in text.split(",") if one.strip())


def served_by(request: Any) -> str | None:
    """The endpoint that answered."""
    said = _metadata(request, NAMESPACE, SERVED)
    return said.string_value or None if said is not None else None


def _metadata(request: Any, namespace: str, key: str) -> Any:
    found = request.metadata_context.filter_metadata.get(namespace)
    return None if found is None else found.fields.get(key)
