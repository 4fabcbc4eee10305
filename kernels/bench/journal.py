"""Results on disk after each step, so that the next run continues where this one was interrupted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

Told = dict[str, Any]


class Journal:
    """``path`` None: nothing is kept. ``about``: the configuration that results are valid for; a file with another one
    is discarded."""

    def __init__(
        self, path: Path | None, about: Mapping[str, str], *, render: Callable[[], Told] | None = None
    ) -> None:
        """``render``: further content of the file, for readers."""
        self._path = path
        self._about = dict(about)
        self._results: dict[str, Told] = {}
        self._done: dict[str, list[str]] = {}
        self._begun: dict[str, int] = {}
        self._render = render
        if path is not None and path.is_file():
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            kept = json.loads(path.read_text())["journal"]
            if kept["about"] == self._about:
                self._results, self._done = kept["results"], kept["done"]
                self._begun = kept["begun"]
        except (ValueError, KeyError, TypeError):  # Another's file, or one cut short.
            return

    @property
    def steps(self) -> int:
        """The number of completed steps."""
        return sum(map(len, self._done.values()))

    def get(self, op: str, name: str) -> Told | None:
        return self._results.get(_key(op, name))

    def done(self, op: str, name: str, kind: str) -> bool:
        return kind in self._done.get(_key(op, name), ())

    def tries(self, op: str, name: str, kind: str) -> int:
        """How often the step was started and did not return."""
        return self._begun.get(_key(op, name, kind), 0)

    def begin(self, op: str, name: str, kind: str) -> None:
        key = _key(op, name, kind)
        self._begun[key] = self._begun.get(key, 0) + 1
        self.write()

    def take(self, op: str, name: str, kind: str, result: Any | None) -> None:
        """``result``: a dataclass; ``None``: the step was not completed."""
        self._begun.pop(_key(op, name, kind), None)
        if result is not None:
            self._results[_key(op, name)] = asdict(result)
            self._done.setdefault(_key(op, name), []).append(kind)
        self.write()

    def write(self) -> None:
        if self._path is None:
            return
        journal = {"about": self._about, "results": self._results, "done": self._done, "begun": self._begun}
        content = {**(self._render() if self._render else {}), "journal": journal}
        temporary = self._path.with_name(self._path.name + ".new")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(temporary, self._path)


def _key(*parts: str) -> str:
    return " | ".join(parts)


def fingerprint(folder: Path) -> str:
    """A hash of all sources: results of other code are not reused."""
    digest = blake2b(digest_size=8)
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
