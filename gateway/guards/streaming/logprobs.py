"""Log-probabilities spell out the tokens of an answer: they may only leave with the text that they are of."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.types import Json


def spell(logprobs: Json, texts: Mapping[str, str]) -> bool:
    """Whether the tokens in ``logprobs`` are those of ``texts``, a delta's own, and of nothing else.

    A server may send them before their text, as for a character whose bytes are several tokens.
    """
    if not isinstance(logprobs, Mapping):
        return False
    if "tokens" in logprobs:  # as the older Completions have it
        tokens = logprobs["tokens"]
        return isinstance(tokens, list) and "".join(map(str, tokens)) == texts.get("content", "")
    return all(
        _spelled(entries, texts.get(name, "")) for name, entries in logprobs.items() if entries is not None
    )


def _spelled(entries: Json, text: str) -> bool:
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return False
    if "".join(str(entry.get("token")) for entry in entries) == text:
        return True
    try:
        return b"".join(bytes(entry["bytes"]) for entry in entries) == text.encode()
    except (KeyError, TypeError, ValueError):
        return False
