"""A rank that loads says now and then that it still does, or one that is stopped would be waited for without end."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from engine.channel import Channel
from engine.nodes.sealed_channel import SealedChannel

INTERVAL = 5.0
"""Seconds between two signs of life."""
PATIENCE = 300.0
"""Seconds without one after which rank 0 gives a rank up: it gives none while it imports torch from a slow disk."""


class Pulse:
    """The channel to rank 0 until ``end``. A sign of life is ``None``."""

    def __init__(self, channel: Channel | SealedChannel, interval: float = INTERVAL) -> None:
        self._channel = channel
        self._interval = interval
        self._lock = threading.Lock()
        """Of what is sent: messages must not mix."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """Raises ``EOFError`` when rank 0 is gone."""
        with self._lock:
            self._channel.send(message)

    def end(self) -> None:
        """From now on whoever has the channel is alone with it."""
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        with suppress(EOFError):  # the main thread notices, too
            while not self._ended.wait(self._interval):
                self.send(None)
