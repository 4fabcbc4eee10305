from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import ModelUnavailable
from engine.server.tokenizer import Tokenizer


def test_text_goes_there_and_back_without_special_tokens(tiny_model: Path) -> None:
    tokenizer = Tokenizer(tiny_model)
    ids = tokenizer.encode("the lazy dög<|eos|>", special=True)
    assert ids[-1] == 1
    assert tokenizer.decode(ids) == "the lazy dög"


def test_all_places_that_name_an_end_count(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    assert Tokenizer(tmp_path).stop_ids == frozenset()
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|eos|>"}}))
    assert Tokenizer(tmp_path).stop_ids == {7, 8, 9, 1}


def test_special_tokens_are_known_by_their_roles_wherever_they_stand(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    settings = {"bos_token": "<|bos|>", "eos_token": None, "pad_token": {"content": "<|eos|>"}, "extra": 5}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    legacy = {"unk_token": {"content": "<unk>"}, "eos_token": "<|eos|>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(legacy))
    tokenizer = Tokenizer(tmp_path)
    roles = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<unk>", "pad_token": "<|eos|>"}
    assert tokenizer.roles == roles
    assert (tokenizer.bos, tokenizer.eos) == ("<|bos|>", "<|eos|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": {}}))
    assert Tokenizer(tmp_path).roles == {"bos_token": "<|bos|>", "pad_token": "<|eos|>"}


def test_a_limit_from_training_does_not_cut_prompts(tiny_model: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as RustTokenizer

    rust = RustTokenizer.from_file(str(tiny_model / "tokenizer.json"))
    rust.enable_truncation(4)
    rust.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer(tmp_path).encode("zzzzzzzzzz", special=True)) == 10


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_broken_configuration_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelUnavailable, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer(tmp_path)


def test_special_tokens_show_where_they_are_asked_for(tiny_model: Path) -> None:
    tokenizer = Tokenizer(tiny_model)
    ids = [*tokenizer.encode("bal", special=False), 0, 1, *tokenizer.encode("del", special=False)]
    assert tokenizer.decode(ids) == "baldel"
    assert tokenizer.showing(["<|bos|>", "<none>", "bal"])(ids) == "bal<|bos|>del"
    assert tokenizer.showing(["<none>"])(ids) == "baldel"


def test_a_grammar_says_a_marker_by_number_if_it_is_a_token(tiny_model: Path) -> None:
    tokenizer = Tokenizer(tiny_model)
    assert tokenizer.marker("<|bos|>") == "<[0]>"
    assert tokenizer.marker("<tool_call>") == '"<tool_call>"'
