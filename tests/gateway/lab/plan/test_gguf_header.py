"""A GGUF file's header says the same of a model as the config.json that the file was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from gateway.lab.plan.config_json import read_config
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.gguf_header import _BITS, read_gguf
from gateway.lab.plan.model import read_model
from tests.engine.models.hub import save
from tests.engine.weights import gguf_files
from tests.engine.weights.test_gguf_checkpoint import CASES

SHOWN = ("llama-tied-head-dim", "mistral", "qwen3-moe", "mixtral", "phi-3", "gemma-2", "gemma-3", "cohere-2")


@pytest.mark.parametrize(("family", "changes", "metadata"), [case for case in CASES if case.id in SHOWN])
def test_the_header_says_what_config_json_says(
    tmp_path: Path, family: str, changes: dict[str, Any], metadata: dict[str, Any]
) -> None:
    save(tmp_path / "model", family, **changes)
    file = gguf_files.write(tmp_path / "m.gguf", tmp_path / "model", **metadata)
    found = read_model(str(file))
    given = read_config(json.loads((tmp_path / "model" / "config.json").read_text()), family)
    assert found.windows == given.windows
    assert found.attention == given.attention
    assert found.tied == given.tied and found.embedding == given.embedding
    assert found.mixture == given.mixture
    # Routers of models as small as these are no larger than biases, which are left out.
    assert found.parameters == pytest.approx(given.parameters, rel=0.01)
    tensors = file.stat().st_size - found.stored_bytes
    assert 0 < tensors < 64_000


def test_a_type_of_numbers_has_the_bits_of_the_gguf_package() -> None:
    for kind in GGMLQuantizationType:
        if kind.value in _BITS:
            numbers, size = GGML_QUANT_SIZES[kind]
            assert _BITS[kind.value] == size * 8 / numbers, kind.name


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"GGUF\x03\x00\x00\x00", "cannot be read as GGUF: unpack requires a buffer"),
        (b"GGML" + bytes(20), "does not begin with 'GGUF'"),
        (b"GGUF\x09\x00\x00\x00" + bytes(16), "version 9 is not known"),
        (b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x01" + bytes(7) + b"\xff" * 8, "longer than any"),
        (b"GGUF\x03\x00\x00\x00" + bytes(16), "it holds no language model"),
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(PlanError, match=said):
        read_gguf(tmp_path / "broken.gguf")


def test_a_part_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"m-00001-of-00002\.gguf: cannot be read"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")
