"""How many tokens a text has at least that is no prose: of words of a letter, of digits or of signs most are tokens."""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_letters, digits

from gateway.types import ChatRequest

LOOKED_AT = 2**16
"""Characters of a text that are looked at: what comes after them is taken to be like them."""
DIGITS = 3
"""In one token, as many tokenizers have them at most; others have one (Llama 2's, Gemma's, Qwen's)."""
SIGNS = 2
"""In one token, of code and tables; beside each other others are more."""

_DIGITS = digits.encode()
_LETTERS = ascii_letters.encode() + bytes(range(128, 256))
_NO_SIGNS = _LETTERS + _DIGITS + b" \t\n\r\f\v"
_ONLY_LETTERS, _ONLY_DIGITS = (
    bytes(code if code in kept else 0x20 for code in range(256)) for kept in (_LETTERS, _DIGITS)
)


def dense_tokens(text: str) -> int:
    """A token for each run of letters or digits, or more, and for so many signs. For prose it is less than a quarter of
    its characters."""
    size = len(text)
    if size > LOOKED_AT:
        return dense_tokens(text[:LOOKED_AT]) * size // LOOKED_AT
    data = text.encode("utf-8", "surrogatepass")
    words = len(data.translate(_ONLY_LETTERS).split())
    numbers = data.translate(_ONLY_DIGITS).split()
    figures = max(len(numbers), sum(map(len, numbers)) // DIGITS)
    return words + figures + len(data.translate(None, _NO_SIGNS)) // SIGNS


def dense_prompt(request: ChatRequest) -> int:
    """The same of all its prompts, or messages."""
    return dense_tokens("\n".join(_texts(request)))


def _texts(request: ChatRequest) -> Iterator[str]:
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    yield from (one for one in prompts or () if isinstance(one, str))
    for message in request.messages or ():
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, dict))
            yield from (text for text in texts if isinstance(text, str))
