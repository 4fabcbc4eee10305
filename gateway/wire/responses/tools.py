"""Tools, the choice among them, and the form of an answer, as chat completions have them.

Function tools are flat in the Responses API, and nested in chat completions. Those of namespaces and custom ones become
functions (``tool_names``). What a server would have to run is left out where the model has the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.responses.tool_names import ToolName, custom_function, function_name

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
    "tool_search": "offer all of the tools",
    "programmatic_tool_calling": "let the model call the tools itself",
}
"""Types of tools that a server, or an agreement between it and a client's program, has to run."""
_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tools:
    """``params`` are those of a chat completion; ``echo`` is what the response repeats."""

    params: Mapping[str, Json]
    echo: Mapping[str, Json]
    callable: frozenset[str] | None = None
    """The only functions that may be called (``allowed_tools``); None where all may."""
    renamed: Mapping[str, ToolName] = field(default_factory=dict)
    """What the caller calls those that are no plain functions to him, by the functions' names."""
    left_out: tuple[str, ...] = ()
    """Types of tools that nobody here runs."""


@dataclass(slots=True)
class _Offer:
    """The tools of a request, sorted."""

    told: list[Json] = field(default_factory=list)
    """As the caller wrote them, with all the fields that the published schema requires."""
    functions: dict[str, dict[str, Json]] = field(default_factory=dict)
    """As chat completions have them, by name."""
    renamed: dict[str, ToolName] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, tool: Mapping[str, Json], where: str) -> None:
        """Raises ``BadRequest``."""
        kind = tool.get("type")
        if kind == "namespace":
            name, tools = _name(tool, where), tool.get("tools")
            if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
                raise _invalid(f"{where}.tools", "should be a list of functions")
            described = tool.get("description")
            for i, one in enumerate(tools):
                # The group is described once, where the model reads of it first.
                self._callable(one, f"{where}.tools[{i}]", name, described if i == 0 else None)
            self.told.append(tool)
        elif kind in ("function", "custom"):
            self.told.append(self._callable(tool, where))
        elif isinstance(kind, str) and (hosted := _hosted(kind)):
            self.left_out.append(hosted)
        else:
            raise _unserved(kind, f"{where}.type")

    def _callable(
        self, tool: Mapping[str, Json], where: str, namespace: str | None = None, described: Json = None
    ) -> Mapping[str, Json]:
        is_custom = tool.get("type") == "custom"
        if not is_custom and tool.get("type") != "function":
            raise _unserved(tool.get("type"), f"{where}.type")
        name = _name(tool, where)
        told = tool if is_custom else _function(tool, where)
        function = custom_function(tool) if is_custom else _known(told)
        if isinstance(described, str) and described:
            function["description"] = "\n\n".join(filter(None, (described, function.get("description"))))
        sent = function_name(name, namespace)
        own = ToolName(name, namespace, is_custom) if is_custom or namespace is not None else None
        if sent in self.functions and self.renamed.get(sent) != own:
            raise _invalid(
                f"{where}.name", f"should differ from another tool's: a model knows both as '{sent[:64]}'"
            )
        if own is not None:
            self.renamed[sent] = own
        self.functions[sent] = {"type": "function", "function": {"name": sent, **function}}
        return told


