"""What a caller can ask of a provider that is billed beside the tokens of the price table, and may not under a budget.

A budget is held in tokens at a price. Searches, faster service, sound and tools that the provider runs are billed by
other rules, or put tokens into a prompt that nobody has seen; and what a field that is not known here costs nobody can
tell. So under a budget only those pass that are known to cost no more than their tokens, and those that the policy
names under ``extras``. Where what is sent has no price (one's own machines), all pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from gateway.errors import BadRequest
from gateway.media import kind_of
from gateway.policy.prices import price_of
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest, Json

SETTINGS = frozenset(
    {
        # OpenAI's (https://platform.openai.com/docs/api-reference/chat/create), /completions and /embeddings among them
        *(
            "best_of",
            "dimensions",
            "echo",
            "encoding_format",
            "frequency_penalty",
            "function_call",
            "functions",
        ),
        *("logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata", "moderation"),
        *("parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_options"),
        *(
            "prompt_cache_retention",
            "reasoning_effort",
            "response_format",
            "safety_identifier",
            "seed",
            "stop",
        ),
        *("store", "stream_options", "suffix", "temperature", "tool_choice", "top_logprobs", "top_p", "user"),
        "verbosity",
        # those of servers that one runs oneself: vLLM, SGLang, llama.cpp, TGI, Ollama
        *("add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_prompt"),
        *("cache_salt", "chat_template_kwargs", "continue_final_message", "documents"),
        *("dynatemp_exponent", "dynatemp_range", "ebnf", "enable_thinking", "grammar", "guided_choice"),
        *(
            "guided_decoding_backend",
            "guided_grammar",
            "guided_json",
            "guided_regex",
            "id_slot",
            "ignore_eos",
        ),
        *("include_stop_str_in_output", "json_schema", "keep_alive", "length_penalty", "min_keep", "min_p"),
        *("min_tokens", "mirostat", "mirostat_eta", "mirostat_tau", "no_stop_trim"),
        *("priority", "prompt_logprobs", "regex", "repeat_last_n", "repeat_penalty"),
        *("repetition_penalty", "return_token_ids", "return_tokens_as_token_ids", "samplers"),
        *("separate_reasoning", "skip_special_tokens", "spaces_between_special_tokens", "stop_regex"),
        *("stop_token_ids", "stream_reasoning", "structured_outputs", "tfs_z", "top_k", "top_n_sigma"),
        *("truncate_prompt_tokens", "typical_p", "use_beam_search", "xtc_probability", "xtc_threshold"),
        # those of resellers and others
        *("include_reasoning", "input_type", "reasoning", "reasoning_format", "safe_prompt", "thinking"),
        *("thinking_budget", "top_a", "transforms", "truncate", "usage"),
    }
)
"""Fields that cost what their tokens cost. ``prediction`` is not among them: what was predicted wrongly is billed as an
answer, beside the cap. Nor are ``chat_template`` and ``mm_processor_kwargs``, which make a prompt longer than it is."""
_PASSING = SETTINGS | {"tools"}
"""Tools are looked at one by one."""
NATIVE = frozenset(
    {
        *("cache_control", "diagnostics", "max_tokens", "messages", "metadata", "model", "output_config"),
        *("output_format", "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice"),
        *("tools", "top_k", "top_p"),
        "service_tier",  # "auto" takes what was bought beforehand
    }
)
"""The same of Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""
GOOGLE = frozenset(
    {
        "contents",
        "generationConfig",
        "labels",
        "model",
        "safetySettings",
        "systemInstruction",
        "toolConfig",
        "tools",
    }
)
"""The same of Google's Gemini API (https://ai.google.dev/api/generate-content). ``cachedContent`` is not among them:
what is kept is billed by the hour, and is a prompt that nobody has seen."""
_GOOGLES_CONFIG = frozenset(
    {
        *("candidateCount", "enableEnhancedCivicAnswers", "frequencyPenalty", "logprobs", "maxOutputTokens"),
        *("mediaResolution", "presencePenalty", "responseJsonSchema", "responseLogprobs", "responseMimeType"),
        *("responseSchema", "seed", "stopSequences", "temperature", "thinkingConfig", "topK", "topP"),
    }
)
"""Of its ``generationConfig``."""

_CLIENTS_TOOLS = frozenset({"bash", "computer", "custom", "function", "memory", "text_editor"})
"""Kinds of tools that the caller runs himself."""
_DATED = re.compile(r"_\d{8}$")

Passes = Callable[[Json], bool]


def _nothing(value: Json) -> bool:
    """An empty object is something: ``web_search_options: {}`` searches."""
    return value is None or value == []


def _only_clears(management: Json) -> bool:
    """To forget costs nothing; to sum up (``compact_…``) is an answer of its own, which no usage counts."""
    edits = management.get("edits") if isinstance(management, dict) else None
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and str(edit.get("type")).startswith("clear_") for edit in edits
    )


