"""Converted weights on disk: the same to the bit, made once, and never served damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.layers.embedding import Embedding
from engine.models import builder
from engine.weights import cache_file, digest, gguf_rows, weight_cache
from engine.weights.gguf_folder import as_folder
from engine.weights.quantize import to_int8
from engine.weights.weight_loader import WeightLoader
from engine.worker.memory import predict_weights
from kernels.native.linear import available, pack_int8
from tests.engine.models.hub import Paged, save
from tests.engine.models.test_families import EXPERTS, tokens
from tests.engine.tiny import make_tokenizer
from tests.engine.weights import gguf_files

pytestmark = pytest.mark.skipif(
    not available(), reason="weights are only packed where there is AVX-512 VNNI and a C compiler"
)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def mixed(name: str) -> Type:
    """As files called Q4_K_M mix them."""
    if "attn_v" in name or name == "output.weight":
        return Type.Q8_0
    return Type.Q5_0 if "ffn_down" in name or "token_embd" in name else Type.Q4_0


def quantized(folder: Path, family: str = "Qwen2", kind: gguf_files.Keep = mixed, **changes: Any) -> Path:
    save(folder / "m", family, **changes)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return as_folder(gguf_files.write(folder / "q.gguf", folder / "m", kind))


def run(folder: Path, cache: Path | str, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Tensor:
    return Paged(folder, dtype, weights_cache=str(cache), **options).run(tokens(), [9])


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(self: builder.LayerBuilder, *arguments: object) -> None:
        raise AssertionError("a layer was converted")

    monkeypatch.setattr(builder.LayerBuilder, "_product", convert)
    monkeypatch.setattr(builder.LayerBuilder, "_plain", convert)
    monkeypatch.setattr(builder.LayerBuilder, "_in_pieces", convert)


@pytest.mark.parametrize(
    ("family", "changes", "options"),
    [
        ("Qwen2", {}, {}),
        ("Qwen2", {"tie_word_embeddings": True}, {}),
        ("Llama", {}, {"invariant": True}),
        ("Llama", {"attention_bias": True}, {"quantization": "int4"}),
        ("Qwen3Moe", {**EXPERTS, "moe_intermediate_size": 32}, {}),
    ],
    ids=["mixed", "tied", "invariant", "int4", "experts"],
)
def test_logits_are_the_same_to_the_bit_without_made_and_found(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    family: str,
    changes: dict[str, Any],
    options: dict[str, Any],
) -> None:
    folder = quantized(tmp_path, family, **changes)
    plain = run(folder, "off", **options)
    assert torch.equal(run(folder, tmp_path / "cache", **options), plain)
    (path,) = kept(tmp_path / "cache")
    before = path.read_bytes()
    request.getfixturevalue("no_conversion")
    assert torch.equal(run(folder, tmp_path / "cache", **options), plain)
    assert kept(tmp_path / "cache") == [path] and path.read_bytes() == before


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", [None, "int4"])
def test_a_head_made_in_pieces_is_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool, method: str | None
) -> None:
    folder = quantized(tmp_path, tie_word_embeddings=tied)
    monkeypatch.setattr(gguf_rows, "_PIECE", 96)
    found = run(folder, "off", quantization=method)
    monkeypatch.setattr(WeightLoader, "pieces", lambda *_: None)
    monkeypatch.setattr(Embedding, "pieces", lambda _: None)
    assert torch.equal(run(folder, "off", quantization=method), found)


def test_a_folder_that_is_quantized_at_start_is_converted_once(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    save(tmp_path / "m", "Llama")
    plain = run(tmp_path / "m", "off", quantization="int8")
    assert torch.equal(run(tmp_path / "m", tmp_path / "cache", quantization="int8"), plain)
    request.getfixturevalue("no_conversion")
    assert torch.equal(run(tmp_path / "m", tmp_path / "cache", quantization="int8"), plain)


def test_a_plain_model_leaves_nothing_behind(tmp_path: Path) -> None:
    save(tmp_path / "m", "Llama")
    run(tmp_path / "m", tmp_path / "cache")
    assert not kept(tmp_path / "cache")


def test_the_embedding_is_looked_up_in_the_file(tmp_path: Path) -> None:
    for kind in (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0):
        folder = quantized(tmp_path / kind.name, kind=lambda name, kind=kind: kind)  # type: ignore[misc]
        embedding = Paged(folder, torch.bfloat16).model.embedding  # type: ignore[attr-defined]
        assert not isinstance(embedding._rows, Tensor)
        ids = torch.tensor([5, 319, 0, 5])
        assert torch.equal(embedding(ids), embedding.weight()[ids])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", [None, "int8", "int4"])
def test_memory_is_predicted_within_a_tenth(tmp_path: Path, tied: bool, method: str | None) -> None:
    sizes = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": tied}
    folder = quantized(tmp_path, **sizes)
    run(folder, tmp_path / "cache", quantization=method)
    (path,) = kept(tmp_path / "cache")
    entries = cache_file.CacheFile(path)._entries
    packed = [part for name in entries for part in cache_file.CacheFile(path).get(name) or ()]
    size = sum(tensor.nbytes for part in packed for tensor in part.tensors)
    predicted = predict_weights(folder, torch.bfloat16, method)
    assert 0.9 < predicted / size < 1.1, (predicted, size)


def test_other_options_dtypes_and_files_have_caches_of_their_own(tmp_path: Path) -> None:
    folder = quantized(tmp_path)
    runs: list[dict[str, Any]] = [{}, {"dtype": torch.float32}, {"quantization": "int8"}]
    for count, options in enumerate(runs, 1):
        assert torch.equal(run(folder, tmp_path / "c", **options), run(folder, "off", **options))
        assert len(kept(tmp_path / "c")) == count


def test_a_file_that_is_replaced_by_one_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    folder = quantized(tmp_path)
    file, cache = tmp_path / "q.gguf", tmp_path / "cache"
    old = time.time() - 3600
    os.utime(file, (old, old))
    time.sleep(digest._SETTLED + 0.1)
    before = run(folder, cache)
    content = bytearray(file.read_bytes())
    # The last tensor's last codes.
    content[-64:] = bytes(byte ^ 0x11 for byte in content[-64:])
    file.write_bytes(content)
    os.utime(file, (old, old))
    after = run(folder, cache)
    assert torch.equal(after, run(folder, "off")) and not torch.equal(after, before)


@pytest.mark.parametrize("place", [0, 4000, -200, -30, -1])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, place: int) -> None:
    folder, cache = quantized(tmp_path), tmp_path / "cache"
    plain = run(folder, cache)
    (path,) = kept(cache)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 1
    path.chmod(0o600)
    path.write_bytes(damaged)
    assert torch.equal(run(folder, cache), plain)
    assert kept(cache) == [path] and path.read_bytes() == whole


@pytest.mark.parametrize("size", [0, 10, 5000, -1])
def test_a_cache_that_breaks_off_is_made_anew(tmp_path: Path, size: int) -> None:
    folder, cache = quantized(tmp_path), tmp_path / "cache"
    plain = run(folder, cache)
    (path,) = kept(cache)
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:size])
    assert torch.equal(run(folder, cache), plain)
    assert path.read_bytes() == whole


def test_a_cache_under_another_name_is_made_anew(tmp_path: Path) -> None:
    """The name says what it was made from."""
    folder, cache = quantized(tmp_path), tmp_path / "cache"
    run(folder, cache, quantization=None)
    (path,) = kept(cache)
    whole = path.read_bytes()
    other = path.with_name("q-other.tollgate-weights")
    path.rename(other)
    with pytest.raises(cache_file.Damaged, match="another name"):
        cache_file.CacheFile(other)
    other.rename(path)
    assert path.read_bytes() == whole
    cache_file.CacheFile(path)


def test_folders_are_kept_apart_in_one_cache(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(tmp_path / name, "Qwen2")
        make_tokenizer().save(str(tmp_path / name / "tokenizer.json"))
        run(tmp_path / name, tmp_path / "cache", quantization="int8")
    assert [path.name.partition("-")[0] for path in kept(tmp_path / "cache")] == ["one", "two"]


def test_without_a_home_the_folder_that_is_named_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantized(tmp_path)
    plain = run(folder, "off")
    for number, home in enumerate((None, Path("/dev/null"))):
        monkeypatch.setattr(weight_cache, "cache_home", lambda home=home: home)
        assert torch.equal(run(folder, tmp_path / f"cache-{number}"), plain)
        assert len(kept(tmp_path / f"cache-{number}")) == 1


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    folder, cache = quantized(tmp_path), tmp_path / "cache"
    run(folder, cache)
    (path,) = kept(cache)
    path.chmod(0o666)
    run(folder, cache)
    assert path.stat().st_mode & 0o777 == 0o400


def test_a_model_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path / "m", "Qwen2")
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    more = {"blk.9.attn_q.weight": torch.ones(64, 64)}
    folder = as_folder(gguf_files.write(tmp_path / "q.gguf", tmp_path / "m", mixed, tensors=more))
    with pytest.raises(UnsupportedModel, match="does not use"):
        run(folder, tmp_path / "cache")
    assert not kept(tmp_path / "cache")


def test_a_full_disk_costs_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = quantized(tmp_path), tmp_path / "cache"
    plain, written = run(folder, "off"), 0

    def write(file: Any, content: bytes) -> None:
        nonlocal written
        written += len(content)
        if written > 40_000:
            raise OSError(28, "No space left on device")
        file.write(content)

    with monkeypatch.context() as patch:
        patch.setattr(cache_file, "_write_all", write)
        assert torch.equal(run(folder, cache), plain)
    assert written > 40_000 and not kept(cache)
    usage = namedtuple("usage", "total used free")(1 << 40, 1 << 40, 1 << 29)
    with monkeypatch.context() as patch:
        patch.setattr(weight_cache.shutil, "disk_usage", lambda path: usage)
        assert torch.equal(run(folder, cache), plain)
    assert not kept(cache)


def test_where_the_models_folder_cannot_be_written_the_users_cache_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_cache, "_SMALLEST", 0)
    folder = quantized(tmp_path)
    plain = run(folder, "auto")
    beside, home = tmp_path / ".tollgate", tmp_path / "home" / "tollgate" / "weights"
    assert len(kept(beside)) == 1 and not kept(home)
    for path in kept(beside):
        path.unlink()
    beside.rmdir()
    beside.write_text("not a folder")
    assert torch.equal(run(folder, "auto"), plain)
    assert len(kept(home)) == 1
    (tmp_path / "home" / "tollgate" / "weights").rename(tmp_path / "gone")
    (tmp_path / "home" / "tollgate" / "weights").write_text("neither")
    assert torch.equal(run(folder, "auto"), plain)


def test_small_models_are_not_cached_of_themselves(tmp_path: Path) -> None:
    run(quantized(tmp_path), "auto")
    assert not (tmp_path / ".tollgate").exists()


def test_two_engines_that_start_at_once(tmp_path: Path) -> None:
    folder, cache = quantized(tmp_path), tmp_path / "cache"
    code = (
        "import sys, torch; from pathlib import Path; from engine.models.registry import load_model\n"
        "sys.stdin.readline()\n"
        "load_model(Path(sys.argv[1]), torch.device('cpu'), torch.bfloat16, weights_cache=sys.argv[2])"
    )
    command = [sys.executable, "-c", code, str(folder), str(cache)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(120) for process in started] == [0, 0]
    assert len(kept(cache)) == 1
    assert torch.equal(run(folder, cache), run(folder, "off"))


def test_what_a_killed_engine_left_is_removed_but_not_what_is_being_written(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ".q-1.tollgate-weights.abc.partial").write_bytes(b"half")
    (cache / ".of-another.weights.abc.partial").write_bytes(b"not ours")
    writer = cache_file.CacheWriter(cache / "other-1.tollgate-weights")
    run(quantized(tmp_path), cache)
    names = [path.name for path in kept(cache)]
    assert len(names) == 3 and names[1].startswith(".other-1.tollgate-weights."), names
    writer.discard()
    assert len(kept(cache)) == 2


def test_leftovers_that_cannot_be_opened_are_no_reason_to_convert_again(tmp_path: Path) -> None:
    """As one that a start beside this one has finished in between."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ".q-1.tollgate-weights.abc.partial").symlink_to("gone")
    run(quantized(tmp_path), cache)
    assert len(kept(cache)) == 2


