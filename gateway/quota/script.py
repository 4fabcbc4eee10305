"""The Lua scripts of quotas, and the command that runs one."""

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
    def load(cls, name: str) -> Script:
        folder = resources.files("gateway.stores") / "scripts"
        text = "".join(
            (folder / file).read_text("utf-8") for file in ("quota_common.lua", f"quota_{name}.lua")
        )
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True)
class Command:
    script: Script
    keys: list[str]
    args: list[str | int]
    failed: int = 0
