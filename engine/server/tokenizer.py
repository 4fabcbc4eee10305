"""Text ↔ token ids, and which of them end an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

from engine.errors import ModelUnavailable
from engine.grammar.language import quoted

_CONTEXT = 5
"""Most tokens of context: a character has four bytes at most, each of which may be a token."""

_ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def _alphabet() -> dict[str, int]:
    """GPT-2's characters for the 256 bytes: printable ones are themselves, the others follow the 256th."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _alphabet()


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
        self.roles = _roles(self.settings | _legacy_roles(folder, self.settings))
        """Special tokens by role, such as ``bos_token``, for chat templates."""
        self.bos, self.eos = self.roles.get("bos_token"), self.roles.get("eos_token")
        self.stop_ids = self._stop_ids(folder)
        self.longest = max(map(len, self._tokenizer.get_vocab()), default=1)
        """Characters of the longest token."""
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = set(added)
        self._special = {number for number, token in added.items() if token.special}
        decoder = self._tokenizer.decoder
        kinds = decoder.__getstate__() if decoder is not None else b""
        self._byte_level = b'"ByteLevel"' in kinds
        self._byte_fallback = b'"ByteFallback"' in kinds
        self.spells_bytes = self._byte_level or self._byte_fallback or b'"Metaspace"' in kinds
        """Whether the bytes of every token are known."""
        self._bytes: dict[int, bytes | None] = {}

    def encode(self, text: str, *, special: bool) -> list[int]:
        """``special`` adds the special tokens that a plain prompt starts with; chat templates write them themselves."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def showing(
        self, texts: Iterable[str], tokens: Mapping[int, str] | None = None
    ) -> Callable[[list[int]], str]:
        """``decode``, but with the special tokens that are among ``texts`` visible, and ``tokens`` as they say."""
        ids = {self._tokenizer.token_to_id(text): text for text in texts}
        shown = {number: text for number, text in ids.items() if number in self._special} | dict(tokens or {})
        return partial(self._decode_showing, shown) if shown else self.decode

    def _decode_showing(self, shown: Mapping[int, str], ids: list[int]) -> str:
        text, start = "", 0
        for place, token in enumerate(ids):
            if token in shown:
                text += self.decode(ids[start:place]) + shown[token]
                start = place + 1
        return text + self.decode(ids[start:])

    def marker(self, text: str) -> str:
        """``text`` in a Lark grammar: by id where it is a single token, as llguidance expects."""
        number = self._tokenizer.token_to_id(text)
        if number in self._special or (number in self._added and text[0] + text[-1] == "<>"):
            return f"<[{number}]>"
        return quoted(text)

    def added(self, text: str) -> int | None:
        """The id of ``text`` where it is a token beside the vocabulary, which no other tokens spell."""
        number = self._tokenizer.token_to_id(text)
        return number if number in self._added else None

    def token(self, text: str) -> int | None:
        """The id of ``text`` where it is one token."""
        number = self._tokenizer.token_to_id(text)
        return None if number is None else int(number)

    def bytes_of(self, token: int) -> bytes | None:
        """The token's bytes, possibly a part of a character; ``None`` for one that adds nothing."""
        if token not in self._bytes:
            self._bytes[token] = self._spell(token)
        return self._bytes[token]

    def name_of(self, token: int) -> str:
        """The token as the vocabulary has it; empty if it is not there."""
        return str(self._tokenizer.id_to_token(token) or "")

    def context(self, ids: list[int]) -> list[int]:
        """The last few of ``ids`` that decode to whole characters: context for decoding what comes next."""
        for count in range(1, min(_CONTEXT, len(ids)) + 1):
            text = self.decode(ids[-count:])
            if text and "\ufffd" not in text:
                return ids[-count:]
        return []

    def _spell(self, token: int) -> bytes | None:
        name = self.name_of(token)
        if not name or token in self._special:
            return None
        if self._byte_level and all(sign in _BYTES for sign in name):
            return bytes(_BYTES[sign] for sign in name)
        if self._byte_fallback:
            found = re.fullmatch(r"<0x([0-9A-F]{2})>", name)
            return bytes.fromhex(found[1]) if found else name.replace("\u2581", " ").encode()
        return self.decode([token]).encode()

    def _stop_ids(self, folder: Path) -> frozenset[int]:
        ids: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            found = _read(folder / name).get("eos_token_id")
            ids.update(found if isinstance(found, list) else [found] if found is not None else [])
        if self.eos is not None and (eos := self._tokenizer.token_to_id(self.eos)) is not None:
            ids.add(eos)
        return frozenset(ids)


def _roles(settings: Mapping[str, Any]) -> dict[str, str]:
    """A token is ``"</s>"``, or ``{"content": "</s>", …}`` as some tokenizers write it."""
    given = {role: settings.get(role) for role in _ROLES}
    texts = {
        role: token.get("content") if isinstance(token, dict) else token for role, token in given.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _legacy_roles(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Checkpoints from before 2024 have them in a file of their own."""
    return {} if "added_tokens_decoder" in settings else _read(folder / "special_tokens_map.json")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{path} is not JSON: {error}.") from error
    return found if isinstance(found, dict) else {}
