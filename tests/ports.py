"""Ports for servers that are told theirs before they listen."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 15_000, 30_000
"""Below those that Linux gives to outgoing connections (``ip_local_port_range``), one of which would be in the way."""


def free_port() -> int:
    """Of 127.0.0.1, by chance: test runs side by side seldom choose the same."""
    for port in random.SystemRandom().sample(range(FIRST, LAST), 100):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"none of 100 ports between {FIRST} and {LAST} is free")