def read_tools(tools: Sequence[Mapping[str, Json]] | None, choice: Json, parallel: bool | None) -> Tools:
    """Raises ``BadRequest``."""
    offer = _Offer()
    for i, tool in enumerate(tools or ()):
        offer.add(tool, f"tools[{i}]")
    echo: dict[str, Json] = {
        "tools": offer.told,
        "tool_choice": "auto" if choice is None else choice,
        "parallel_tool_calls": parallel is not False,
    }
    left_out = tuple(dict.fromkeys(offer.left_out))
    chosen, allowed = _choice(choice, offer)
    if not offer.functions or allowed == frozenset():
        if chosen not in (None, "auto", "none"):
            if left_out:
                raise _unserved(left_out[0], "tool_choice")
            raise _invalid("tool_choice", "asks for a tool, and there are no 'tools'")
        return Tools({}, echo, left_out=left_out)
    sent = [tool for name, tool in offer.functions.items() if allowed is None or name in allowed]
    params: dict[str, Json] = {"tools": sent}
    if chosen is not None:
        params["tool_choice"] = chosen
    if parallel is not None:
        params["parallel_tool_calls"] = parallel
    return Tools(params, echo, allowed, offer.renamed, left_out)


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
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise _invalid(f"{where}.parameters", "should be a JSON schema")
    return {"description": None, "parameters": None, "strict": False, **tool}


def _name(tool: Mapping[str, Json], where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        nested = ". It lies beside 'type' here, not in 'function'" if "function" in tool else ""
        raise _invalid(f"{where}.name", f"should be the {tool.get('type')}'s name{nested}")
    return name


def _known(tool: Mapping[str, Json]) -> dict[str, Json]:
    """What chat completions have of a function, beside its name."""
    function = {name: tool[name] for name in ("description", "parameters") if tool[name] is not None}
    return {**function, **({"strict": True} if tool["strict"] else {})}


def _choice(choice: Json, offer: _Offer) -> tuple[Json, frozenset[str] | None]:
    """``tool_choice`` of a chat completion, and the functions that alone may be called."""
    match choice:
        case None:
            return None, None
        case str() if choice in _CHOICES:
            return choice, None
        case {"type": "function" | "custom", "name": str(name)}:
            sent = function_name(name, choice.get("namespace"))
            if sent not in offer.functions:
                raise _invalid("tool_choice.name", f"should be one of 'tools'; '{name[:64]}' is none")
            return {"type": "function", "function": {"name": sent}}, None
        case {"type": "allowed_tools", "tools": list(tools)}:
            # Only these are offered: not every server knows the choice, and what a model does not see it cannot call.
            allowed = frozenset(name for i, tool in enumerate(tools) for name in _allowed(tool, offer, i))
            if not tools:
                raise _invalid("tool_choice.tools", "should name at least one tool; 'none' allows none")
            mode = choice.get("mode", "auto")
            if mode not in ("auto", "required"):
                raise _invalid("tool_choice.mode", "should be auto or required")
            return mode, allowed
        case {"type": str(kind)} if kind not in ("function", "custom", "allowed_tools"):
            raise _unserved(kind, "tool_choice.type")
    raise _invalid("tool_choice", "should be none, auto, required, a function or allowed_tools")


def _allowed(tool: Json, offer: _Offer, index: int) -> list[str]:
    """The functions that are meant: none where nobody here runs it."""
    match tool:
        case {"type": "function" | "custom", "name": str(name)}:
            sent = function_name(name, tool.get("namespace"))
            if sent in offer.functions:
                return [sent]
        case {"type": "namespace", "name": str(name)}:
            if group := [sent for sent, own in offer.renamed.items() if own.namespace == name]:
                return group
        case {"type": str(kind)} if _hosted(kind) in offer.left_out:
            return []
    raise _invalid(f"tool_choice.tools[{index}]", "should be the type and name of one of 'tools'")


def _unserved(kind: Json, where: str) -> BadRequest:
    if not isinstance(kind, str):
        return _invalid(where, "should be 'function'")
    known = _hosted(kind)
    instead = f" Instead, {_INSTEAD[known]}." if known else ""
    return BadRequest(
        f"This gateway runs no tools, and '{kind[:64]}' is one that the server runs. It serves tools of type "
        f"'function', 'custom' and 'namespace'.{instead}",
        param=where,
        code="unsupported_tool",
    )


def _hosted(kind: str) -> str | None:
    """The name under which a tool is known that a server runs."""
    return next((name for name in _INSTEAD if kind == name or kind.startswith(f"{name}_")), None)


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
