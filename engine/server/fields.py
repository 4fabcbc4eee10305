"""Unsupported fields: which of them are ignored, and which are refused.

A field that only concerns cost, speed, storage, effort or style is ignored, and so is an unknown one,
which may be meant for another server that the same request is sent to. Ignored fields are named in a header. A field
that would change the answer is refused by name, except with values that have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import UnsupportedParameter

REFUSED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": ([], ["text"]),
    "moderation": (),
    "suffix": ("",),
    "web_search_options": (),
    # vLLM's
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "include_stop_str_in_output": (False,),
    "logits_processors": ([],),
    "prompt_embeds": ([],),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Fields that would change the answer, and values of theirs that have no effect; null never has."""

_LONGEST = 200
"""Most characters of names in a header."""


def ignored(fields: Mapping[str, Any]) -> list[str]:
    """The names of those ``fields``, unknown to a body, that are ignored. Raises ``UnsupportedParameter``."""
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if name in REFUSED and value not in REFUSED[name]:
            raise UnsupportedParameter(
                f"'{name}' is not supported by this engine, and the answer would be another one without it. "
                "Leave it out.",
                param=name,
            )
    return sorted(given)


def listed(names: Iterable[str]) -> str:
    """Names for a header; as clients choose them, those that are not identifiers are left out."""
    text = ""
    for name in names:
        if name.isascii() and name.isidentifier() and len(text) + len(name) < _LONGEST:
            text += f"{', ' if text else ''}{name}"
    return text
