"""Tiny models on disk, shared by the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.worker.runner import Runner
from tests.engine.live import EngineServer
from tests.engine.tiny import SHAPE, write_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model_of(tmp_path: Path) -> Callable[..., Path]:
    """Writes a tiny model whose config differs in the named fields."""

    def write(**changes: object) -> Path:
        return write_model(tmp_path / "model", {**SHAPE, **changes})

    return write


@pytest.fixture(scope="session")
def tiny_runner(tiny_model: Path) -> Runner:
    return Runner(EngineConfig(model=tiny_model, kv_cache_blocks=600, threads=1))


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a context so long that its answers take seconds."""
    return write_model(
        tmp_path_factory.mktemp("models") / "long", {**SHAPE, "max_position_embeddings": 30_000}
    )


@pytest.fixture(scope="session")
def server(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A server for all tests that leave it as they found it. At a priority of -900 and below it has 64 tokens."""
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    options = (
        "--kv-cache-blocks",
        "2000",
        "--max-num-seqs",
        "4",
        "--max-waiting",
        "2",
        "--context-cap=-900=64",
    )
    with EngineServer(long_model, *options, "--max-body-bytes", "256KiB", log=log) as server:
        yield server
