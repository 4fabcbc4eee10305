"""Jinja as chat templates expect it: what Hugging Face's transformers gives them, in a sandbox.

https://huggingface.co/docs/transformers/chat_templating_writing: ``raise_exception``, ``strftime_now``, ``tojson`` that
does not escape for HTML, ``break`` and ``continue``, and ``{% generation %}``, which marks training targets and renders
its body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Nothing(str):
    """The content of a message that has none: null to a template that tests for null, and an empty string to others.

    Some templates recognize tool calls by null, and many would render it as "None".
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other is None or str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made.tests["none"] = lambda value: value is None or isinstance(value, Nothing)
    return made


class _Generation(Extension):
    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # As a call, whose body has its own scope: variables set inside are not visible outside, as with transformers.
        return nodes.CallBlock(self.call_method("show"), [], [], body).set_lineno(line)

    def show(self, caller: Macro) -> str:
        return str(caller())


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        _plain(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _plain(value: Any) -> Any:
    """With null for ``Nothing``: a content, a message or messages."""
    if isinstance(value, Nothing):
        return None
    if isinstance(value, Mapping) and isinstance(value.get("content"), Nothing):
        return {**value, "content": None}
    if isinstance(value, list) and any(_plain(item) is not item for item in value):
        return [_plain(item) for item in value]
    return value
