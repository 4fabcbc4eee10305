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
_BYTES = {"bytes": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_DOWNLOADING = re.compile(r"\s*Downloading (?:\S+/)?(([^/\s]+?)-[0-9]\S*)(?: \(([\d.]+) (bytes|[kMG]B)\))?")
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
    """Told each line of pip's, and that time passes.

    ``packages`` is where it unpacks to, ``downloads`` the folder for temporary files that it alone was given: how far
    a download has come is the size of its file there, whichever pip it is.
    """

    def __init__(self, packages: Path, downloads: Path, out: TextIO | None = None) -> None:
        self.packages, self.downloads = packages, downloads
        self.out = out or sys.stdout
        self.moves = self.out.isatty()
        self.started = self.said = time.monotonic()
        self.drawn = 0.0
        self.what, self.found = "", 0
        self.file, self.whole = "", 0
        self.unpacked_before: int | None = None

    def line(self, line: str) -> None:
        if match := _DOWNLOADING.match(line):
            name, size, unit = match[2], match[3], match[4]
            self.what, self.file = f"downloading {unquote(name)}", unquote(match[1])
            self.whole = int(float(size) * _BYTES[unit]) if size else 0
        elif line.startswith("Collecting "):
            self.found += 1
            self.what, self.whole = f"{self.found} packages found", 0
        elif line.startswith(UNPACKING):
            self.what, self.whole = "unpacking", line.count(",") + 1
            self.unpacked_before = self._unpacked()
        if (news := news_in(line)) is not None:
            self.say(news)
        self.tick()

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
            done = min(max(self._unpacked() - self.unpacked_before, 0), self.whole)
            parts += [bar(done, self.whole), f"{done} of {self.whole} packages"]
        elif self.whole:
            done = min(self._downloaded(), self.whole)
            parts += [bar(done, self.whole), f"{done / 1e6:.1f} of {self.whole / 1e6:.1f} MB"]
        parts.append(f"{now - self.started:.0f} s")
        return " ".join(parts)[: shutil.get_terminal_size().columns - 1]

    def _unpacked(self) -> int:
        return sum(1 for _ in self.packages.glob("*.dist-info"))

    def _downloaded(self) -> int:
        try:
            return max((path.stat().st_size for path in self.downloads.glob(f"*/{self.file}")), default=0)
        except FileNotFoundError:  # unpacked, and gone meanwhile
            return self.whole
