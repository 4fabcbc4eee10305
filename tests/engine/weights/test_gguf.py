"""The file format: what is read, and what is said of files that are broken or of another kind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import ModelUnavailable, StartupError, UnsupportedModel
from engine.weights.gguf import Gguf
from engine.weights.gguf_config import config_json
from engine.weights.source import locate
from tests.engine.weights.gguf_files import add
from tests.examples import examples

MINIMAL = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
}


def minimal(path: Path, architecture: str = "llama", **changes: object) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (MINIMAL | changes).items():
        if value is not None:
            add(writer, key, value)
    writer.add_array("a.strings", ["", "ä", "long " * 20])
    writer.add_array("a.numbers", [1.5, -2.5])
    writer.add_tensor("token_embd.weight", np.arange(32, dtype=np.float32).reshape(4, 8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return minimal(tmp_path / "m.gguf")


def test_metadata_and_tensors_are_those_that_were_written(file: Path) -> None:
    found = Gguf(file)
    assert found.architecture == "llama"
    assert found.value("block_count") == 1
    assert found.value("nothing", 3) == 3
    assert found.metadata["a.strings"] == ["", "ä", "long " * 20]
    assert found.metadata["a.numbers"] == [1.5, -2.5]
    stored = found.tensors["token_embd.weight"]
    assert (stored.type, stored.shape) == (Type.F32, (4, 8))
    assert np.array_equal(stored.data.view(np.float32), np.arange(32).reshape(4, 8))


def test_without_texts_all_else_is_read(file: Path) -> None:
    """Numbers and tensors, wherever the lists of strings before them end; and a file that breaks off is told."""
    whole, found = Gguf(file), Gguf(file, texts=False)
    assert found.metadata == whole.metadata | {"a.strings": []}
    assert found.tensors.keys() == whole.tensors.keys()
    name = "token_embd.weight"
    assert np.array_equal(found.tensors[name].data, whole.tensors[name].data)
    content = file.read_bytes()
    for length in range(1, len(content), 7):
        file.write_bytes(content[:length])
        with pytest.raises(ModelUnavailable, match=r"breaks off|not a GGUF"):
            Gguf(file, texts=False)


@pytest.mark.parametrize("alignment", [None, 8, 32, 64, 256])
def test_tensors_begin_where_the_file_aligns_them(tmp_path: Path, alignment: int | None) -> None:
    """Wherever the header ends."""
    for length in range(0, 70, 3):
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        if alignment is not None:
            writer.add_custom_alignment(alignment)
        writer.add_string("a.filling", "x" * length)
        tensors = {
            name: np.arange(size, dtype=np.float32) + size for name, size in (("a", 3), ("b", 5), ("c", 8))
        }
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found = Gguf(tmp_path / "m.gguf").tensors
        for name, tensor in tensors.items():
            assert np.array_equal(found[name].data.view(np.float32), tensor), (name, length)


def test_it_reads_what_the_packages_own_reader_reads(file: Path) -> None:
    theirs = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert Gguf(file).metadata == fields


def test_a_file_that_breaks_off_anywhere_is_said_so(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(1, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelUnavailable, match=r"breaks off|not a GGUF"):
            Gguf(file)
    file.write_bytes(b"")
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        Gguf(file)


@example(damage=[(255, 0)])
@example(damage=[(256, 1)])
@given(damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_file_is_refused_or_read_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    file = minimal(tmp_path_factory.mktemp("gguf") / "m.gguf")
    content = bytearray(file.read_bytes())
    for place, byte in damage:
        content[place] = byte
    file.write_bytes(content)
    try:
        config_json(Gguf(file))
    except StartupError as error:
        assert str(file) in error.message


def change(place: int, form: str, value: int) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        content = bytearray(file.read_bytes())
        struct.pack_into(form, content, place, value)
        file.write_bytes(content)

    return apply


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        pytest.param(change(0, "<I", 0), "does not begin with 'GGUF'", id="magic"),
        pytest.param(change(4, "<I", 1), "version 1; little-endian ones of versions 2 and 3", id="version-1"),
        pytest.param(change(4, "<I", 4), "version 4", id="version-4"),
        pytest.param(change(4, ">I", 3), "big-endian", id="big-endian"),
        pytest.param(change(8, "<Q", 2**60), "breaks off", id="tensors"),
        pytest.param(change(16, "<Q", 2**60), "breaks off", id="values"),
    ],
)
def test_a_header_of_another_kind_is_said_so(file: Path, apply: Callable[[Path], None], message: str) -> None:
    apply(file)
    with pytest.raises(StartupError, match=message):
        Gguf(file)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        pytest.param("mamba", {}, r"'mamba'.*llama, qwen2, .*gemma3", id="architecture"),
        pytest.param("llama", {"llama.block_count": None}, r"lacks llama\.block_count", id="missing"),
        pytest.param(
            "llama", {"llama.attention.head_count": [2, 3]}, "another .*head_count for each", id="per-layer"
        ),
        pytest.param("llama", {"llama.logit_scale": 2.0}, "logit_scale to 2.0", id="ignored"),
        pytest.param("llama", {"llama.rope.scaling.type": "longrope"}, "'longrope'", id="rope"),
        pytest.param("llama", {"llama.attention.value_length": 6}, "longer than its keys", id="values"),
    ],
)
def test_what_cannot_be_run_is_named(
    tmp_path: Path, architecture: str, changes: dict[str, object], message: str
) -> None:
    file = minimal(tmp_path / "m.gguf", architecture, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        config_json(Gguf(file))


def test_a_part_without_the_others_is_said_so(tmp_path: Path) -> None:
    file = minimal(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(ModelUnavailable, match=r"one of 3 files.*m-00002-of-00003\.gguf, m-00003"):
        Gguf(file)


def test_several_models_in_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        minimal(tmp_path / f"{name}.gguf")
    with pytest.raises(ModelUnavailable, match=r"several models: .* a\.gguf, b\.gguf"):
        locate(str(tmp_path))
