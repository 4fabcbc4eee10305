"""What only the gateway, or the provider behind it, reads again: the ``encrypted_content`` of items.

Signed thoughts are the provider's own, which it can verify; the caller is shown them as they are, too. A compaction is
what the system had said, and a summary that a model wrote: those are sealed, for the tenant whose conversation it was.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import orjson

from gateway.errors import BadRequest
from gateway.secret_box import SecretBox
from gateway.types import Json

_THOUGHTS, _PLAIN, _SEALED = "tgt1.", "tgs1.", "tgs2."
"""Compactions were plain up to 0.2: those conversations go on."""


def seal_thoughts(blocks: list[Json]) -> str:
    """``blocks`` as ``gateway.wire.openai.thinking_blocks`` has them."""
    return _THOUGHTS + urlsafe_b64encode(orjson.dumps(blocks)).decode()


def thoughts(sealed: Json) -> list[Json]:
    """Empty for what another server sealed."""
    if not isinstance(sealed, str) or not sealed.startswith(_THOUGHTS):
        return []
    blocks = _decoded(sealed.removeprefix(_THOUGHTS))
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


class SummarySeal:
    """Seals compactions. ``secret`` is the gateway's, the same in all that share a conversation."""

    def __init__(self, secret: str) -> None:
        self._box = SecretBox(secret, "compaction")

    def close(self, tenant: str, system: Sequence[str], summary: str) -> str:
        return _SEALED + self._box.seal(orjson.dumps([*system, summary]), tenant)

    def open(self, tenant: str, sealed: str) -> tuple[list[str], str]:
        """What the system had said, and the summary. Raises ``BadRequest``."""
        match self._opened(tenant, sealed):
            case [*system, str(text)] if all(isinstance(one, str) for one in system):
                return [str(one) for one in system], text
        raise BadRequest(
            "A compaction item was made by another server, and nobody else can read it. " + _INSTEAD,
            param="input",
            code="invalid_encrypted_content",
        )

    def _opened(self, tenant: str, sealed: str) -> Json:
        if sealed.startswith(_PLAIN):
            return _decoded(sealed.removeprefix(_PLAIN))
        if not sealed.startswith(_SEALED):
            return None
        content = self._box.open(sealed.removeprefix(_SEALED), tenant)
        if content is None:
            raise BadRequest(
                "A compaction item cannot be opened: it was changed, was made for another tenant, or this gateway's "
                "session secret is not the one that it was made with. " + _INSTEAD,
                param="input",
                code="invalid_encrypted_content",
            )
        return orjson.loads(content)


_INSTEAD = "Send the conversation itself, or compact it with this gateway's /v1/responses/compact."


def _decoded(text: str) -> Json:
    try:
        return orjson.loads(urlsafe_b64decode(text))
    except ValueError:  # of the coding, or of what it holds
        return None
