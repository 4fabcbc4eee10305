"""Ids in the dialect of whoever reads them.

Anthropic's begin with ``msg_`` and ``toolu_``, OpenAI's with ``chatcmpl-`` and ``call_``. What differs is the
beginning, so that each is made of the other, and tool turns go round. The canonical form has OpenAI's.
"""

from __future__ import annotations

import re

_MESSAGE, _COMPLETION = "msg_", "chatcmpl-"
_TOOL, _CALL = "toolu_", "call_"
_AS_IS = "as_"
"""Marks an id that began with neither, and is to be given back as it was."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


def message_to_openai(id: str) -> str:
    return _COMPLETION + id.removeprefix(_MESSAGE)


def message_to_anthropic(id: str) -> str:
    return id if id.startswith(_MESSAGE) else _MESSAGE + id.removeprefix(_COMPLETION)


def call_to_openai(id: str) -> str:
    """A ``tool_use``'s id as that of a tool call."""
    if not id.startswith(_TOOL):
        return id
    rest = id.removeprefix(_TOOL)
    return rest.removeprefix(_AS_IS) if rest.startswith(_AS_IS) else _CALL + rest


def call_to_anthropic(id: str) -> str:
    """A tool call's id as that of a ``tool_use``."""
    if id.startswith(_TOOL):
        return id
    return _TOOL + (id.removeprefix(_CALL) if id.startswith(_CALL) else _AS_IS + id)


def call_for_anthropic(id: str) -> str:
    """As ``call_to_anthropic``, of the letters that Anthropic's API takes."""
    return _UNFIT.sub("_", call_to_anthropic(id))
