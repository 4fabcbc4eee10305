"""Makes a request fit its server: fewer tokens where the context holds no more, no fields that it will not have.

A cap on the answer beyond what the context leaves is lowered, so that clients which must send one, or always send the
same, get an answer. Fields that concern cost, speed, storage, effort or sampling, and not what is asked, are left out
where a server refuses them by name. Both are reported, in headers and in the receipt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gateway.errors import BadRequest, ContextTooLong
from gateway.types import Call, ChatRequest, Json

CAPS = ("max_tokens", "max_completion_tokens")
OTHER_CAPS = frozenset({"n_predict", "num_predict", "max_new_tokens", "max_output_tokens"})
"""Names for a cap that only some servers know, and heed before the usual ones: llama.cpp's server does with the first.
Where tokens or dollars are limited the cap that was reserved is to be the only one."""
OTHER_MODELS, NATIVE_MODELS = "models", "fallbacks"
"""OpenRouter's and Anthropic's lists of who may answer in the model's place: which model a caller may use is the
policy's to say."""
MAX_TOKENS = "x-tollgate-max-tokens"
"""The header, of the bundled engine's answers and of ours, with the cap that the answer's was clipped to."""
IGNORED = "x-tollgate-ignored"
"""The header that names fields which had no effect."""
TEMPERATURE = "x-tollgate-temperature"
"""The header with the temperature that was used in place of a higher one."""
OVER_CONTEXT = "x-tollgate-over-context"
"""The header that asks the bundled engine to ``refuse`` rather than clip."""
_LOOPHOLES = frozenset({OTHER_MODELS, *OTHER_CAPS})
_REPORTS = frozenset({MAX_TOKENS, IGNORED, TEMPERATURE})

HARMLESS = frozenset(
    {
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning_effort", "safety_identifier", "seed", "service_tier", "store"),
        *("thinking", "user", "verbosity"),
        *("min_p", "repetition_penalty", "top_k", "typical_p"),
    }
)
"""Fields whose absence makes no other question of a request."""

_UNKNOWN = re.compile(
    r"unknown|unrecognized|unsupported|not (currently )?supported|does not support|extra inputs|not permitted"
    r"|not allowed|unexpected|additional propert",
    re.IGNORECASE,
)
_UNFIT = re.compile(r"[^\w.\[\]-]", re.ASCII)
"""In a header: line breaks above all."""
_LONGEST_NAME, _MOST_NAMES = 64, 32
_LEFT = (
    # OpenAI and vLLM; the number of the prompt's tokens is the second one.
    r"maximum context length is (\d+) tokens.*?\((\d+) (?:in|of|from) (?:the|your) ",
    r"maximum context length is (\d+) tokens and your request has (\d+) input tokens",  # vLLM since 0.9
    r"maximum context length of (\d+) tokens.*?: (\d+) tokens from the input",  # SGLang
    r"supports at most (\d+) completion tokens",  # OpenAI, of the answer alone
    r"must be <= (\d+)[^.]*max_(?:completion_)?tokens|max_(?:completion_)?tokens[^.]*must be <= (\d+)",  # Groq
)
_PATTERNS = tuple(re.compile(pattern, re.IGNORECASE | re.DOTALL) for pattern in _LEFT)


def fitted(
    call: Call, name: str = CAPS[0], default: Callable[[ChatRequest], int] | None = None
) -> ChatRequest:
    """The call's request with no higher cap than it is to have: by what its caller's limits allow, by what the
    model gives at most, and by what the prompt leaves of its declared context. ``name`` is the field for a cap where
    there is none; ``default`` is the cap that is sent then, for APIs that demand one.
    """
    request = capped(call, name)
    candidate = call.candidate
    if candidate is None:
        return request
    model = call.policy.models[candidate.model]
    if model.max_output is None and model.context is None:
        return request
    most = model.max_output
    if model.context is not None and call.clips and (estimate := call.estimated()) is not None:
        left = max(1, model.context - estimate.prompt)
        most = left if most is None else min(most, left)
    if most is None:
        return request
    if default is not None and _cap(request) is None:
        if default(request) <= most:
            return request
        report_cap(call, most)
        return request.having({**request.params, name: most})
    return clipped(call, request, most)


def capped(call: Call, name: str = CAPS[0]) -> ChatRequest:
    """The call's request with the cap that its caller's limits allow."""
    request, cap = call.request, call.cap
    if request.params or request.native is not None:
        request = _without_loopholes(call)
    if cap is None:
        return request
    if _cap(request) is not None:
        return clipped(call, request, cap)
    _report_cap(call, cap, None)
    return request.having({**request.params, name: cap})


def _without_loopholes(call: Call) -> ChatRequest:
    """The call's request without what would lead around its caller's limits at the server."""
    request, native = call.request, call.request.native
    if native is not None and NATIVE_MODELS in native.body:
        report_ignored(call, [NATIVE_MODELS])
        body = {name: value for name, value in native.body.items() if name != NATIVE_MODELS}
        request = replace(request, native=replace(native, body=body))
    if request.params.keys().isdisjoint(_LOOPHOLES):
        return request
    names = {OTHER_MODELS, *(OTHER_CAPS if call.allowance is not None else ())} & request.params.keys()
    if not names:
        return request
    report_ignored(call, sorted(names))
    return without(request, names)


