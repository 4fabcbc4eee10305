"""Text ↔ token ids, and which of them end an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from engine.errors import ModelUnavailable


class Tokenizer:
    """Raises ``ModelUnavailable`` if the folder holds no tokenizer.json."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = RustTokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises no narrower class
            raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
        # A limit meant for training would silently cut prompts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.settings = _read(folder / "tokenizer_config.json")
        self.bos = _special(self.settings.get("bos_token"))
        self.eos = _special(self.settings.get("eos_token"))
        self.stop_ids = self._stop_ids(folder)
        self.longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        """Characters of the longest token."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """``special`` lets the tokenizer add what a bare prompt starts with; a chat template writes that itself."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _stop_ids(self, folder: Path) -> frozenset[int]:
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            found = _read(folder / name).get("eos_token_id")
            ids.update(found if isinstance(found, list) else [found] if found is not None else [])
        if self.eos is not None and (eos := self._tokenizer.token_to_id(self.eos)) is not None:
            ids.add(eos)
        return frozenset(ids)


def _special(token: Any) -> str | None:
    """``"</s>"``, or ``{"content": "</s>", …}`` as some tokenizers write it."""
    return token.get("content") if isinstance(token, dict) else token


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelUnavailable(f"{path} is not JSON: {error}.") from error
    return found if isinstance(found, dict) else {}
