"""Opus: each packet says in its first bytes how long it plays (RFC 6716, section 3.1)."""

from __future__ import annotations

_SLOW, _MIXED, _FAST = (10.0, 20.0, 40.0, 60.0), (10.0, 20.0), (2.5, 5.0, 10.0, 20.0)
_FRAMES = (1, 2, 2)
_LONGEST = 120.0


def seconds(packet: bytes) -> float:
    """Of a packet that begins like this."""
    if not packet:
        return 0.0
    config, code = packet[0] >> 3, packet[0] & 3
    if config < 12:
        each = _SLOW[config & 3]
    elif config < 16:
        each = _MIXED[config & 1]
    else:
        each = _FAST[config & 3]
    frames = _FRAMES[code] if code < 3 else (packet[1] & 0x3F if len(packet) > 1 else 0)
    return min(_LONGEST, each * frames) / 1000
