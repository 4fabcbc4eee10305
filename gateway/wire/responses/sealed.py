"""What only the gateway, or the provider behind it, reads again: the ``encrypted_content`` of items.

Signed thoughts are the provider's own, which it can verify. A compaction is what the system had said, and a summary
that a model wrote; it is coded, not encrypted, and whoever changes it changes his own conversation.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import orjson

from gateway.types import Json

_THOUGHTS, _SUMMARY = "tgt1.", "tgs1."


def seal_thoughts(blocks: list[Json]) -> str:
    """``blocks`` as ``gateway.wire.openai.thinking_blocks`` has them."""
    return _THOUGHTS + urlsafe_b64encode(orjson.dumps(blocks)).decode()


def thoughts(sealed: Json) -> list[Json]:
    """Empty for what another server sealed."""
    blocks = _open(sealed, _THOUGHTS)
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def seal_summary(system: Sequence[str], summary: str) -> str:
    return _SUMMARY + urlsafe_b64encode(orjson.dumps([*system, summary])).decode()


def summary(sealed: Json) -> tuple[list[str], str] | None:
    """What the system had said, and the summary; None for what another server sealed."""
    match _open(sealed, _SUMMARY):
        case [*system, str(text)] if all(isinstance(one, str) for one in system):
            return [str(one) for one in system], text
    return None


def _open(sealed: Json, kind: str) -> Json:
    if not isinstance(sealed, str) or not sealed.startswith(kind):
        return None
    try:
        return orjson.loads(urlsafe_b64decode(sealed.removeprefix(kind)))
    except ValueError:  # of the coding, or of what it holds
        return None
