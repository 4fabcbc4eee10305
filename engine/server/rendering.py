"""What goes between the HTTP process and one in which a chat template runs.

The first message is ``Start``, every other one a ``Job``, and each gets one reply: four bytes of length, one that says
how it went, and text. Replies are not pickled, since what a template makes of its process is not to be trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.server.template_files import Templates

LENGTH = struct.Struct("!I")
DONE, REFUSED, UNUSABLE, OUT_OF_MEMORY = b"+", b"-", b"!", b"m"
"""Kinds of replies. The text of the last is empty, and this process is of no more use after it."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one rendering may take."""

    seconds: float = 2.0
    """Of processor time. Real templates take 0.2 for 8,000 messages."""
    brief: float = 0.25
    """The same, of those who are quickly done: who is not begins anew among those who take long."""
    memory: int = 2**30
    """Bytes that the process may map."""
    characters: int = 2**25
    """Of the prompt: four times the longest body by default."""


@dataclass(frozen=True, slots=True)
class StartRendering:
    templates: Templates
    tokens: Mapping[str, str]
    """Special tokens by role."""
    bounds: RenderLimits
    brief: bool = False
    """Whether it is for those who are quickly done."""


@dataclass(frozen=True, slots=True)
class RenderJob:
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    generation_prompt: bool = True
    open: bool = False
    """Up to the last message's last character, as ``ChatTemplate.render_open`` has it."""
