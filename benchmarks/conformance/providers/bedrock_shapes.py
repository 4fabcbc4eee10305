"""What Amazon's own description of its API, which botocore carries, says of a request or an answer."""

from __future__ import annotations

from base64 import b64decode
from functools import lru_cache
from typing import Any

from botocore.model import ServiceModel, Shape
from botocore.session import Session
from botocore.validate import ParamValidator


@lru_cache(maxsize=1)
def service() -> ServiceModel:
    return Session().get_service_model("bedrock-runtime")


def complaints(body: dict[str, Any], model: str = "m") -> str:
    """About the body of a request; empty where there are none."""
    shape = service().operation_model("ConverseStream").input_shape
    return _complaints({**body, "modelId": model}, shape)


def complaints_of_answer(raw: dict[str, Any]) -> str:
    return _complaints(raw, service().operation_model("Converse").output_shape)


def _complaints(value: Any, shape: Shape) -> str:
    unknown = [*_unknown(value, shape, "")]
    return "; ".join(unknown) or str(ParamValidator().validate(_bytes(value, shape), shape).generate_report())


def _unknown(value: Any, shape: Shape, where: str) -> Any:
    """Fields that a shape lacks, and more than one of a union."""
    if (
        shape.type_name == "structure"
        and isinstance(value, dict)
        and not getattr(shape, "is_document_type", False)
    ):
        for name, one in value.items():
            if name not in shape.members:
                yield f"{where}.{name} is unknown"
            else:
                yield from _unknown(one, shape.members[name], f"{where}.{name}")
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{where} should have one of its members"
    elif shape.type_name == "list":
        for i, one in enumerate(value):
            yield from _unknown(one, shape.member, f"{where}[{i}]")
    elif shape.type_name == "string" and getattr(shape, "enum", None) and value not in shape.enum:
        yield f"{where} is {value!r}, none of {shape.enum}"


def _bytes(value: Any, shape: Shape) -> Any:
    """JSON has blobs in base64."""
    if shape.type_name == "blob":
        return b64decode(value, validate=True)
    if (
        shape.type_name == "structure"
        and isinstance(value, dict)
        and not getattr(shape, "is_document_type", False)
    ):
        return {name: _bytes(one, shape.members[name]) for name, one in value.items()}
    if shape.type_name == "list":
        return [_bytes(one, shape.member) for one in value]
    return value
