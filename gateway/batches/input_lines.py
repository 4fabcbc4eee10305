"""The lines of an input file, read and checked in another process: they may be many, or long, or anything at all.

OpenAI's codes where it documents any (https://learn.microsoft.com/azure/ai-foundry/openai/how-to/batch has the list).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import orjson

from gateway.types import Json

LONGEST_ID = 512
"""Characters of a ``custom_id``."""
_DEPTHS = (256, 1024, 4096, 16_384)
"""Bytes of a prompt's beginning: lines that have as many in common are neighbours. About 64 tokens of English and up,
as in ``gateway.routing.affinity``."""
_DIGEST = 6
_WITHOUT_MODEL = "/v1/moderations"
"""One guard answers all, whatever model of OpenAI's they name."""


class LineError(NamedTuple):
    """What is wrong with a line, as a batch's ``errors`` have it."""

    code: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that can be run, as far as it can be told without the policy."""

    custom_id: str
    model: str
    prefix: str
    body: str
    inputs: int
    """Texts to embed; 0 of what is no embedding."""


def read_lines(data: bytes, endpoint: str) -> list[InputLine | LineError | None]:
    """Of whole lines; None for an empty one."""
    return [_read(line, endpoint) if line.strip() else None for line in data.splitlines()]


def _read(line: bytes, endpoint: str) -> InputLine | LineError:
    try:
        return _parsed(orjson.loads(line), endpoint)
    except orjson.JSONDecodeError as error:
        return LineError("invalid_json_line", f"This line is not valid JSON: {error}.")
    except orjson.JSONEncodeError:
        return LineError("invalid_json_line", "This line is nested too deep. Send flatter JSON.")


def _parsed(value: Json, endpoint: str) -> InputLine | LineError:
    if not isinstance(value, dict):
        return LineError("invalid_json_line", "This line is no JSON object.")
    if (wrong := next(_wrong(value, endpoint), None)) is not None:
        return wrong
    body = value["body"]
    model = "" if endpoint == _WITHOUT_MODEL else body["model"]
    prompt = _prompt(body)
    inputs = 0
    if endpoint == "/v1/embeddings":
        given = body.get("input")
        inputs = len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1
    return InputLine(value["custom_id"], model, _prefix(prompt), orjson.dumps(body).decode(), inputs)


def _wrong(value: dict[str, Json], endpoint: str) -> Iterator[LineError]:
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID or "\0" in custom_id:
        yield LineError(
            "missing_required_parameter",
            f"Give each line a 'custom_id' of its own, a text of up to {LONGEST_ID} characters.",
            "custom_id",
        )
    if value.get("method") != "POST":
        yield LineError("invalid_request", "'method' should be POST.", "method")
    if value.get("url") != endpoint:
        yield LineError(
            "url_mismatch",
            f"'url' should be '{endpoint}', the endpoint that the batch was made for.",
            "url",
        )
    if not isinstance(body, dict):
        yield LineError("missing_required_parameter", "'body' should be the request, a JSON object.", "body")
        return
    model = body.get("model")
    if endpoint != _WITHOUT_MODEL and (not isinstance(model, str) or not model):
        yield LineError("missing_required_parameter", "The request names no model.", "body.model")
    for name in ("stream", "background"):
        if body.get(name):
            yield LineError("invalid_request", f"'{name}' is not for a batch: leave it out.", f"body.{name}")


def _prompt(body: dict[str, Json]) -> bytes:
    """What the model reads first, in the order in which it does: tools, instructions, then the conversation."""
    parts = [body.get(name) for name in ("tools", "instructions", "messages", "prompt", "input")]
    return orjson.dumps([part for part in parts if part is not None])


def _prefix(prompt: bytes) -> str:
    """Digests of longer and longer beginnings: sorted by them, lines that begin alike come together."""
    found, digest, start = [], blake2b(digest_size=_DIGEST), 0
    for depth in _DEPTHS:
        if len(prompt) < depth:
            break
        digest.update(prompt[start:depth])
        found.append(digest.hexdigest())
        start = depth
    return "".join(found)
