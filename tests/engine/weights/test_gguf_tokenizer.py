"""Tokenizers out of GGUF files give the ids of those that were put in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.errors import UnsupportedModel
from engine.server.tokenizer import Tokenizer as ServedTokenizer
from engine.weights.gguf import Gguf
from engine.weights.gguf_tokenizer import _PRE, Vocabulary
from tests.engine.weights.gguf_files import add
from tests.examples import examples

TEXT = [
    "The quick brown fox jumps over the lazy dog, and the 12345 dogs don't care. We'll see! I'M HERE\n\n",
    "def f(x):\n    return x ** 2 + 31.5  # très bien, schön, 日本語, emoji 🎉\r\n\t\tend",
    " spaces   in    a     row; camelCase HTTPServer /path/to/file.txt $100",
]
# Published with Llama 3 and Qwen2.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TYPES = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6}
texts = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from([*" ".join(TEXT).split(" "), " ", "  ", "\n", "<|end|>", "<s>"]), max_size=12
    ).map("".join),
)


def byte_level(pre: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    cut = {"llama-bpe": LLAMA3, "qwen2": QWEN2}.get(pre)
    if cut:
        split = pre_tokenizers.Split(Regex(cut), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def sentence_pieces(prefix: bool) -> tuple[Tokenizer, dict[str, Any]]:
    """As Llama 2's (with a space put before a text) and Gemma's (without), and what a file would say of it."""
    specials = ["<unk>", "<s>", "</s>"]
    steps = [normalizers.Replace(" ", "▁")]
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.insert(0, normalizers.Prepend("▁"))
        ends.append(decoders.Strip(" ", 1, 0))
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence(steps)
    learner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learner.train_from_iterator(
        [text[:80] for text in TEXT], trainers.BpeTrainer(vocab_size=300, show_progress=False)
    )
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    # Pieces are numbered in the order in which they were merged; single characters come last, as there.
    pieces = [piece for piece, _ in learnt if len(piece) > 1]
    letters = [piece for piece, _ in learnt if len(piece) == 1]
    tokens = [*specials, *(f"<0x{i:02X}>" for i in range(256)), *pieces, *letters]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(pieces) + len(letters))]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [-1e4 - i for i in range(len(letters))]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    whole = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    whole.normalizer = normalizers.Sequence(steps)
    whole.decoder = decoders.Sequence(ends)
    whole.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    received = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "add_space_prefix": prefix,
    }
    return whole, received


def described(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    kinds = [3 if token == "<|end|>" else 4 if token == "<tool>" else 1 for token, _ in vocabulary]
    tokens = [token for token, _ in vocabulary] + ["[PAD0]", "[PAD1]"]
    merges = [" ".join(pair) for pair in model["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [*kinds, 5, 5], "merges": merges}


def write(path: Path, received: dict[str, Any], architecture: str = "llama", **other: Any) -> Gguf:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in received.items():
        add(writer, f"tokenizer.ggml.{key}", value)
    for key, value in other.items():
        add(writer, key.replace("__", "."), value)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Gguf(path)


def read(file: Gguf) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(Vocabulary(file).tokenizer_json()))


class Pair:
    """An original and what came out of its file, for each kind of tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.pairs: dict[str, tuple[Tokenizer, Tokenizer]] = {}
        for pre in ("gpt-2", "llama-bpe", "qwen2"):
            original = byte_level(pre)
            received = described(original, pre) | {"add_bos_token": False}
            self.pairs[pre] = original, read(write(folder / f"{pre}.gguf", received))
        for name, prefix in (("llama", True), ("gemma", False)):
            original, received = sentence_pieces(prefix)
            self.pairs[name] = original, read(write(folder / f"{name}.gguf", received))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2", "llama", "gemma"])
@given(text=texts)
@example(text=" ".join(TEXT))
@example(text="<|end|>a <tool>b</s> <s>")
@example(text="é and é, ﬁ, 1234567, don'T, \x00\u2028  \n \r\n")
@settings(max_examples=examples(150), deadline=None)
def test_ids_are_those_of_the_original(pairs: Pair, kind: str, text: str) -> None:
    original, ours = pairs.pairs[kind]
    expected = original.encode(text, add_special_tokens=False).ids
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == expected
    assert ours.decode(ids) == original.decode(expected)


