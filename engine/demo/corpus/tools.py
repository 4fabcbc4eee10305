"""Tools, calls of them, and how the chat template shows both to the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: str
    """A type of JSON Schema, or an enumeration as ``one|other``."""
    required: bool = True

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": self.kind.split("|")} if "|" in self.kind else {"type": self.kind}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: tuple[Parameter, ...]
    about: str = ""

    def schema(self) -> dict[str, Any]:
        """As OpenAI's API has tools."""
        parameters = {
            "type": "object",
            "properties": {one.name: one.schema() for one in self.parameters},
            "required": [one.name for one in self.parameters if one.required],
        }
        about = {"description": self.about} if self.about else {}
        return {"type": "function", "function": {"name": self.name, **about, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Use:
    """A tool, a question that wants it, and the arguments that follow from the question."""

    tool: Tool
    question: str
    arguments: dict[str, Value]

    @property
    def key(self) -> str:
        """What is held out: these arguments for this tool, however they are asked for."""
        return f"{self.tool.name}|{json.dumps(self.arguments)}"


def shown(tools: Sequence[Tool]) -> str:
    """The list of tools as the chat template shows it to the model."""
    return "\n".join(["Tools:", *(_signature(tool) for tool in tools)])


def _signature(tool: Tool) -> str:
    written = (f"{one.name}{'' if one.required else '?'}: {one.kind}" for one in tool.parameters)
    return f"{tool.name}({', '.join(written)})" + (f": {tool.about}" if tool.about else "")


def called(uses: Sequence[Use]) -> str:
    """Calls as the model writes them."""
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': use.tool.name, 'arguments': use.arguments}, ensure_ascii=False)}\n</tool_call>"
        for use in uses
    )


def plain(value: Value) -> str:
    """As it stands in a question."""
    return value if isinstance(value, str) else json.dumps(value)
