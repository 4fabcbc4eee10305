"""An operator's own regular expressions, which need not be fast."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gateway.findings import Finding


class CustomPatterns:
    """``patterns`` by the label of what they find.

    Each is tried on spans of twice ``window`` that overlap by it, so that its time is linear in the text: findings are
    at most a span long, and those of up to ``window`` are sure to be found.
    """

    def __init__(self, patterns: Mapping[str, str], window: int) -> None:
        self._patterns = {label: re.compile(pattern) for label, pattern in patterns.items()}
        self._window = window
        self.longest = window if patterns else 0

    def find(self, text: str) -> Iterator[Finding]:
        step, length = self._window, len(text)
        for label, pattern in self._patterns.items():
            first = last = 0
            for start in range(0, length, step):
                end = min(start + 2 * step, length)
                for match in pattern.finditer(text, start, end):
                    if match.start() >= start + step and end < length:
                        break  # the next span has all of it
                    if match.start() >= last:
                        if last > first:
                            yield Finding(label, first, last)
                        first = match.start()
                    # A finding longer than a span goes on in the next.
                    last = max(last, match.end())
            if last > first:
                yield Finding(label, first, last)
