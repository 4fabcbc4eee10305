"""The comparison on real weights, tried on tiny random ones: a good model passes, a damaged one is found."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from benchmarks.real_weights import needles, paths
from benchmarks.real_weights.__main__ import main
from benchmarks.real_weights.texts import PROMPTS, read
from scripts import models
from tests.engine.tiny import SHAPE, write_model
from tests.engine.weights import gguf_files

FEW = ["--prompts", "8", "--length", "80", "--continued", "8", "--dtype", "float32", "--threads", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    return write_model(folder / "tiny", {**SHAPE, "model_type": "llama"})


def test_the_prompts() -> None:
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert len({row["text"] for row in rows}) == len(rows) == 200
    for start in range(0, 200, 4):
        assert [row["stratum"] for row in rows[start : start + 4]] == ["code", "prose", "German", "Chinese"]
    assert all(("source" in row) is (row["stratum"] == "code") for row in rows)


def test_a_file_is_compared_and_a_second_run_goes_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "tiny.gguf"
    shutil.copy(model / "tokenizer.json", tmp_path)
    gguf_files.write(file, model, lambda name: GGMLQuantizationType.Q8_0)
    asked = [str(file), *FEW, "--work", str(tmp_path / "work"), "--parts", "float32", "served", "paths"]
    assert main(asked) == 0
    first = capsys.readouterr().out
    for part in ("float32", "served"):
        for stratum in ("all", "code", "prose", "German", "Chinese"):
            assert f"| {part} | {stratum} | " in first
    assert "| float32 | all | 632 | " in first
    for way in paths.WAYS:
        assert f"| {way.name} | " in first
    kept = tmp_path / "work" / "float32.jsonl"
    lines = kept.read_text().splitlines()
    assert len(lines) == 8
    # What is kept is not computed again, what is missing is.
    kept.write_text("\n".join(lines[:5]) + "\n")
    (tmp_path / "work" / "transformers" / "0006.npz").unlink()
    assert main([*asked[:-3], "float32"]) == 0
    assert kept.read_text().splitlines() == lines
    assert (tmp_path / "work" / "transformers" / "0006.npz").exists()


def test_a_damaged_model_is_found(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    assert main([str(model), *FEW, "--parts", "float32", "--work", str(good)]) == 0
    damaged = tmp_path / "damaged"
    shutil.copytree(model, damaged)
    tensors = load_file(model / "model.safetensors")
    # One channel of one layer's norm.
    tensors["model.layers.1.input_layernorm.weight"][3] *= 1.05
    save_file(tensors, damaged / "model.safetensors")
    shutil.copytree(good / "transformers", bad / "transformers")
    assert main([str(damaged), *FEW, "--parts", "float32", "--work", str(bad)]) == 1
    assert "WRONG: float32: " in capsys.readouterr().out


def test_a_path_that_changes_answers_is_found(model: Path) -> None:
    prompts = [text.tokens for text in read(model, 4, 40)]
    alone = paths.Alone(model, "float32", ())
    found = alone.beside(paths.Way("the same", {"max_num_seqs": 8}), prompts)
    assert not found.wrong and found.positions == found.same == 4 * paths.TOKENS
    assert alone.beside(paths.Way("coarser weights", {"quantization": "int4"}), prompts).wrong
    with pytest.raises(SystemExit, match="did not happen"):
        alone.beside(paths.Way("not in chunks", seen="chunks"), prompts)


def test_other_tokens_than_those_that_are_kept(model: Path, tmp_path: Path) -> None:
    asked = [str(model), *FEW, "--parts", "float32", "--work", str(tmp_path)]
    assert main(asked) == 0
    (tmp_path / "float32.jsonl").unlink()
    with pytest.raises(SystemExit, match="other tokens"):
        main([*asked, "--length", "60"])


def test_needles_are_where_they_should_be(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "long", {**SHAPE, "max_position_embeddings": 4096})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = needles.haystack(tokenizer, 3000)
    places = [text.index(f"the {place} is {number}") / len(text) for _, place, number in needles.NEEDLES]
    assert places == pytest.approx([depth for depth, _, _ in needles.NEEDLES], abs=0.1)
    answers = list(needles.ask(folder, "float32", 3000, 1))
    assert [answer.wanted for answer in answers] == [number for _, _, number in needles.NEEDLES]
    assert answers[0].hits == 0 and all(answer.hits > 2900 for answer in answers[1:])
    assert not any(answer.right for answer in answers)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "gemma-3-270m"])
def test_real_weights(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a few of the texts: docs/engine.md has all."""
    found: Any = models.find(name)
    try:
        path = models.fetch(found, Path(os.environ.get("TOLLGATE_MODELS") or models.ROOT / "models"))
    except models.Unfetched as error:
        pytest.skip(f"{name} cannot be had: {error}")
    asked = ["--prompts", "12", "--length", "64", "--continued", "8", "--work", str(tmp_path)]
    assert main([str(path), *asked, "--parts", "float32", "served", "paths"]) == 0, capsys.readouterr().out
