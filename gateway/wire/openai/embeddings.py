"""OpenAI's Embeddings, both ways (https://platform.openai.com/docs/api-reference/embeddings).

A vector travels as the delta of a chunk of its own, as its server wrote it: a list of numbers, or little-endian
float32 in base64. The SDKs ask for the latter.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest, Chunk, Json
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient
from gateway.wire.openai.completions import Tokens
from gateway.wire.openai.usage import read_usage

PATH = "/embeddings"
MOST = 2048
"""Inputs in one request."""


class EmbeddingsBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    input: (
        str
        | Annotated[json_body.Items[str], Field(min_length=1, max_length=MOST)]
        | Tokens
        | Annotated[json_body.Items[Tokens], Field(min_length=1, max_length=MOST)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None
    stream: Annotated[bool | None, Field(json_schema_extra={"enum": [False, None]})] = None

    @field_validator("input", mode="before")
    @classmethod
    def _one_kind(cls, value: Any) -> Any:
        """An error of the whole list names the list, not each shape that it might have had."""
        if isinstance(value, list):
            if len(value) > MOST and not isinstance(value[0], int):
                raise ValueError(
                    f"there are {len(value)} entries, and {MOST} are the most. Send them in parts"
                )
            kinds = {type(one) for one in value}
            if len(kinds) > 1 and kinds != {int, float}:
                raise ValueError("its entries should be all texts, all token ids, or all lists of token ids")
        return value


_OWN = frozenset({"model", "input", "stream", "stream_options"})


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits)
    known = json_body.check(EmbeddingsBody, raw)
    if known.stream:
        raise BadRequest(
            "Embeddings come all at once and cannot be streamed. Leave 'stream' out.",
            param="stream",
            code="unsupported_parameter",
        )
    return ChatRequest(
        model=known.model,
        prompt=raw["input"],
        params={name: value for name, value in raw.items() if name not in _OWN},
        embeds=True,
    )


def write_request(request: ChatRequest, model: str) -> dict[str, Json]:
    """The body to send upstream."""
    return {**request.params, "model": model, "input": request.prompt}


def read_answer(raw: Mapping[str, Json]) -> Iterator[Chunk]:
    """A chunk a vector, the usage on the last. Raises ``KeyError``, ``TypeError``, ``AttributeError`` on nonsense."""
    usage = read_usage(raw.get("usage"))
    vectors = raw["data"]
    last = len(vectors) - 1
    for i, one in enumerate(vectors):
        index, vector = one.get("index", i), one["embedding"]
        if type(index) is not int or not isinstance(vector, str | list) or not vector:
            raise TypeError("not an embedding")
        yield Chunk(
            index=index,
            delta={"embedding": vector},
            finish_reason="stop",
            usage=usage if i == last else None,
            more=i < last,
        )


def write_vector(vector: bytes, params: Mapping[str, Json]) -> Json:
    """Little-endian float32 as the request's ``encoding_format`` has it."""
    if params.get("encoding_format") == "base64":
        return b64encode(vector).decode()
    return list(Struct(f"<{len(vector) // 4}f").unpack(vector))


def inputs_of(request: ChatRequest) -> list[str | list[int]]:
    """Each text, or list of token ids, of which the gateway itself is to make a vector.

    Raises ``BadRequest`` for an empty text, as OpenAI's API does: its vector would mean nothing, and be near others.
    """
    given = request.prompt
    inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    if "" in inputs:
        where = "input" if inputs is not given else f"input[{inputs.index('')}]"
        raise BadRequest(
            f"'{where}' is an empty text, which has no embedding. Leave it out.",
            param=where,
            code="invalid_value",
        )
    return inputs
