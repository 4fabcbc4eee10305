"""The texts that activations are observed on."""

from __future__ import annotations

import json
from pathlib import Path

from engine.errors import StartupError


def read(path: Path, tokenizer: Path, length: int, tokens: int) -> list[list[int]]:
    """``tokens`` tokens in texts of ``length``, of the rows ``{"text": …}`` of ``path``, in order and end to end.

    Raises ``StartupError`` for a file that has no such rows, or not a whole text of them.
    """
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    texts: list[list[int]] = []
    left: list[int] = []
    for text in _texts(path):
        left += encoder.encode(text).ids
        while len(left) >= length:
            texts.append(left[:length])
            left = left[length:]
            if len(texts) * length >= tokens:
                return texts
    if not texts:
        raise StartupError(f"--calibration {path} has fewer than {length} tokens: give more text.")
    return texts


def _texts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"--calibration {path} cannot be read: {error}.") from error
    texts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            texts.append(str(json.loads(line)["text"]))
        except (ValueError, LookupError, TypeError) as error:
            raise StartupError(f'{path}:{number} is not an object with "text": {error}.') from error
    return texts
