"""What a person sees of pip at work: on a terminal one line that moves, elsewhere a line now and then."""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote

HEARTBEAT_S = 15.0
NOTABLE_MB = 5.0
UNPACKING = "Installing collected packages:"
RAW_SINCE = (24, 1)
"""The pip whose --progress-bar knows ``raw``: lines as ``Progress 1024 of 4096``."""
_BAR = 24
_FRAME_S = 0.1


def news_in(line: str) -> str | None:
    """What of one line of pip's output is worth a person's attention: the large files and the last step."""
    line = line.strip()
    if match := re.match(r"Downloading (?:\S+/)?([^/\s]+?)-([0-9][^-]*)-\S+\.whl \(([\d.]+) ([MG]B)\)", line):
        name, version, size, unit = match.groups()
        notable = unit == "GB" or float(size) >= NOTABLE_MB
        return f"  downloading {name} {unquote(version)} ({size} {unit})" if notable else None
    if line.startswith(UNPACKING):
        return f"  unpacking {line.count(',') + 1} packages"
    if line.startswith(("WARNING: Retrying", "WARNING: Connection")):
        return "  the package index does not answer; retrying"
    return None


def bar(done: int, whole: int) -> str:
    filled = _BAR * min(done, whole) // max(whole, 1)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"


class PipOutput:
    """Told each line of pip's, and that time passes; ``packages`` is where it unpacks to."""

    def __init__(self, packages: Path, out: TextIO | None = None) -> None:
        self.packages = packages
        self.out = out or sys.stdout
        self.moves = self.out.isatty()
        self.started = self.said = time.monotonic()
        self.drawn = 0.0
        self.what, self.found = "", 0
        self.done, self.whole = 0, 0
        self.unpacked_before: int | None = None

    def line(self, line: str) -> bool:
        """Whether the line is for the log too: one that only moves the bar is not."""
        if match := re.match(r"Progress (\d+) of (\d+)", line):
            self.done, self.whole = int(match[1]), int(match[2])
            self.tick()
            return False
        if match := re.match(r"\s*Downloading (?:\S+/)?([^/\s]+?)-[0-9]", line):
            self.what, self.done, self.whole = f"downloading {unquote(match[1])}", 0, 0
        elif line.startswith("Collecting "):
            self.found += 1
            self.what, self.done, self.whole = f"{self.found} packages found", 0, 0
        elif line.startswith(UNPACKING):
            self.what, self.whole = "unpacking", line.count(",") + 1
            self.unpacked_before = self._unpacked()
        if (news := news_in(line)) is not None:
            self.say(news)
        self.tick()
        return True

    def tick(self) -> None:
        now = time.monotonic()
        if not self.moves:
            if now - self.said > HEARTBEAT_S:
                self.say(f"  still at it, {now - self.started:.0f} s")
        elif now - self.drawn >= _FRAME_S:
            self.drawn = now
            self.out.write(f"\r\x1b[K{self._drawing(now)}")
            self.out.flush()

    def say(self, message: str) -> None:
        self.clear()
        print(message, file=self.out, flush=True)
        self.said = time.monotonic()

    def clear(self) -> None:
        if self.moves:
            self.out.write("\r\x1b[K")
            self.out.flush()

    def _drawing(self, now: float) -> str:
        parts = ["  " + (self.what or "asking the package index")]
        if self.unpacked_before is not None:
            self.done = max(self._unpacked() - self.unpacked_before, 0)
            parts += [bar(self.done, self.whole), f"{min(self.done, self.whole)} of {self.whole} packages"]
        elif self.whole:
            parts += [bar(self.done, self.whole), f"{self.done / 1e6:.1f} of {self.whole / 1e6:.1f} MB"]
        parts.append(f"{now - self.started:.0f} s")
        return " ".join(parts)[: shutil.get_terminal_size().columns - 1]

    def _unpacked(self) -> int:
        return sum(1 for _ in self.packages.glob("*.dist-info"))
