"""The committed models: their files, and that they know what their card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.demo import corpus, evaluate, tokens, train
from engine.demo.llama import Shape
from tests.sampling import slow

FOLDERS = [train.HERE / "model", train.HERE / "draft"]
TOKENIZER = Tokenizer.from_file(str(FOLDERS[0] / "tokenizer.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_files_are_small_and_agree_with_each_other(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20 * 2**20
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id(tokens.BOS) == config["bos_token_id"]
    assert tokenizer.token_to_id(tokens.END) == config["eos_token_id"]
    weights = load_file(folder / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_the_draft_is_several_times_smaller_and_shares_the_tokenizer() -> None:
    sizes = [sum(w.numel() for w in load_file(folder / "model.safetensors").values()) for folder in FOLDERS]
    assert 2e6 < sizes[0] < 8e6
    assert sizes[1] * 4 < sizes[0]
    model, draft = ((folder / "tokenizer.json").read_bytes() for folder in FOLDERS)
    assert model == draft


@given(st.text())
def test_the_tokenizer_can_write_anything(text: str) -> None:
    encodable = text.encode("utf-8", "ignore").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(encodable, add_special_tokens=False).ids, False) == encodable


def test_digits_stand_alone() -> None:
    assert len(TOKENIZER.encode("1234567").ids) == 7


@pytest.mark.parametrize("count", [12, *slow(120)])
def test_it_answers_held_out_questions(count: int) -> None:
    """A sample of what the card reports; ``python -m engine.demo.evaluate`` is the whole."""
    model, tokenizer = evaluate.load(FOLDERS[0])
    exam = [c for c in corpus.exam(0, 400) if c.kind not in ("stories", "lists")][:count]
    received = evaluate.answers(model, tokenizer, exam)
    right = sum(a == conversation.turns[-1][1] for a, conversation in zip(received, exam, strict=True))
    assert right / len(exam) >= 0.9


def test_training_is_reproducible(tmp_path: Path) -> None:
    shape = Shape(vocab=600, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=48, head_dim=16)
    recipe = train.Recipe(steps=3, peak=1e-3, rows=2, length=32, warmup=1)
    tokenizer = tokens.train(train.texts(0, 300), 600)
    same, again, other = (
        train.learn(shape, recipe, tokenizer, seed, folder=tmp_path / str(run)).state_dict()
        for run, seed in enumerate((7, 7, 8))
    )
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert not all(torch.equal(same[name], other[name]) for name in same)
