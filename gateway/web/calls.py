"""A request as the pipeline's call, and what its caller is told of it in headers."""

from __future__ import annotations

import re
import time

from starlette.types import Scope

from gateway.errors import BadRequest, UnknownModel
from gateway.policy.schema import Policy, parse_duration
from gateway.server.headers import RequestHeaders
from gateway.types import Call, ChatRequest, Receipt
from gateway.web.context import RequestContext
from gateway.web.sending import Headers

_MODEL = "x-tollgate-model"
_LONGEST_PRODUCT = 64
_TRACE = frozenset({b"traceparent", b"tracestate"})
_PROVIDER = frozenset({b"anthropic-beta", b"anthropic-version"})
"""Headers of the caller's that its model's provider is to see; only backends that know them pass them on."""
_OWN = frozenset({b"x-tollgate-deadline", b"x-tollgate-queue", b"x-tollgate-tags"})
_HEEDED = _TRACE | _PROVIDER | _OWN | {b"cache-control", b"user-agent"}
_TAG = re.compile(r"[A-Za-z0-9._:/@+=-]{1,64}", re.ASCII)
_MOST_TAGS = 8


def make_call(context: RequestContext, request: ChatRequest, scope: Scope) -> Call:
    """The call for the pipeline. Raises ``UnknownModel``, alike for what is not there and what is not allowed."""
    principal = context.caller()
    policy = context.runtime.policy
    model = policy.resolve(request.model)
    if model is None or not (principal.may_use(model) or principal.may_use(request.model)):
        policy = _adapted(context, request, scope)
        model = policy.resolve(request.model) or ""
    call = Call(
        request_id=context.request_id,
        principal=principal,
        request=request,
        policy=policy,
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        headers={"traceparent": "", "x-request-id": context.request_id},
        model=model,
        route=scope["path"],
        query=scope.get("query_string", b"").decode("latin-1"),
        line=context.line,
        reply_headers=context.reply_headers,
    )
    if not _HEEDED.isdisjoint(context.headers):
        _heed(context.headers, call)
    return call


def _adapted(context: RequestContext, request: ChatRequest, scope: Scope) -> Policy:
    """That in which the adapter is a model that ``request`` names; its runtime is the request's from now on. Raises
    ``UnknownModel`` where it names none that its caller may ask."""
    runtime = context.runtime
    if runtime.adapters is not None:
        adapted = runtime.adapters.find(context.caller(), request.model)
        if adapted is not None:
            context.runtime = adapted
            return adapted.policy
    if runtime.records is not None:
        refused = UnknownModel.named(request.model)
        runtime.records.record_early_refusal(_unknown(context, request, scope), refused)
    # No variable has it: this frame, which it leads to, would be kept.
    if runtime.adapters is not None:
        raise runtime.adapters.unknown(context.caller(), request.model)
    raise UnknownModel.named(request.model)


def _unknown(context: RequestContext, request: ChatRequest, scope: Scope) -> Call:
    """As far as it is one."""
    return Call(
        request_id=context.request_id,
        principal=context.caller(),
        request=request,
        policy=context.runtime.policy,
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        model=request.model,
        route=scope["path"],
        line=context.line,
    )


def _heed(sent: RequestHeaders, call: Call) -> None:
    """Do what the caller's headers say."""
    traced, provider = dict(call.headers), {}
    for name in sorted(_HEEDED & sent.keys()):
        text = sent[name].decode("latin-1")
        if name == b"user-agent":
            call.user_agent = _product(sent[name])
        elif name in _TRACE:
            traced[name.decode()] = text
        elif name in _PROVIDER:
            provider[name.decode()] = text
        elif name == b"cache-control":
            call.cache_control = text
        elif name == b"x-tollgate-deadline":
            call.deadline = call.started + _seconds(text)
        elif name == b"x-tollgate-tags":
            call.tags = _tags(text)
        else:
            call.positions = text.strip().lower() == "positions"
    call.headers, call.provider_headers = traced, provider


def _product(user_agent: bytes) -> str:
    """What comes before a comment: ``Mozilla/5.0`` of every browser, ``OpenAI/Python 2.8.1`` of an SDK."""
    return user_agent[:_LONGEST_PRODUCT].partition(b"(")[0].strip().decode("ascii", "replace")


def _tags(text: str) -> str:
    tags = sorted({tag for one in text.split(",") if (tag := one.strip())})
    if len(tags) > _MOST_TAGS or not all(map(_TAG.fullmatch, tags)):
        raise BadRequest(
            f"The header x-tollgate-tags should hold at most {_MOST_TAGS} tags with commas between them, each of at "
            "most 64 letters, digits and ._:/@+=-.",
            param="x-tollgate-tags",
            code="invalid_value",
        )
    return f",{','.join(tags)}," if tags else ""


def _seconds(text: str) -> float:
    """A duration as policies have them; a number alone is one of seconds."""
    text = text.strip()
    try:
        seconds = parse_duration(f"{text}s" if text[-1:].isdigit() else text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise BadRequest(
            "The header x-tollgate-deadline should be a time from now, such as 2.5s, 800ms or 1m.",
            param="x-tollgate-deadline",
            code="invalid_value",
        )
    return seconds


def reply_headers(call: Call) -> Headers:
    told = {_MODEL: "", **call.reply_headers}
    told[_MODEL] = call.candidate.model if call.candidate else call.model
    return [*zip(map(str.encode, told), map(str.encode, told.values()), strict=True)]
