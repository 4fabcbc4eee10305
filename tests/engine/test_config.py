from __future__ import annotations

from pathlib import Path
from typing import Any

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
        ({"max_batched_tokens": 32, "max_num_seqs": 64}, "--max-batched-tokens"),
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
    "fields",
    [
        {"port": 70000},
        {"max_body_bytes": 0},
        {"drain_timeout": -1.0},
        {"step_timeout": -1.0},
        {"otlp_traces_endpoint": "localhost:4317"},
    ],
)
def test_the_servers_settings_are_checked_too(fields: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="--"):
        ServerConfig(EngineConfig(model=Path()), "m", **fields)


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cpu", {}, (64, 512)),
        ("cuda", {}, (256, 2048)),
        ("cuda", {"max_num_seqs": 4}, (4, 2048)),
        ("cpu", {"max_num_seqs": 1000}, (1000, 1000)),
        ("cpu", {"max_batched_tokens": 32}, (32, 32)),
        ("cuda", {"max_num_seqs": 8, "max_batched_tokens": 99}, (8, 99)),
    ],
)
def test_steps_are_as_large_as_the_device_bears_unless_told(
    device: str, given: dict[str, int], expected: tuple[int, int]
) -> None:
    config = EngineConfig(model=Path(), **given).on(device)
    assert (config.max_num_seqs, config.max_batched_tokens) == expected
    assert config.on(device) == config
