"""What a request to an API that does not chat uses at most, and what it has used, in that API's own units.

Characters of a text to be spoken, and the number of pictures, are known exactly. A search is a query with up to a
hundred pieces of documents, which have no more tokens than bytes. How long sound is, an uploaded file says itself.
Tokens of sound and of pictures count only where the price table has tokens for them: there they are bounded by what
the providers' own tables say, which is no promise for models to come.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from gateway.apis import Units
from gateway.metering.unit_price import UnitRates
from gateway.policy.schema import Price
from gateway.types import ChatRequest, Json, Usage

HEARD = 10
"""Tokens of a second of sound that a model hears (https://platform.openai.com/docs/guides/speech-to-text);"""
WRITTEN = 10
"""of the text that it writes of it: the fastest speakers say five words a second;"""
SPOKEN = 3
"""and of each character that a model speaks at its usual speed: about twenty a second
(https://platform.openai.com/docs/guides/text-to-speech)."""
PIXELS = 4160 / 1024**2
"""Tokens of each pixel of a picture of high quality (https://platform.openai.com/docs/guides/image-generation);"""
LARGEST = 1536 * 1024
"""pixels of one whose size the model chooses;"""
ABOVE_HIGH = 4
"""times as many for qualities above that, of which no table tells;"""
PARTIAL = 100
"""and of each preview."""
PIECE = 500
"""Tokens of a document, its query among them, that Cohere ranks as one (https://docs.cohere.com/docs/rerank-overview)."""
PIECES = 100
"""Of one search."""
LONGEST_QUERY = 250
"""Tokens of a query, of which each piece has a copy, beyond which the bound is none."""

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


@dataclass(frozen=True, slots=True)
class ApiBound:
    units: Units | None
    exact: bool
    """The units are what they will be, whatever the answer is."""
    prompt: int
    """Tokens, where the provider counts them."""
    answer: int
    free: bool = False
    """No model is run."""


def bound_of(request: ChatRequest) -> ApiBound:
    """Of a request with an ``api``."""
    text = len(_bytes(request.prompt)) + len(_bytes(request.params.get("instructions")))
    match request.api:
        case "speech":
            characters = len(request.prompt) if isinstance(request.prompt, str) else 0
            speed = request.params.get("speed")
            pace = min(1.0, float(speed)) if isinstance(speed, int | float) and speed > 0.1 else 1.0
            return ApiBound(
                Units("character", characters), True, text + 32, math.ceil(SPOKEN * characters / pace) + 64
            )
        case "transcription" | "translation":
            seconds = 0.0 if request.form is None else request.form.seconds
            heard = math.ceil(HEARD * seconds) + 32
            return ApiBound(Units("second", seconds), False, heard + text, math.ceil(WRITTEN * seconds) + 32)
        case "image_generation" | "image_edit":
            return _pictures(request, text)
        case "rerank":
            return _searches(request)
        case "score":
            return _pairs(request)
    return ApiBound(None, True, 0, 0, free=True)


def settled(request: ChatRequest, price: Price | None, told: Usage | None, tokens: int) -> tuple[Usage, bool]:
    """What an answered request used, and whether what is billed of that is estimated.

    ``told`` is what the provider says, ``tokens`` the estimate of the text's.
    """
    bound = bound_of(request)
    units = bound.units
    if units is not None and told is not None and told.units is not None:
        units = told.units if told.units.kind.strip() else told.units._replace(kind=units.kind)
    by_unit = price is not None and units is not None and UnitRates.of(price).has(units.unit)
    estimated = by_unit and not bound.exact and (told is None or told.units is None)
    if bound.free:
        return Usage(0, 0), False
    if told is not None and (told.prompt or told.completion):
        return replace(told, units=units), estimated
    if price is None or by_unit or not price.by_tokens:
        return Usage(tokens if request.prompt else 0, 0, units=units), estimated
    heard = request.api in ("transcription", "translation")
    more = {"prompt_tokens_details": {"audio_tokens": bound.prompt}} if heard else None
    return Usage(bound.prompt, bound.answer, more=more, units=units), True


def _pictures(request: ChatRequest, text: int) -> ApiBound:
    params = request.params
    number = max(1, _count(params.get("n")))
    quality, size = str(params.get("quality") or ""), str(params.get("size") or "")
    sides = _SIZE.fullmatch(size)
    pixels = int(sides[1]) * int(sides[2]) if sides else LARGEST
    above = 1 if quality in ("low", "medium", "high", "standard", "hd") else ABOVE_HIGH
    more = PARTIAL * _count(params.get("partial_images"))
    answer = number * (math.ceil(1.5 * PIXELS * max(pixels, 1024**2) * above) + more)
    files = 0 if request.form is None else 16 * math.ceil(1.5 * PIXELS * LARGEST)
    return ApiBound(Units("image", number, f"{quality} {size}"), True, text + files + 32, answer)


def _searches(request: ChatRequest) -> ApiBound:
    documents = request.params.get("documents")
    sizes = [_text_size(one) for one in documents] if isinstance(documents, list) else []
    query = len(_bytes(request.prompt))
    room = PIECE - min(query, LONGEST_QUERY)
    pieces = sum(max(1, math.ceil(size / room)) for size in sizes)
    tokens = sum(sizes) + (query + 4) * max(1, len(sizes))
    return ApiBound(Units("search", max(1, math.ceil(pieces / PIECES))), False, tokens, 0)


def _pairs(request: ChatRequest) -> ApiBound:
    """Each is read by itself, and counted in tokens alone."""
    one, other = request.prompt, request.params.get("text_2")
    pairs = len(other) if isinstance(other, list) else 1
    once = isinstance(one, list) and len(one) > 1
    tokens = (1 if once else pairs) * _text_size(one) + _text_size(other) + 4 * pairs
    return ApiBound(None, False, tokens, 0)


def _count(value: Json) -> int:
    """In a form numbers are texts."""
    if type(value) is int:
        return max(0, value)
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else 0


def _text_size(value: Json) -> int:
    """Bytes of all texts of a document."""
    if isinstance(value, str):
        return len(_bytes(value))
    if isinstance(value, dict):
        return sum(len(_bytes(name)) + _text_size(one) for name, one in value.items())
    if isinstance(value, list):
        return sum(map(_text_size, value))
    return 8


def _bytes(text: Json) -> bytes:
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""
