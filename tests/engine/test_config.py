from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig, ServerConfig, parse_bytes
from engine.errors import StartupError


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512MiB", 512 * 2**20), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("3k", 3000), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1TB", "1 2", "ib"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_model_len": 1}, "--max-model-len"),
        ({"block_size": 0}, "--block-size"),
        ({"max_batched_tokens": 32}, "--max-batched-tokens"),
        ({"kv_cache_blocks": 0}, "--kv-cache-blocks"),
        ({"kv_cache_blocks": 1, "kv_cache_memory": 1}, "not both"),
        ({"max_waiting": -1}, "--max-waiting"),
        ({"priority_ageing": 0.0}, "--priority-ageing"),
        ({"threads": 0}, "--threads"),
    ],
)
def test_a_setting_that_makes_no_sense_names_its_flag(fields: dict[str, int], flag: str) -> None:
    with pytest.raises(StartupError, match=flag):
        EngineConfig(model=Path(), **fields)


@pytest.mark.parametrize(
    "fields", [{"port": 70000}, {"max_body_bytes": 0}, {"drain_timeout": -1.0}, {"step_timeout": -1.0}]
)
def test_the_servers_settings_are_checked_too(fields: dict[str, float]) -> None:
    with pytest.raises(StartupError, match="--"):
        ServerConfig(EngineConfig(model=Path()), "m", **fields)
