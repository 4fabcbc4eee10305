"""Blocks that go by NIXL, where it is installed; where it is not, an engine that is to use it does not start."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.handover.nixl_agent import NixlReader
from engine.offline import OfflineEngine
from tests.engine.handover.pair import Engine, Giver, config_of, engines

GIVES = {"role": "prefill", "handover_address": "tcp://127.0.0.1:0"}
PROMPTS = [
    (
        [random.Random(n).randrange(2, 320) for _ in range(200 + n)],
        SamplingParams(max_tokens=8, temperature=0),
    )
    for n in range(6)
]


def answers(made: OfflineEngine) -> list[list[int]]:
    _, found = made.generate(PROMPTS)
    made.settle()
    made.scheduler.check_integrity()
    return [one.tokens for one in found]


def test_without_it_the_flag_is_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pytest.raises(StartupError, match="pip install nixl"):
        Engine(config_of(tiny_model, role="decode", handover_transport="nixl"))


@pytest.mark.parametrize("gives", ["nixl", "auto"])
def test_tokens_are_those_of_one_engine(
    tiny_model: Path, gives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only one of the two has it, blocks go through the connection."""
    pytest.importorskip("nixl", reason="needs NIXL: pip install nixl")
    reads = []
    copy = NixlReader.copy

    def copying(reader: NixlReader, pairs: list[tuple[int, int]], deadline: float) -> None:
        reads.append(pairs)
        copy(reader, pairs, deadline)

    monkeypatch.setattr(NixlReader, "copy", copying)
    expected = answers(OfflineEngine(config_of(tiny_model, host_kv_memory=None)))
    giver = Giver(config_of(tiny_model, handover_transport=gives, **GIVES))
    with engines(giver):
        made = Engine(
            config_of(tiny_model, role="decode", handover_transport="nixl", prefill_from=(giver.address,))
        )
        with engines(made):
            assert answers(made.offline) == expected
            assert made.handover.state.fetched_blocks == 72 and made.handover.state.failed == 0
    assert bool(reads) == (gives == "nixl")
