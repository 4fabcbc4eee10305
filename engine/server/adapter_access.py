"""Who may change adapters, and which folders they may come from.

Whoever loads an adapter has the engine read a folder of its machine, and changes what others are answered. So it takes
a bearer token of its own, and folders outside those of ``--adapter-folder`` are not read, whatever leads there.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.adapter_files import FILES
from engine.errors import Forbidden, InvalidRequest, StartupError, Unauthorized

VARIABLE = "TOLLGATE_ADAPTER_TOKEN"
_LEAST = 16
"""Bytes of a token."""


def read_token(path: Path | None, environment: Mapping[str, str]) -> bytes | None:
    """Of the file or, without one, of the environment; ``None``: there is none. Raises ``StartupError``."""
    if path is not None:
        try:
            token = path.read_bytes().strip()
        except OSError as error:
            raise StartupError(
                f"--adapter-token-file {path} cannot be read: {error.strerror or error}."
            ) from None
        where = f"--adapter-token-file {path}"
    else:
        token, where = environment.get(VARIABLE, "").strip().encode(), VARIABLE
        if not token:
            return None
    if len(token) < _LEAST or not token.isascii() or any(byte <= 0x20 for byte in token):
        raise StartupError(
            f"The token of {where} must be {_LEAST} or more visible ASCII characters. Make one with: "
            "openssl rand -hex 32"
        )
    return token


class AdapterAccess:
    def __init__(self, token: bytes | None = None, folders: Sequence[Path] = ()) -> None:
        """``token`` ``None``: nobody may. Raises ``StartupError`` if one of ``folders`` is not there."""
        self._token = token
        self._roots: list[Path] = []
        for folder in folders:
            if not folder.is_dir():
                raise StartupError(f"--adapter-folder {folder} is not a folder: make it, or leave it out.")
            self._roots.append(folder.resolve())

    @property
    def home(self) -> Path | None:
        """Where uploads go: the first of the folders."""
        return self._roots[0] if self._roots else None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises ``Forbidden`` if adapters are not changed here, ``Unauthorized`` without the token."""
        if self._token is None:
            raise Forbidden(
                "Adapters are not changed at run time here: start the engine with --max-adapters, and with "
                f"--adapter-token-file FILE or {VARIABLE} set."
            )
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            raise Unauthorized(
                "This path takes the header 'authorization: Bearer TOKEN' with the token of --adapter-token-file."
            )

    def find(self, path: str) -> Path:
        """The folder of an adapter; a relative one is looked for in each of the folders. Raises ``InvalidRequest`` if
        it, or a file in it, is not within one of them."""
        if not self._roots:
            raise InvalidRequest(
                "This engine reads no folders at run time: start it with --adapter-folder FOLDER.",
                param="lora_path",
            )
        for root in self._roots:
            # An absolute path stays itself.
            found = self._within(root / path)
            if found is not None:
                return found
        raise InvalidRequest(
            "'lora_path' must be a folder within one of --adapter-folder, links followed.", param="lora_path"
        )

    def _within(self, path: Path) -> Path | None:
        try:
            folder = path.resolve()
            known = (folder, *((folder / name).resolve() for name in FILES))
            inside = all(any(one.is_relative_to(root) for root in self._roots) for one in known)
            return folder if inside and folder.is_dir() else None
        except (OSError, ValueError, RuntimeError):
            # A loop of links, a name that is too long, or one with a zero byte.
            return None
