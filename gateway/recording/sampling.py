"""Which requests are looked at more closely: by their ids, so that every process, and everybody who asks, agrees."""

from __future__ import annotations

from hashlib import blake2b

from gateway.types import NOT_STORED, Call


def fraction(request_id: str) -> float:
    """0 to 1, the same for the same request in every process. Of two shares the smaller lies within the larger."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=6).digest(), "big") / 2**48


def forbids_storage(call: Call) -> bool:
    """Whether its caller says that nothing of it is to be stored."""
    if call.request.params.get("store") is False or NOT_STORED in call.receipt.noted:
        return True
    return call.request.native is not None and call.request.native.body.get("store") is False
