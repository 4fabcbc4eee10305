"""A canary: a number in the system prompt that no answer holds unless it repeats the prompt."""

from __future__ import annotations

import re
from hashlib import sha256

from gateway.findings import Finding

LABEL = "leak"
LONGEST = 20
"""Characters of a canary."""
_FORM = re.compile(r"(?<![0-9a-f])cn-([0-9a-f]{8})-([0-9a-f]{8})(?![0-9a-f])")


def canary(prompt: str) -> str:
    """That of ``prompt``: the same each time, so that caches keep working.

    It proves itself, so that every worker knows it and no other number is taken for one. Who knows the prompt could
    make it, but has nothing to gain by that.
    """
    number = _digest(prompt)
    return f"cn-{number}-{_digest('canary ' + number)}"


def canaries(text: str) -> tuple[Finding, ...]:
    """Where ``text`` has one, of whatever prompt."""
    return tuple(
        Finding(LABEL, *match.span(), 1.0)
        for match in _FORM.finditer(text)
        if _digest("canary " + match[1]) == match[2]
    )


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
