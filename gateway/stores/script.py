"""Lua scripts that run in Redis, and the command that runs one."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the SHA-1 by which it is called."""

    text: str
    sha: str

    @classmethod
    def load(cls, *names: str) -> Script:
        """The files of these names in ``scripts``, one after the other."""
        folder = resources.files("gateway.stores") / "scripts"
        text = "".join((folder / f"{name}.lua").read_text("utf-8") for name in names)
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True)
class Command:
    script: Script
    keys: list[str]
    args: list[str | int]
    failed: int = 0
