"""OpenAI's Moderations (https://platform.openai.com/docs/api-reference/moderations)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import orjson
from pydantic import ConfigDict, Field

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import Json
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient, Part

MOST = 2048
"""Texts in one request."""
MAX_CHARACTERS = 100_000
"""In all texts of a request together."""
ID_PREFIX = "modr-"


def _documented(schema: dict[str, Json]) -> None:
    schema["properties"] = {"type": {"const": "text"}, "text": {"type": "string"}}
    schema["required"] = ["type", "text"]


class TextPart(Part):
    model_config = ConfigDict(json_schema_extra=_documented)


class ModerationsBody(Lenient):
    input: (
        str
        | Annotated[json_body.Items[str], Field(min_length=1, max_length=MOST)]
        | Annotated[json_body.Items[TextPart], Field(min_length=1, max_length=MOST)]
    )
    model: str | None = None
    """Whatever is named, the gateway's own model answers, and the answer says so."""


def read_request(data: bytes, limits: RequestLimits = USUAL) -> list[str]:
    """The texts, each of which gets a result; the parts of one input are one text. Raises ``BadRequest``."""
    given = json_body.check(ModerationsBody, json_body.read_json(data, limits)).input
    texts = [given] if isinstance(given, str) else [one for one in given if isinstance(one, str)]
    if not texts:
        texts = ["\n".join(_text(part, i) for i, part in enumerate(given) if isinstance(part, Part))]
    size = sum(map(len, texts))
    if size > MAX_CHARACTERS:
        raise BadRequest(
            f"The input has {size:,} characters, and {MAX_CHARACTERS:,} are moderated at once. Send it in parts.",
            param="input",
            code="string_above_max_length",
        )
    return texts


def _text(part: Part, index: int) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    raise BadRequest(
        f"This gateway moderates text only, and part {index} of the input is of type '{part.type[:40]}'. Send parts of "
        "type 'text', each with its 'text'.",
        param=f"input[{index}]",
        code="unsupported_parameter",
    )


def write_answer(request_id: str, model: str, results: Sequence[Json]) -> bytes:
    return orjson.dumps({"id": ID_PREFIX + request_id, "model": model, "results": results})
