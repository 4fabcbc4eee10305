"""Answers that had to be shorter than was asked for."""

from __future__ import annotations

import pytest

from gateway.backends import fitting
from gateway.caching import caches
from gateway.caching.answers import Recording
from gateway.caching.caches import Caches
from gateway.types import Chunk
from tests.fakes import CANDIDATE, a_call, policy


def test_the_header_is_the_one_that_backends_set() -> None:
    assert caches.CLIPPED == fitting.MAX_TOKENS


@pytest.mark.parametrize(
    ("clipped", "reason", "outcome"),
    [(True, "length", "clipped"), (True, "stop", "kept"), (False, "length", "kept")],
)
def test_one_that_was_cut_short_for_want_of_room_is_not_kept(
    clipped: bool, reason: str, outcome: str
) -> None:
    call = a_call(policy_=policy(caches={"exact": {}}))
    call.candidate = CANDIDATE
    if clipped:
        fitting.report_cap(call, 9)
    opened = Caches.open(call.policy, is_time_sensitive=lambda question: False)
    entry = opened.entry(call)
    assert entry is not None
    recording = Recording()
    recording.add(Chunk(delta={"role": "assistant", "content": "Qua"}))
    recording.add(Chunk(delta={}, finish_reason=reason))
    assert opened.keep(call, entry, recording) == outcome
