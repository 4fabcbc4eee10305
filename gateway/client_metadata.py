"""What a client's program writes into a prompt about itself, for its own maker's servers.

Claude Code's first system block ends in letters that change with the conversation's first message. No cached prefix
reaches beyond it, so every conversation's instructions and tools, 27,000 tokens, would be computed anew.
"""

from __future__ import annotations

_BILLING = "x-anthropic-billing-header:"


def split_metadata(text: str) -> tuple[str, str]:
    """What the program says of itself, and the rest of a system text: the prompt."""
    if not text.startswith(_BILLING):
        return "", text
    line, _, rest = text.partition("\n")
    return line.strip(), rest.lstrip("\n")


def is_metadata(text: str) -> bool:
    """Whether there is nothing else in ``text``."""
    said, rest = split_metadata(text)
    return bool(said) and not rest
