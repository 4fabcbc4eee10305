"""What a client's program writes into a prompt about itself, for its own maker's servers.

Claude Code's first system block ends in letters that change with the conversation's first message. No cached prefix
reaches beyond it, so every conversation's instructions and tools, 27,000 tokens, would be computed anew.
"""

from __future__ import annotations

import re

_FIELD = r" ?[\w-]{1,40}=[\w.:/+-]{0,80}"
_BILLING = re.compile(
    rf"x-anthropic-billing-header:{_FIELD}(?:;{_FIELD}){{0,15}};? {{0,8}}(?:\n|$)", re.ASCII
)
"""Names with values, and no prose: instructions that somebody's name begins like this are not swallowed."""


def split_metadata(text: str) -> tuple[str, str]:
    """What the program says of itself, and the rest of a system text: the prompt."""
    found = _BILLING.match(text)
    return (found[0].strip(), text[found.end() :].lstrip("\n")) if found is not None else ("", text)


def is_metadata(text: str) -> bool:
    """Whether there is nothing else in ``text``."""
    said, rest = split_metadata(text)
    return bool(said) and not rest
