"""Token ids back to text: clients that tokenize for OpenAI's embedders send them (LangChain's ``OpenAIEmbeddings``).

They do so with tiktoken's ``cl100k_base``, whatever the model is. Its file is not shipped here; it is read where it
lies: in tiktoken's cache, or in a package that brings it along.
"""

from __future__ import annotations

import gzip
import os
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1, sha256
from importlib.util import find_spec
from pathlib import Path

URL = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
"""tiktoken's cache calls the file by this address's SHA-1 (https://github.com/openai/tiktoken, tiktoken/load.py)."""
SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_CACHED = sha1(URL.encode()).hexdigest()
_PACKAGES = (
    ("bpe_openai", "data/cl100k_base.tiktoken.gz"),
    ("llama_index", f"core/_static/tiktoken_cache/{_CACHED}"),
    ("litellm", f"litellm_core_utils/tokenizers/{_CACHED}"),
)
_SPECIAL = {
    100257: b"<|endoftext|>",
    100258: b"<|fim_prefix|>",
    100259: b"<|fim_middle|>",
    100260: b"<|fim_suffix|>",
    100276: b"<|endofprompt|>",
}


class UnknownToken(ValueError):
    """An id that the encoding does not have."""


class TokenIds:
    """The encoding ``cl100k_base``, backwards."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = {**pieces, **_SPECIAL}

    def text(self, ids: Sequence[int]) -> str:
        """Raises ``UnknownToken``. A list may be cut within a character, which then is replaced."""
        try:
            return b"".join([self._pieces[one] for one in ids]).decode(errors="replace")
        except KeyError as error:
            raise UnknownToken(f"there is no token {error.args[0]}") from None

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> TokenIds | None:
        """From the first path that has the file whole; None where none does. Takes a tenth of a second."""
        for path in _paths(environ):
            try:
                data = path.read_bytes()
                data = gzip.decompress(data) if path.suffix == ".gz" else data
            except (OSError, EOFError, zlib.error):
                continue
            if sha256(data).hexdigest() == SHA256:
                lines = (line.split() for line in data.splitlines() if line)
                return cls({int(rank): b64decode(piece) for piece, rank in lines})
        return None


def _paths(environ: Mapping[str, str]) -> Iterator[Path]:
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if environ.get(name):
            yield Path(environ[name]) / _CACHED
    for package, within in _PACKAGES:
        spec = find_spec(package)  # which imports nothing
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield Path(folder) / within
