from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.__main__ import main
from engine.evaluation.ways import WAYS
from engine.weights.source import locate

FEW = ["--count", "24"]


def test_a_table_of_all_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "24 texts" in lines[0]
    rows = [line for line in lines if " | all | " in line]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [way.name for way in WAYS]
    assert "100.0% (100.0%–100.0%)" in rows[0] and "| 0.0000 (0.0000–0.0000) |" in rows[0]
    assert lines[-1].startswith(f"{WAYS[-1].name}: KL by position: 1 to 16: ")


def test_one_way_on_a_text_as_json(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("the bones of a fallen tree " * 400)
    given = ["--text", str(tmp_path / "text"), "--quantization", "int8", "--kv-cache-dtype", "int8", "--json"]
    assert main(["eval", "--model", str(tiny_model), *given]) == 0
    full, way = json.loads(capsys.readouterr().out)
    assert full["name"] == "float32" and full["strata"]["all"]["agreement"]["value"] == 1
    assert way["name"] == "int8 and KV cache int8" and way["weights_mib"] < full["weights_mib"]
    found = way["strata"]["all"]
    assert 0.8 < found["agreement"]["value"] <= 1 and found["ratio"]["value"] == pytest.approx(1, rel=0.1)
    assert found["exact"] is None and found["lost"] is None


def damaged(folder: Path, target: Path, change: Any) -> Path:
    """The demo model with ``change`` made to its tensors."""
    target.mkdir()
    for path in folder.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


def noise(tensors: dict[str, torch.Tensor]) -> None:
    """As large as the weights are, in one block of four."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if ".layers.0." in name and "_proj" in name:
            size = tensor.float().std()
            tensors[name] = (tensor.float() + size * torch.randn(tensor.shape, generator=generator)).to(
                tensor
            )


def swapped_heads(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.layers.2.self_attn.v_proj.weight"
    tensors[name] = tensors[name].roll(64, 0)


def shifted_groups(tensors: dict[str, torch.Tensor]) -> None:
    """As a reader that is off by one group of scales."""
    name = "model.layers.3.mlp.down_proj.weight"
    tensors[name] = tensors[name].roll(32, 1)


@pytest.mark.parametrize("change", [noise, swapped_heads, shifted_groups])
def test_a_damaged_model_does_not_pass(
    change: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the one it was made from does."""
    given = ["--reference", "demo", *FEW]
    bad = damaged(locate("demo"), tmp_path / "bad", change)
    assert main(["eval", "--model", f"damaged={bad}", *given]) == 1
    said = capsys.readouterr()
    assert "beyond the limits:" in said.err and "damaged: all: KL may be" in said.err
    assert "| damaged | all |" in said.out
    good = damaged(locate("demo"), tmp_path / "good", lambda tensors: None)
    assert main(["eval", "--model", str(good), *given]) == 0
    assert capsys.readouterr().err == ""


def test_a_fine_model_passes_where_a_coarse_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, bits, size in (("fine", "8", "64"), ("coarse", "4", "-1")):
        flags = ["--method", "rtn", "--bits", bits, "--group-size", size, "--out", str(tmp_path / name)]
        assert main(["quantize", "demo", *flags]) == 0
    both = [f"{name}={tmp_path / name}" for name in ("fine", "coarse")]
    limits = ["--max-kl", "0.005", "--json"]
    assert main(["eval", "--reference", "demo", "--model", *both, *FEW, *limits]) == 1
    fine, coarse = json.loads(capsys.readouterr().out)
    assert fine["beyond"] == [] and coarse["beyond"] != []
    assert coarse["strata"]["all"]["kl"]["low"] > fine["strata"]["all"]["kl"]["high"]


def test_each_stratum_has_to_keep_the_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that lost what a few texts need fails, though the mean of all hides it; answers are scored."""
    rows = [{"text": f"2 plus {i} is what?", "stratum": "sums", "answer": "?"} for i in range(30)]
    rows += [{"text": "The capital of France is Paris. " * 3, "stratum": "capitals"}] * 6
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--reference", "demo", "--text", str(tmp_path / "texts.jsonl"), "--json"]

    def forget(tensors: dict[str, torch.Tensor]) -> None:
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(locate("demo") / "tokenizer.json")).encode(" Paris").ids
        tensors["model.embed_tokens.weight"][ids] = 0

    bad = damaged(locate("demo"), tmp_path / "bad", forget)
    limits = ["--max-kl", "0.5", "--max-perplexity", "9", "--min-agreement", "0", "--max-lost", "1"]
    assert main(["eval", "--model", str(bad), *given, *limits]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert list(found["strata"]) == ["all", "sums", "capitals"]
    assert any(line.startswith("capitals: ") for line in found["beyond"])
    assert not any(line.startswith("sums: ") for line in found["beyond"])
    assert found["strata"]["sums"]["exact"] is not None and found["strata"]["capitals"]["exact"] is None


def test_what_it_needs_is_said(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n{"txt": 1}\n')
    for arguments, said in (
        (["--model", str(tiny_model)], "Give --text FILE"),
        (["--text", str(tmp_path / "none")], "cannot be read"),
        (["--count", "0"], "--count must be at least 1"),
        (["--text", str(tmp_path / "empty")], "fewer than two tokens"),
        (["--text", str(tmp_path / "rows.jsonl")], "rows.jsonl:2 is not an object"),
        (["--count", "1", "--quantization", "int3"], "int3 is not supported"),
        (["--model", "demo", "demo"], "give --reference MODEL"),
    ):
        assert main(["eval", *arguments]) == 1
        assert said in capsys.readouterr().err