def clipped(call: Call, request: ChatRequest, most: int) -> ChatRequest:
    """``request`` with caps of ``most`` tokens at most; where that changes any, it is reported."""
    lower = {name: most for name in CAPS if _is_above(request.params.get(name), most)}
    if not lower:
        return request
    report_cap(call, most)
    return request.having({**request.params, **lower})


def suited(call: Call, request: ChatRequest, error: BadRequest) -> ChatRequest | None:
    """``request`` without what its server refused; None where that cannot be, or is not known."""
    if isinstance(error, ContextTooLong) or any(name in error.message for name in CAPS):
        if (renamed := _renamed(request, error)) is not None:
            return renamed
        own = call.cap is not None and _cap(call.request) is None
        left = _left(error.message)
        if left is None and own and not isinstance(error, ContextTooLong):
            # It is our cap that is too high, by an unknown amount.
            left = (_cap(request) or 0) // 4
        if left is None or left < 1 or not (call.clips or own):
            return None
        fewer = clipped(call, request, left)
        return None if fewer is request else fewer
    if (modest := _without_optional(call, request, error)) is not None:
        return modest
    dropped = {
        name
        for name in HARMLESS & request.params.keys()
        if name == error.param or re.search(rf"\b{name}\b", error.message)
    }
    if not dropped or not (_UNKNOWN.search(error.message) or error.code == "unsupported_parameter"):
        return None
    report_ignored(call, sorted(dropped))
    return without(request, dropped)


def without(request: ChatRequest, names: Collection[str]) -> ChatRequest:
    """``request`` without these of its parameters."""
    if request.params.keys().isdisjoint(names):
        return request
    kept = {name: value for name, value in request.params.items() if name not in names}
    return request.having(kept)


def _without_optional(call: Call, request: ChatRequest, error: BadRequest) -> ChatRequest | None:
    """``request`` without what the gateway had added for itself, where a server complains of it: it is not reported, as
    no caller asked."""
    refused = {name for name in call.optional_params if name in (error.param or "") or name in error.message}
    fewer = without(request, refused)
    return None if fewer is request else fewer


def _renamed(request: ChatRequest, error: BadRequest) -> ChatRequest | None:
    """``request`` with its cap under the other name, where that is what the server misses: OpenAI's reasoning models
    know ``max_completion_tokens`` only, and older servers the other one.
    """
    for name, other in (CAPS, CAPS[::-1]):
        unknown = error.param == name or re.search(rf"\b{name}\b", error.message)
        is_said = error.code == "unsupported_parameter" or _UNKNOWN.search(error.message)
        if unknown and is_said and name in request.params and other not in request.params:
            params = {key: value for key, value in request.params.items() if key != name}
            return request.having({**params, other: request.params[name]})
    return None


def report_changes(call: Call, headers: Mapping[str, str]) -> None:
    """Pass on the bundled engine's reports of what it changed."""
    if (most := headers.get(MAX_TOKENS, "")).isdecimal():
        report_cap(call, int(most))
    if names := headers.get(IGNORED):
        report_ignored(call, names.split(", "))


def report_cap(call: Call, tokens: int) -> None:
    _report_cap(call, tokens, _cap(call.request))


def _report_cap(call: Call, tokens: int, asked: int | None) -> None:
    call.reply_headers[MAX_TOKENS] = str(tokens)
    call.receipt.note("backend", max_tokens=tokens, max_tokens_asked=asked)


def report_ignored(call: Call, names: list[str]) -> None:
    """``names`` are the caller's own, of any characters and length, and go into a header."""
    known = call.receipt.notes.get("backend", {}).get("ignored", [])
    ignored = sorted({*known, *(_UNFIT.sub("?", name[:_LONGEST_NAME]) for name in names)})[:_MOST_NAMES]
    call.reply_headers[IGNORED] = ", ".join(ignored)
    call.receipt.note("backend", ignored=ignored)


def report_temperature(call: Call, temperature: float) -> None:
    call.reply_headers[TEMPERATURE] = f"{temperature:g}"
    asked = call.request.params.get("temperature")
    call.receipt.note("backend", temperature=temperature, temperature_asked=asked)


def clear_reports(call: Call) -> None:
    """Reports on an earlier attempt do not hold for the next."""
    if _REPORTS.isdisjoint(call.reply_headers):
        return
    if call.reply_headers.pop(MAX_TOKENS, None):
        for name in ("max_tokens", "max_tokens_asked"):
            call.receipt.notes.get("backend", {}).pop(name, None)
    if call.reply_headers.pop(TEMPERATURE, None):
        for name in ("temperature", "temperature_asked"):
            call.receipt.notes.get("backend", {}).pop(name, None)
    if call.reply_headers.pop(IGNORED, None):
        call.receipt.notes.get("backend", {}).pop("ignored", None)


def _cap(request: ChatRequest) -> int | None:
    params = request.params
    if not params:
        return None
    caps = [cap for name in CAPS if type(cap := params.get(name)) is int]
    return max(caps, default=None)


def _is_above(cap: Json, most: int) -> bool:
    return type(cap) is int and cap > most


def _left(message: str) -> int | None:
    """How many tokens an answer may have, by the error of a server that was asked for more."""
    for pattern in _PATTERNS:
        if found := pattern.search(message):
            numbers = [int(number) for number in found.groups() if number is not None]
            return numbers[0] - sum(numbers[1:])
    return None
