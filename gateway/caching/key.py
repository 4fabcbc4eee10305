"""Which requests have the same answer: a hash of all that shapes it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel

from gateway.policy import schema
from gateway.policy.schema import Policy
from gateway.residency import residency_of
from gateway.types import Call, ChatRequest, Json, Native

VERSION = 4
"""Of what is hashed, and of the format of answers: entries of another version are never found."""

LONGEST_QUESTION = 2000
"""Characters; an embedding of a longer text does not represent its question."""

IGNORED = frozenset(
    {
        *("stream", "stream_options", "n", "model", "messages", "prompt"),
        *("user", "metadata", "safety_identifier", "user_profile_id", "workspace_id", "labels"),
        *("store", "service_tier", "inference_geo", "speed"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control"),
    }
)
"""Parameters about the caller, the speed, what the provider stores, and the transport; or with a field of their own
here. Of OpenAI (https://platform.openai.com/docs/api-reference/chat/create), Anthropic
(https://platform.claude.com/docs/en/api/messages) and Google (https://ai.google.dev/api/generate-content)."""

_DEFAULTS: Mapping[str, Json] = {
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
}
"""These values mean the same as leaving the parameter out, for every server. The defaults of ``temperature``, ``top_p``
and ``max_tokens`` depend on the model; and every null is a default."""

# Every field of a request or a policy is hashed unless it is listed here: new fields are hashed by default.

_OF_ANY_BACKEND = frozenset({"max_concurrency", "max_tokens_in_flight", "region", "breaker"})
BESIDE: Mapping[type[BaseModel], frozenset[str]] = {
    schema.Model: frozenset(
        # How often each target answers, and what else may be called: answers of fallbacks are never cached.
        {
            "aliases",
            "select",
            "regions",
            "fallbacks",
            "spill_over",
            "shadow",
            "timeouts",
            "retry",
            "split_by",
            "rollout",
        }
        | {"prefix_sharing", "input"}
    ),
    schema.Target: frozenset({"weight", "timeouts"}),
    schema.EngineBackend: _OF_ANY_BACKEND
    | {"launch", "env", "golden", "stop_first", "cold_start", "replicas", "prefill"},
    schema.OpenAIBackend: _OF_ANY_BACKEND
    | {"api_key", "cold_start", "replicas", "telemetry", "priority", "kv_events", "inference_pool"},
    schema.AzureBackend: _OF_ANY_BACKEND | {"api_key", "entra"},
    schema.AnthropicBackend: _OF_ANY_BACKEND | {"api_key"},
    schema.BedrockBackend: _OF_ANY_BACKEND | {"api_key"},
    schema.GeminiBackend: _OF_ANY_BACKEND | {"api_key"},
    schema.FakeBackend: _OF_ANY_BACKEND | {"first_token_delay", "token_delay"},
    schema.SidecarBackend: _OF_ANY_BACKEND,
    schema.SidecarSettings: frozenset({"threads", "max_queue", "max_batch"}),
    schema.Tenant: frozenset({"tier", "quotas", "budget"}),
}
"""Settings that do not affect answers, for each part of a policy that has any."""

BESIDE_POLICY = frozenset(
    {
        *(
            "version",
            "keys",
            "jwt",
            "tiers",
            "prices",
            "default_price",
            "on_unpriced",
            "extras",
            "trusted_proxies",
            "cors",
            "admin",
            "drained",
            "metrics",
            "cache_epochs",
        ),
        *("caches", "cache_store", "ledger", "limits", "revoked_keys", "store", "on_store_failure"),
        *(
            "adapters",
            "batches",
            "billing",
            "files",
            "responses",
            "review",
            "shared_prompts",
            "telemetry",
            "callbacks",
            "metrics",
            "record",
            "drift",
            "evaluation",
        ),
        *("residency", "regions", "experiments", "prompts"),
    }
)
"""Parts of a policy that do not affect answers: access, limits, prices, storage. Residency and arms of experiments are
hashed by call."""

BESIDE_REQUEST = frozenset({"model", "stream", "include_usage", "form"})
"""Of a request: the resolved model is hashed, not its alias; and not how the answer is sent. What is passed on, as an
uploaded form is, no cache keeps."""

BESIDE_CALL = frozenset(
    {
        # Hashed in another form: who asks, what, under which settings, and as part of which experiment.
        *("principal", "request", "policy", "residency", "arm"),
        # About one call and its handling, not about its content.
        *(
            "request_id",
            "receipt",
            "started",
            "headers",
            "route",
            "deadline",
            "cache_control",
            "positions",
            "user_agent",
            "tags",
            "cached",
            "shadow",
            "line",
            "purpose",
            "payer",
            "trace",
            "discard",
            "sink",
        ),
        # Set by stages; an answer that was shortened for lack of money or tokens is not cached.
        *(
            "optional_params",
            "estimate",
            "estimator",
            "allowance",
            "cap",
            "candidates",
            "candidate",
            "sent",
            "sent_at",
            "hints",
            "reply_headers",
            "upstream_usage",
        ),
    }
)

_Per = Literal["tenant", "key"]


class Partition(NamedTuple):
    """A question, and a name for all else that answers to it depend on."""

    name: str
    question: str


class Fingerprints:
    """The parts of one policy that affect answers, hashed once for each model and tenant."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[str, str, str, str], str] = {}
        self._is_scoped = any(guard.is_scoped for guard in policy.guards.values())
        self._own: dict[str, frozenset[str]] = {}

    def of(self, model: str, tenant: str, key_id: str = "", route: str = "") -> str:
        """Policies with the same fingerprint give the same answers to ``tenant``'s questions to ``model``.

        It covers the model's targets, its cascade's steps and larger models with theirs, those targets' backends, and
        every guard that looks after what the tenant's ``key_id`` asks at ``route``, with all their settings but those
        in ``BESIDE``.
        """
        who = (model, tenant, key_id, route) if self._is_scoped else (model, tenant, "", "")
        known = self._known.get(who)
        if known is None:
            known = self._known[who] = _digest(self._parts(*who))
        return known

    def own_models(self, model: str) -> frozenset[str]:
        """The models whose answers are what ``model`` means: itself, a cascade's steps, and larger ones."""
        known = self._own.get(model)
        if known is None:
            known = self._own[model] = frozenset(self._reached([model]))
        return known

    def _parts(self, model: str, tenant: str, key_id: str, route: str) -> Json:
        policy = self._policy
        guards = {
            name: settings_of(guard)
            for name, guard in policy.guards.items()
            if guard.looks_after(tenant, key_id=key_id, model=model, route=route)
        }
        judges = [guard["judge"]["model"] for guard in guards.values() if guard.get("judge")]
        reached = [model, *judges]
        models = {name: _model(policy, name) for name in self._reached(reached)}
        backends = {target.backend for name in models for target in policy.models[name].targets}
        return {
            "version": VERSION,
            "models": models,
            "backends": {
                name: _backend(policy.backends[name]) for name in backends if name in policy.backends
            },
            "guards": list(guards.items()),
            "sidecar": settings_of(policy.sidecar) if guards or _embeds(policy, backends) else None,
            "tenant": settings_of(policy.tenants.get(tenant) or schema.Tenant()),
            **({"epoch": epoch} if (epoch := policy.cache_epochs.get(tenant)) else {}),
        }

    def _reached(self, names: Iterable[str]) -> list[str]:
        reached: dict[str, None] = {}
        waiting = list(names)
        for name in waiting:  # grows while it is read
            known = self._policy.resolve(name)
            if known is None or known in reached:
                continue
            reached[known] = None
            model = self._policy.models[known]
            waiting += [step.model for step in model.cascade]
            waiting += [model.larger_context] if model.larger_context else []
        return list(reached)


def cache_key(call: Call, fingerprint: str, per: _Per = "tenant") -> str:
    """Hex digits; equal for requests that differ in nothing that affects the answer.

    The order of an object's keys does not matter; ``1`` and ``1.0`` may differ. Raises ``orjson.JSONEncodeError`` for
    what is not JSON.
    """
    request = call.request
    asked = request.messages if request.native is None else _native(request.native)
    return _digest([asked, *_rest(call, request, fingerprint, per)])


def content_key(request: ChatRequest) -> str:
    """As ``cache_key``, of nothing but what was asked: who asks, and under which policy, is left to who compares."""
    asked = request.messages if request.native is None else _native(request.native)
    params = {name: value for name, value in request.params.items() if not _is_ignored(name, value)}
    return _digest([request.model, asked, [getattr(request, name) for name in _OF_REQUEST], params])


def partition(call: Call, fingerprint: str, per: _Per = "tenant") -> Partition | None:
    """Where to look for questions with the same meaning; None where it is not a single question in plain text."""
    request = call.request
    if not request.messages or request.n != 1 or not request.generates or request.continues:
        return None
    last = request.messages[-1]
    if last.get("role") != "user":
        return None
    question = _plain(last.get("content"))
    if not question or len(question) > LONGEST_QUESTION or question.isspace():
        return None
    before: Json = [*request.messages[:-1], {**last, "content": None}]
    if request.native is not None:
        body = _native(request.native)[1]
        turns_of = "contents" if request.native.dialect == "gemini" else "messages"
        *turns, asked = body[turns_of]
        if not _is_plain_turn(asked):
            return None
        before = _native(replace(request.native, body={**body, turns_of: turns}))
    return Partition(_digest(["semantic", before, *_rest(call, request, fingerprint, per)]), question)


def _native(native: Native) -> list[Json]:
    """A request in its own dialect, which has more than the canonical form."""
    body = {name: value for name, value in native.body.items() if name == "messages" or name not in IGNORED}
    return [native.dialect, body]


def _is_plain_turn(turn: Mapping[str, Json]) -> bool:
    """Whether it is only text, and nothing else that an answer could depend on."""
    content = turn.get("content")
    if isinstance(content, str):
        return True
    if content is None and isinstance(parts := turn.get("parts"), list):  # Google's
        return all(isinstance(part, dict) and part.keys() == {"text"} for part in parts)
    return isinstance(content, list) and all(
        isinstance(block, dict)
        and block.get("type") == "text"
        and block.keys() <= {"type", "text", "cache_control"}
        for block in content
    )


def _rest(call: Call, request: ChatRequest, fingerprint: str, per: _Per) -> list[Json]:
    who = call.principal
    return [
        [who.tenant, who.key_id] if per == "key" else [who.tenant],
        fingerprint + call.arm,
        # A guard outside of it was not asked: what was kept without its verdict is for nobody whom it looks after.
        sorted(within) if (within := residency_of(call)) is not None else None,
        [getattr(call, name) for name in _OF_CALL],
        [getattr(request, name) for name in _OF_REQUEST],
        {name: value for name, value in request.params.items() if not _is_ignored(name, value)},
    ]


_OF_CALL = tuple(one.name for one in fields(Call) if one.name not in BESIDE_CALL)
_OF_REQUEST = tuple(
    # The last three are hashed separately.
    one.name
    for one in fields(ChatRequest)
    if one.name not in BESIDE_REQUEST | {"messages", "native", "params"}
)


def _is_ignored(name: str, value: Json) -> bool:
    if value is None or name in IGNORED:
        return True
    # ``False == 0`` in Python, and of ``logprobs`` the one is a default and the other is not.
    default = _DEFAULTS.get(name)
    return default is not None and value == default and isinstance(value, bool) == isinstance(default, bool)


def _plain(content: Json) -> str | None:
    """The text of a message that has only text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            return None
        if not isinstance(part["text"], str):
            return None
        texts.append(part["text"])
    return "\n".join(texts)


def _digest(value: Json) -> str:
    return sha256(orjson.dumps(value, default=_plain_object, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _plain_object(value: object) -> Json:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def settings_of(part: BaseModel) -> dict[str, Json]:
    """All settings of ``part`` of a policy that affect answers."""
    return part.model_dump(mode="json", exclude=set(BESIDE.get(type(part), ())))


def _model(policy: Policy, name: str) -> dict[str, Any]:
    model = policy.models[name]
    targets = sorted(orjson.dumps(settings_of(target)).decode() for target in model.targets)
    return {**settings_of(model), "targets": targets}


def _backend(backend: schema.Backend) -> dict[str, Json]:
    """Which of its replicas answers is no matter, nor whose address stands for all."""
    settings = settings_of(backend)
    if isinstance(backend, schema.Replicated) and backend.replicas is not None:
        first = next((server.url for server in backend.replicas.servers), None)
        if backend.base_url == first:
            settings["base_url"] = ""
    return settings


def _embeds(policy: Policy, backends: Iterable[str]) -> bool:
    return any(isinstance(policy.backends.get(name), schema.SidecarBackend) for name in backends)
