"""Google's tools and ``toolConfig`` as OpenAI's shape has them (https://ai.google.dev/api/caching#Tool)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.types import Json
from gateway.wire import json_body
from gateway.wire.gemini.contents_to_messages import invalid
from gateway.wire.gemini.schemas import to_json_schema
from gateway.wire.openai.chat import Lenient

Beyond = tuple[str, str] | None

MODES = {"AUTO": "auto", "MODE_UNSPECIFIED": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_DECLARED = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
_IGNORED = frozenset({"response", "responseJsonSchema"})
"""What a function gives back, which no other API is told of."""
_CONFIG = frozenset({"functionCallingConfig", "includeServerSideToolInvocations", "retrievalConfig"})
"""The last two are about Google's own tools."""


class FunctionDeclaration(Lenient):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parametersJsonSchema: Any = None


class Tool(Lenient):
    functionDeclarations: json_body.Items[FunctionDeclaration] | None = None


class FunctionCallingConfig(Lenient):
    mode: str | None = None
    allowedFunctionNames: json_body.Items[str] | None = None


class ToolConfig(Lenient):
    functionCallingConfig: FunctionCallingConfig | None = None


def read(raw: Sequence[Mapping[str, Json]], config: ToolConfig | None) -> tuple[dict[str, Json], Beyond]:
    """``tools`` and ``tool_choice``, and the first tool that only Google's own models have. Raises ``BadRequest``."""
    beyond: Beyond = None
    functions: list[dict[str, Json]] = []
    for i, tool in enumerate(raw):
        for name, value in tool.items():
            if name == "functionDeclarations":
                for j, one in enumerate(value):
                    at = f"tools[{i}].functionDeclarations[{j}]"
                    functions.append(_function(one, at))
                    beyond = beyond or _unknown(one, at)
            else:
                beyond = beyond or (f"tools[{i}].{name[:64]}", "a tool that Google runs")
    for name in (config.model_extra or {}) if config is not None else ():
        if name not in _CONFIG:
            beyond = beyond or (f"toolConfig.{name[:64]}", "a field that is not known here")
    if not functions:
        return {}, beyond
    calling = config.functionCallingConfig if config is not None else None
    if calling is None:
        return {"tools": functions}, beyond
    mode = (calling.mode or "AUTO").upper()
    if mode not in MODES:
        raise invalid("toolConfig.functionCallingConfig.mode", f"should be one of {', '.join(sorted(MODES))}")
    choice: Json = MODES[mode]
    allowed = calling.allowedFunctionNames
    if allowed and mode in ("ANY", "VALIDATED"):
        functions = [one for one in functions if one["function"]["name"] in allowed]
        if not functions:
            raise invalid(
                "toolConfig.functionCallingConfig.allowedFunctionNames", "should name functions of 'tools'"
            )
        if len(functions) == 1 and mode == "ANY":
            choice = {"type": "function", "function": {"name": functions[0]["function"]["name"]}}
    return {"tools": functions, **({} if choice == "auto" else {"tool_choice": choice})}, beyond


def _function(declared: Mapping[str, Json], where: str) -> dict[str, Json]:
    function: dict[str, Json] = {"name": declared["name"]}
    if declared.get("description"):
        function["description"] = declared["description"]
    schema = declared.get("parametersJsonSchema")
    if schema is None and declared.get("parameters") is not None:
        schema = to_json_schema(declared["parameters"], f"{where}.parameters")
    function["parameters"] = schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _unknown(declared: Mapping[str, Json], where: str) -> Beyond:
    for name, value in declared.items():
        if name in _DECLARED or name in _IGNORED:
            continue
        if name == "behavior" and value in ("BLOCKING", "UNSPECIFIED"):
            continue
        return f"{where}.{name[:64]}", "a field that other models do not have"
    return None
