from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import StartupError
from engine.parallel.layout import Layout, Stage


@given(st.integers(1, 8), st.integers(1, 8))
def test_a_stages_ranks_are_neighbours(tensor: int, pipeline: int) -> None:
    layout = Layout(tensor, pipeline)
    places = [(layout.stage(rank), layout.shard(rank)) for rank in range(layout.size)]
    assert places == [(stage, shard) for stage in range(pipeline) for shard in range(tensor)]


@given(st.integers(1, 8), st.integers(0, 100))
def test_each_layer_is_in_one_stage(stages: int, layers: int) -> None:
    """In order, and as evenly as can be; the first stage, which has the head, has none more than others."""
    ranges = [Stage(index, stages).layers(layers) for index in range(stages)]
    assert [layer for one in ranges for layer in one] == list(range(layers))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    assert len(ranges[0]) == min(map(len, ranges))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pipeline_parallel": 0}, "--pipeline-parallel must be at least 1"),
        ({"expert_parallel": 2}, "give --tensor-parallel 2, too"),
        ({"expert_parallel": 2, "tensor_parallel": 4}, "give --tensor-parallel 2, too"),
        ({"pipeline_parallel": 2, "speculation": "ngram"}, "--speculation ngram is not supported with"),
        ({"pipeline_parallel": 2, "max_adapters": 1}, "--max-adapters is not supported with"),
        ({"pipeline_parallel": 2, "overlap": "on"}, "--overlap on does not go with --pipeline-parallel"),
        ({"pipeline_parallel": 2, "host_kv_memory": 2**20}, "--pipeline-parallel 1 so far"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(StartupError, match=named):
        EngineConfig(model=Path(), **options)