def test_a_cache_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three results of a model, and so many bytes of all: what was used least recently goes first."""
    for number in range(5):
        path = tmp_path / f"q-{number}.tollgate-weights"
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    (tmp_path / "other-1.tollgate-weights").write_bytes(bytes(100))
    (tmp_path / "yolo.weights").write_bytes(bytes(100))
    weight_cache._trim(tmp_path, "q", 100)
    ours = ["other-1.tollgate-weights", "q-3.tollgate-weights", "q-4.tollgate-weights"]
    assert [path.name for path in kept(tmp_path)] == [*ours, "yolo.weights"]
    monkeypatch.setattr(weight_cache, "_MOST", 350)
    weight_cache._trim(tmp_path, "new", 200)
    assert [path.name for path in kept(tmp_path)] == ["other-1.tollgate-weights", "yolo.weights"]
    with pytest.raises(OSError, match="larger than"):
        weight_cache._trim(tmp_path, "huge", 351)


def test_entries_keep_their_tensors_and_their_pieces_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_file, "_PIECE", 1000)
    weights = [to_int8(torch.randn(out, 96)) for out in (40, 1, 64)]
    made = [pack_int8(weight.codes, weight.scale, None).packed for weight in weights]
    writer = cache_file.CacheWriter(tmp_path / "a.tollgate-weights")
    mapped = [*writer.add("one", made[:2]), *writer.add("two", made[2:])]
    writer.commit()
    found = cache_file.CacheFile(tmp_path / "a.tollgate-weights")
    read = [*(found.get("one") or ()), *(found.get("two") or ())]
    assert found.get("three") is None
    for ours, ways in zip(made, zip(mapped, read, strict=True), strict=True):
        for theirs in ways:
            assert theirs[:3] == ours[:3]
            assert all(map(torch.equal, theirs.tensors, ours.tensors))
