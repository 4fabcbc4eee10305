"""Tools, the choice among them, and the form of an answer, as chat completions have them.

Function tools are flat in the Responses API, and nested in chat completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import BadRequest
from gateway.types import Json

_INSTEAD: Mapping[str, str] = {
    "web_search": "define a function that searches, and run it yourself",
    "file_search": "define a function that searches your documents, with vectors of /v1/embeddings",
    "computer": "define functions for what it may do, and run them yourself",
    "code_interpreter": "define a function that runs code, and run it yourself",
    "image_generation": "ask the provider of an image model directly",
    "mcp": "connect to the MCP server yourself, and offer its tools as functions",
    "local_shell": "define a function that takes a command, and run it yourself",
    "shell": "define a function that takes a command, and run it yourself",
    "apply_patch": "define a function that takes a patch, and apply it yourself",
    "custom": "define a function with one parameter of type string",
}
_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tools:
    """``params`` are those of a chat completion; ``echo`` is what the response repeats."""

    params: Mapping[str, Json]
    echo: Mapping[str, Json]
    callable: frozenset[str] | None = None
    """The only functions that may be called (``allowed_tools``); None where all may."""


def read_tools(tools: Sequence[Mapping[str, Json]] | None, choice: Json, parallel: bool | None) -> Tools:
    """Raises ``BadRequest``."""
    offered = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]
    names = {tool["name"] for tool in offered}
    echo: dict[str, Json] = {
        "tools": offered,
        "tool_choice": "auto" if choice is None else choice,
        "parallel_tool_calls": parallel is not False,
    }
    if not offered:
        if choice not in (None, "auto", "none"):
            raise _invalid("tool_choice", "asks for a tool, and there are no 'tools'")
        return Tools({}, echo)
    chosen, allowed = _choice(choice, names)
    sent = [_nested(tool) for tool in offered if allowed is None or tool["name"] in allowed]
    params: dict[str, Json] = {"tools": sent}
    if chosen is not None:
        params["tool_choice"] = chosen
    if parallel is not None:
        params["parallel_tool_calls"] = parallel
    return Tools(params, echo, allowed)


def read_format(form: Mapping[str, Json] | None) -> tuple[Json, dict[str, Json]]:
    """``response_format`` (None for plain text), and what the response repeats. Raises ``BadRequest``."""
    match form:
        case None | {"type": "text"}:
            return None, {"type": "text"}
        case {"type": "json_object"}:
            return {"type": "json_object"}, {"type": "json_object"}
        case {"type": "json_schema", "name": str(name), "schema": dict(schema)}:
            given = {key: form[key] for key in ("description", "strict") if form.get(key) is not None}
            asked = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **given}}
            empty = {"description": None, "strict": False}
            return asked, {"type": "json_schema", "name": name, "schema": schema, **empty, **given}
        case {"type": "json_schema"}:
            raise _invalid("text.format", "should have a 'name' and a 'schema' beside its type")
    raise _invalid("text.format.type", "should be text, json_object or json_schema")


def _function(tool: Mapping[str, Json], where: str) -> dict[str, Json]:
    """With all the fields that the published schema requires."""
    kind = tool.get("type")
    if kind != "function":
        raise _unserved(kind, f"{where}.type")
    name, parameters = tool.get("name"), tool.get("parameters")
    if not isinstance(name, str) or not name:
        nested = " It lies beside 'type' here, not in 'function'" if "function" in tool else ""
        raise _invalid(f"{where}.name", f"should be the function's name.{nested}")
    if parameters is not None and not isinstance(parameters, dict):
        raise _invalid(f"{where}.parameters", "should be a JSON schema")
    return {"description": None, "parameters": None, "strict": False, **tool}


def _nested(tool: Mapping[str, Json]) -> dict[str, Json]:
    known = ("name", "description", "parameters")
    function = {name: tool[name] for name in known if tool[name] is not None}
    return {"type": "function", "function": {**function, **({"strict": True} if tool["strict"] else {})}}


def _choice(choice: Json, names: set[str]) -> tuple[Json, frozenset[str] | None]:
    """``tool_choice`` of a chat completion, and the functions that alone may be called."""
    match choice:
        case None:
            return None, None
        case str() if choice in _CHOICES:
            return choice, None
        case {"type": "function", "name": str(name)}:
            if name not in names:
                raise _invalid("tool_choice.name", f"should be one of 'tools'; '{name[:64]}' is none")
            return {"type": "function", "function": {"name": name}}, None
        case {"type": "allowed_tools", "tools": list(tools)}:
            # Only these are offered: not every server knows the choice, and what a model does not see it cannot call.
            allowed = frozenset(_allowed(tool, names, i) for i, tool in enumerate(tools))
            if not allowed:
                raise _invalid("tool_choice.tools", "should name at least one tool; 'none' allows none")
            mode = choice.get("mode", "auto")
            if mode not in ("auto", "required"):
                raise _invalid("tool_choice.mode", "should be auto or required")
            return mode, allowed
        case {"type": str(kind)} if kind not in ("function", "allowed_tools"):
            raise _unserved(kind, "tool_choice.type")
    raise _invalid("tool_choice", "should be none, auto, required, a function or allowed_tools")


def _allowed(tool: Json, names: set[str], index: int) -> str:
    match tool:
        case {"type": "function", "name": str(name)} if name in names:
            return name
    raise _invalid(f"tool_choice.tools[{index}]", "should be the type and name of one of 'tools'")


def _unserved(kind: Json, where: str) -> BadRequest:
    if not isinstance(kind, str):
        return _invalid(where, "should be 'function'")
    known = next((name for name in _INSTEAD if kind == name or kind.startswith(f"{name}_")), None)
    instead = f" Instead, {_INSTEAD[known]}." if known else ""
    return BadRequest(
        f"This gateway runs no tools, and '{kind[:64]}' is one that the server runs. It serves tools of type "
        f"'function'.{instead}",
        param=where,
        code="unsupported_tool",
    )


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
