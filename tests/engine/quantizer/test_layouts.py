"""Whole models as they are written, read by decoders of the published layouts, and by the engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.__main__ import main
from engine.evaluation.samples import Sample
from engine.evaluation.ways import Way, predict
from tests.engine.quantizer.decoders import read
from tests.engine.tiny import SHAPE, make_tokenizer, make_weights, write_model

WIDE = {**SHAPE, "intermediate_size": 128}
WORDS = [a + b + c for a in "bdfgk" for b in "aeiou" for c in "lmn"]
# Of the kind that is calibrated on: of inputs never seen nothing is promised.
TOKENS = Sample(make_tokenizer().encode(" ".join(WORDS[::2] + WORDS[::3])).ids)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain") / "model", WIDE)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    random = np.random.default_rng(0)
    rows = [{"text": " ".join(random.choice(WORDS, 60))} for _ in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def logits(folder: Path) -> torch.Tensor:
    way = Way("as it is", folder=folder)
    return torch.cat([piece for found in predict(way.load(folder), [TOKENS], way) for piece in found])


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        (["rtn", "--group-size", "32"], 0.45),
        (["rtn", "--group-size", "-1", "--symmetric"], 0.6),
        (["rtn", "--bits", "8", "--group-size", "64"], 0.03),
        (["gptq", "--group-size", "32"], 0.27),
        (["gptq", "--group-size", "64", "--symmetric"], 0.35),
        (["gptq", "--bits", "8", "--group-size", "32"], 0.02),
        (["awq", "--group-size", "32"], 0.36),
        (["smoothquant"], 0.05),
        (["plain"], 0.001),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_written_is_what_is_read(
    flags: list[str], most: float, plain: Path, calibration: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    texts = ["--calibration", str(calibration), "--length", "64", "--tokens", "1024"]
    assert (
        main(["quantize", str(plain), "--method", *flags, *texts, "--dtype", "float32", "--out", str(out)])
        == 0
    )
    weights, settings = read(out)
    kept = make_weights(WIDE)
    assert weights.keys() == kept.keys()
    # The same weights, plain: what the engine makes of the layout is what the decoder does.
    widened = tmp_path / "widened"
    write_model(widened, WIDE)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in weights.items()}, widened / "model.safetensors"
    )
    received, wanted, before = logits(out), logits(widened), logits(plain)
    # Products of four bits round to bfloat16, and W8A8 rounds activations.
    far = 0.06 if flags == ["smoothquant"] else 0.002 if "8" in flags else 0.02
    assert float((received - wanted).norm() / wanted.norm()) < far
    assert float((wanted - before).norm() / before.norm()) < most
    if flags != ["plain"]:
        assert float((wanted - before).norm() / before.norm()) > 1e-4
        assert settings["quant_method"] in ("gptq", "awq", "compressed-tensors")
    assert (out / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()


def test_gptq_reorders_inputs_and_says_so(plain: Path, calibration: Path, tmp_path: Path) -> None:
    texts = ["--calibration", str(calibration), "--length", "64", "--tokens", "1024", "--group-size", "32"]
    assert main(["quantize", str(plain), "--method", "gptq", *texts, "--out", str(tmp_path / "out")]) == 0
    stored = load_file(tmp_path / "out" / "model-00002.safetensors")
    order = stored["model.layers.0.self_attn.q_proj.g_idx"]
    assert sorted(order) == [group for group in range(2) for _ in range(32)] and list(order) != sorted(order)
    for other in ("k_proj", "v_proj"):
        assert np.array_equal(stored[f"model.layers.0.self_attn.{other}.g_idx"], order)
    # No zero point is stored as -1, which early readers carry into the next one.
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["desc_act"] is True and settings["checkpoint_format"] == "gptq"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--method", "gptq"], "give --calibration"),
        (["--method", "awq", "--bits", "8"], "writes 4 bits, not 8"),
        (["--method", "rtn", "--group-size", "48"], "multiple of 32"),
        (["--method", "rtn", "--group-size", "256"], "no whole groups of 256"),
        (["--method", "awq", "--symmetric"], "leave out --symmetric"),
        (["--method", "gptq", "--calibration", "none.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_is_said(
    flags: list[str], said: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(plain), *flags, "--out", str(tmp_path / "out")]) == 1
    assert said in capsys.readouterr().err
    # Nothing half is left behind.
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_alone(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["quantize", str(plain), "--method", "rtn", "--out", str(tmp_path)]) == 1
    assert "name a new or empty folder" in capsys.readouterr().err
