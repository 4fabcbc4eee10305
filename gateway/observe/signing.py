"""Signatures of messages that are posted to others, as Standard Webhooks 1.0 has them.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable
from hashlib import sha256


def signed_headers(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that go with ``body``; ``timestamp`` (Unix, seconds) is the attempt's, and one of ``keys`` verifies
    it."""
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signatures = (base64.b64encode(hmac.digest(key, content, sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
