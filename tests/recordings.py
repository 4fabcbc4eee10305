"""What a gateway of a test has recorded."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.policy.loader import load_policy
from gateway.recording import recordings
from gateway.recording.archive import Archive
from gateway.recording.opening import RecordingPlaces, open_recordings
from gateway.recording.recorded_request import RecordedRequest


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for more requests to come together."""
    monkeypatch.setattr(recordings, "PAUSE", 0.01)
    monkeypatch.setattr(recordings, "TICK", 0.05)


def places(folder: Path) -> RecordingPlaces:
    """Of a gateway whose policy is in ``folder/policies`` and whose state is in ``folder/state``."""
    policy = load_policy(folder / "policies", os.environ).policy
    return open_recordings(policy, folder / "state", makes=False)


def read(folder: Path) -> list[RecordedRequest]:
    """In order of time."""
    archive = Archive(places(folder))
    try:
        return sorted(archive.read(), key=lambda one: one.at)
    finally:
        archive.close()


async def recorded(folder: Path, count: int) -> list[RecordedRequest]:
    """Once there are so many, of a gateway that is running and soon puts segments away."""
    async with asyncio.timeout(300):
        while len(found := await asyncio.to_thread(read, folder)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found