@pytest.mark.parametrize("pre", list(_PRE))
def test_every_way_to_cut_gives_the_text_back(tmp_path: Path, pre: str) -> None:
    original = byte_level("gpt-2")
    tokenizer = read(write(tmp_path / "m.gguf", described(original, pre)))
    for text in TEXT:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    cuts = [part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str("abc123456 don't")]
    digits = {"qwen2": 1, "deepseek-r1-qwen": 1, "smollm": 1, "tekken": 1, "gpt-2": 6}.get(pre, 3)
    assert max(len(part) for part in cuts if part.isdigit()) == digits


def test_special_ids_template_and_ends_are_in_the_other_files(tmp_path: Path) -> None:
    _, received = sentence_pieces(True)
    received["tokens"] += ["<|eot_id|>", "<|user|>"]
    received["token_type"] += [3, 4]
    received["scores"] += [0.0, 0.0]
    received |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "padding_token_id": 2}
    file = write(tmp_path / "m.gguf", received, tokenizer__chat_template="{{ messages }}")
    vocabulary = Vocabulary(file)
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary.tokenizer_json()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(vocabulary.tokenizer_config()))
    (tmp_path / "generation_config.json").write_text(json.dumps(vocabulary.generation_config()))
    tokenizer = ServedTokenizer(tmp_path)
    end = len(received["tokens"]) - 2
    assert (tokenizer.bos, tokenizer.eos, tokenizer.stop_ids) == ("<s>", "</s>", frozenset({2, end}))
    assert tokenizer.settings["chat_template"] == "{{ messages }}"
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    assert tokenizer.roles == roles
    plain = tokenizer.encode("The fox", special=False)
    assert tokenizer.encode("The fox", special=True) == [1, *plain], "a bare prompt begins with <s>"
    assert tokenizer.encode("<|user|><|eot_id|>", special=False) == [end + 1, end]
    assert tokenizer.decode([end + 1, end]) == "<|user|>", "user-defined tokens show, control tokens do not"


@pytest.mark.parametrize(
    ("added", "begins"), [({}, True), ({"add_bos_token": False}, False), ({"pre": "qwen2"}, False)]
)
def test_a_bare_prompt_begins_as_the_file_or_its_kind_says(
    tmp_path: Path, added: dict[str, Any], begins: bool
) -> None:
    received = described(byte_level("llama-bpe"), "llama-bpe") | {"bos_token_id": 5} | added
    assert (read(write(tmp_path / "m.gguf", received)).encode("a").ids[0] == 5) == begins


def test_phi_3s_marks_swallow_the_space_after_them(tmp_path: Path) -> None:
    _, received = sentence_pieces(True)
    received["tokens"].append("<|user|>")
    received["token_type"].append(4)
    received["scores"].append(0.0)
    for architecture, same in (("phi3", True), ("llama", False)):
        tokenizer = read(write(tmp_path / f"{architecture}.gguf", received, architecture))
        ids = [tokenizer.encode(text).ids for text in ("<|user|>\nfox", "<|user|>fox")]
        assert (ids[0] == ids[1]) == same


@pytest.mark.parametrize(
    ("received", "message"),
    [
        ({"model": "t5", "tokens": ["a"]}, "of the kind 't5'; 'gpt2' and 'llama'"),
        ({}, "'\\(none\\)'"),
        ({"model": "gpt2", "tokens": ["a"], "pre": "viking"}, "cuts texts by 'viking'; .*llama-bpe"),
        ({"model": "llama", "tokens": ["a"]}, "lacks the scores"),
    ],
)
def test_another_tokenizer_is_refused_by_name_with_advice(
    tmp_path: Path, received: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message + ".*own tokenizer.json beside"):
        read(write(tmp_path / "m.gguf", received))
