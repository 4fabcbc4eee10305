"""A model's tokens as llguidance has them: a trie, built when a grammar is asked for or there is time."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from llguidance import LLTokenizer

_END = "<|end of grammar|>"
"""A token of our own that llguidance takes for the end; each request's own stop tokens replace it in the masks."""


class Vocabulary:
    """Thread-safe. A trie of 150,000 tokens takes a second, for half of which no other thread can run: so it is
    no part of a start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._read: tuple[LLTokenizer, int] | None = None

    def get(self) -> tuple[LLTokenizer, int]:
        """llguidance's tokenizer, and the id of the token for the end. Waits for a thread that reads it already."""
        with self._lock:
            if self._read is None:
                self._read = _read(self._folder)
            return self._read


def _read(folder: Path) -> tuple[LLTokenizer, int]:
    # Imported here: it takes a tenth of a second, and nothing else in this process needs it.
    from tokenizers import AddedToken, decoders
    from tokenizers import Tokenizer as RustTokenizer

    tokenizer = RustTokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.add_special_tokens([AddedToken(_END, special=True)])
    end = tokenizer.token_to_id(_END)
    kinds = tokenizer.decoder.__getstate__() if tokenizer.decoder is not None else b""
    if b'"Metaspace"' in kinds:
        # Equivalent for llguidance, which needs only each token's bytes, and in a form that it can read.
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    return LLTokenizer(tokenizer.to_str(), eos_token=end), end
