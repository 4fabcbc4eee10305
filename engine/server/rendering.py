"""Messages between the HTTP process and a process in which chat templates run.

The first message is ``StartRendering``, every other one a ``RenderJob``, and each gets one reply: four bytes of length,
one for the kind, and text. Replies are not pickled, since a process that has run a template is not trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.server.template_files import Templates

LENGTH = struct.Struct("!I")
DONE, REFUSED, UNUSABLE, OUT_OF_MEMORY = b"+", b"-", b"!", b"m"
"""Kinds of replies. The text of the last is empty, and the process is unusable after it."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of one rendering."""

    seconds: float = 2.0
    """Of processor time. Real templates take 0.2 for 8,000 messages."""
    brief: float = 0.25
    """The same, in the process for fast renderings: a slower one starts again in that for slow ones."""
    memory: int = 2**30
    """Bytes of address space."""
    characters: int = 2**25
    """Of the prompt: four times the longest body by default."""


@dataclass(frozen=True, slots=True)
class StartRendering:
    templates: Templates
    tokens: Mapping[str, str]
    """Special tokens by role."""
    bounds: RenderLimits
    brief: bool = False
    """Whether the process is for fast renderings."""


@dataclass(frozen=True, slots=True)
class RenderJob:
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    generation_prompt: bool = True
    open: bool = False
    """Up to the last message's last character, as ``ChatTemplate.render_open`` has it."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """More that the template reads."""