_AT_NO_COST: Mapping[str, Passes] = {
    "service_tier": lambda tier: tier in ("auto", "default", "flex"),
    "modalities": lambda kinds: kinds == ["text"],
}
_NATIVE_AT_NO_COST: Mapping[str, Passes] = {
    "context_management": _only_clears,
    "inference_geo": lambda region: region == "global",
    "speed": lambda speed: speed == "standard",
}
_CONFIG_AT_NO_COST: Mapping[str, Passes] = {"responseModalities": lambda kinds: kinds == ["TEXT"]}
"""Fields that cost more with some values."""


def check(call: Call, request: ChatRequest, target: Target) -> None:
    """What is sent in OpenAI's dialect. Raises ``BadRequest`` that names the first thing a budget cannot hold."""
    if not _is_held(call, target):
        return
    allowed = call.policy.extras
    if not request.params.keys() <= _PASSING:
        _check_fields(request.params, _PASSING, _AT_NO_COST, allowed)
    if tools := request.params.get("tools"):
        _check_tools(tools, allowed)
    if "input_audio" not in allowed and not _prices_sound(call, target):
        for message in request.messages or ():
            if type(message.get("content")) is not str and _speaks(message):
                raise _refused("messages", "input_audio")


def check_native(call: Call, body: Mapping[str, Json], target: Target) -> None:
    """What is sent in Anthropic's. Raises the same; and for a tool that asks another model (``advisor``), budget or
    none: which models a caller may use is the policy's to say."""
    for index, tool in enumerate(body.get("tools") or ()):
        if isinstance(tool, dict) and "model" in tool and (name := _kind(tool)) not in call.policy.extras:
            raise BadRequest(
                f"The tool '{name[:64]}' asks another model, and which models a key may use is for the gateway's "
                f"policy to say. Leave it out, or ask whoever runs the gateway to allow it ('extras: [{name[:64]}]').",
                param=f"tools[{index}].model",
                code="unsupported_parameter",
            )
    if not _is_held(call, target):
        return
    _check_fields(body, NATIVE, _NATIVE_AT_NO_COST, call.policy.extras)
    _check_tools(body.get("tools"), call.policy.extras)


def check_google(call: Call, body: Mapping[str, Json], target: Target) -> None:
    """What is sent in Google's. Raises the same as ``check``."""
    if not _is_held(call, target):
        return
    allowed = call.policy.extras
    _check_fields(body, GOOGLE, {}, allowed)
    config = body.get("generationConfig") or {}
    _check_fields(config, _GOOGLES_CONFIG, _CONFIG_AT_NO_COST, allowed)
    for index, tool in enumerate(body.get("tools") or ()):
        for name in tool:
            if name != "functionDeclarations" and name not in allowed:
                raise _refused(f"tools[{index}].{name}", name)


def check_passed_on(call: Call, request: ChatRequest, target: Target, known: Collection[str]) -> None:
    """What is sent to an API that does not chat, which has ``known`` fields. Raises the same."""
    if call.allowance is None or call.allowance.most(call) is None or price_of(call.policy, target) is None:
        return
    # A list of a form's is written with brackets after its name.
    given = {name.removesuffix("[]"): value for name, value in request.params.items()}
    _check_fields(given, known, {}, call.policy.extras)


def _is_held(call: Call, target: Target) -> bool:
    """Whether dollars are held for it."""
    if call.allowance is None or call.allowance.most(call) is None:
        return False
    price = price_of(call.policy, target)
    return price is not None and (price.input > 0 or price.output > 0)


def _prices_sound(call: Call, target: Target) -> bool:
    price = price_of(call.policy, target)
    return price is not None and price.audio_input is not None


def _check_fields(
    given: Mapping[str, Json],
    known: Collection[str],
    sometimes: Mapping[str, Passes],
    allowed: Collection[str],
) -> None:
    for name, value in given.items():
        if name in known or name in allowed or _nothing(value):
            continue
        if not (name in sometimes and sometimes[name](value)):
            raise _refused(name, name)


def _check_tools(tools: Json, allowed: Collection[str]) -> None:
    for index, tool in enumerate(tools if isinstance(tools, list | tuple) else ()):
        name = _kind(tool)
        if name not in _CLIENTS_TOOLS and name not in allowed:
            raise _refused(f"tools[{index}]", name)


def _kind(tool: Json) -> str:
    """``web_search_20250305`` and those to come are one kind, ``web_search``."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return _DATED.sub("", kind) if isinstance(kind, str) else "custom"


def _speaks(message: Mapping[str, Json]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(kind_of(part) == "audio" for part in content)


def _refused(param: str, name: str) -> BadRequest:
    shown = name[:64]
    return BadRequest(
        f"'{shown}' may cost more than its tokens, and this key is under a budget, which cannot hold what has no "
        f"price. Leave it out, or ask whoever runs the gateway to allow it ('extras: [{shown}]' in its policy).",
        param=param[:64],
        code="unsupported_parameter",
    )
