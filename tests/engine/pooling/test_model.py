"""Vectors and scores beside sentence-transformers and transformers, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModelForSequenceClassification, Qwen3ForCausalLM

from engine.errors import UnsupportedModel
from engine.pooling.model import PoolingModel
from engine.pooling.spec import find_spec
from tests.engine.models.hub import LATENT
from tests.engine.pooling.encoders import decoder, encoder, modules, write
from tests.engine.tiny import make_tokenizer

TEXTS = ["cat", "the dog runs", "lorem ipsum dolor sit amet " * 8, "who is a cat ?", "the cat", "dog " * 40]


def load(folder: Path, **options: Any) -> PoolingModel:
    spec = find_spec(folder, options.pop("task", "auto"))
    assert spec is not None
    return PoolingModel(folder, spec, torch.device("cpu"), torch.float32, **options)


def check_vectors(folder: Path) -> None:
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    ours = load(folder)
    limit = theirs.max_seq_length
    cut = [theirs.tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in TEXTS]
    batched = ours.run(cut, [len(row) for row in cut], [None] * len(cut))
    for text, row, vector in zip(TEXTS, cut, batched, strict=True):
        (alone,) = ours.run([row], [len(row)], [None])
        assert torch.equal(alone, vector), "a vector does not depend on the batch"
        torch.testing.assert_close(vector, torch.from_numpy(theirs.encode(text)), atol=1e-4, rtol=1e-4)
    together = torch.from_numpy(theirs.encode(TEXTS))
    torch.testing.assert_close(torch.stack(batched), together, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "kind", ["BertModel", "BertForMaskedLM", "RobertaModel", "XLMRobertaModel", "ModernBertModel"]
)
@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_an_encoders_vectors(tmp_path: Path, kind: str, mode: str) -> None:
    check_vectors(modules(encoder(tmp_path, kind), mode, "Normalize"))


@pytest.mark.parametrize("mode", ["max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"])
def test_other_poolings(tmp_path: Path, mode: str) -> None:
    check_vectors(modules(encoder(tmp_path), mode))


def test_dense_layers_behind_the_pooling(tmp_path: Path) -> None:
    folder = modules(encoder(tmp_path), "cls", "Dense", "Normalize")
    tanh = "torch.nn.modules.activation.Tanh"
    write(
        folder / "2_Dense" / "config.json",
        {"in_features": 32, "out_features": 12, "bias": True, "activation_function": tanh},
    )
    weights = {"linear.weight": torch.randn(12, 32) * 0.3, "linear.bias": torch.randn(12)}
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    check_vectors(folder)


@pytest.mark.parametrize("prefixless", [True, False], ids=["no-prefix", "prefix"])
def test_a_decoders_vectors(tmp_path: Path, prefixless: bool) -> None:
    check_vectors(modules(decoder(tmp_path, prefixless=prefixless), "lasttoken", "Normalize"))


def test_a_decoder_with_windows_and_capped_scores(tmp_path: Path) -> None:
    check_vectors(modules(decoder(tmp_path, "Gemma2ForCausalLM", sliding_window=8), "lasttoken"))


def test_a_decoder_over_latents(tmp_path: Path) -> None:
    check_vectors(modules(decoder(tmp_path, "YoutuForCausalLM", **LATENT), "lasttoken"))


def test_a_folder_without_sentence_transformers_files_is_pooled_by_mean(tmp_path: Path) -> None:
    folder = encoder(tmp_path)
    spec = find_spec(folder)
    assert spec is not None and (spec.modes, spec.after) == (("mean",), ())


PAIRS = [("who is a cat ?", "the cat"), ("dog", "the dog runs " * 6), ("a dog runs", "lorem ipsum")]
CLASSIFIERS = ["BertForSequenceClassification", "XLMRobertaForSequenceClassification"]
CLASSIFIERS += ["RobertaForSequenceClassification", "ModernBertForSequenceClassification"]


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_cross_encoders_scores(tmp_path: Path, kind: str, pooling: str) -> None:
    changes: dict[str, Any] = {"num_labels": 1}
    if "Modern" in kind:
        changes["classifier_pooling"] = pooling
    elif pooling == "mean":
        pytest.skip("ModernBERT's alone")
    folder = encoder(tmp_path, kind, **changes)
    theirs, ours = CrossEncoder(str(folder), device="cpu", local_files_only=True), load(folder)
    rows, firsts = [], []
    for pair in PAIRS:
        encoded = theirs.tokenizer(*pair)
        rows.append(encoded["input_ids"])
        types = encoded.get("token_type_ids") or [0] * len(rows[-1])
        firsts.append(types.index(1) if 1 in types else len(types))
    logits = torch.cat(ours.run(rows, firsts, [None] * len(rows)))
    alone = torch.cat([ours.run([row], [first], [None])[0] for row, first in zip(rows, firsts, strict=True)])
    torch.testing.assert_close(alone, logits, atol=1e-6, rtol=1e-6)
    expected = torch.from_numpy(theirs.predict(PAIRS))
    torch.testing.assert_close(logits.sigmoid(), expected, atol=1e-4, rtol=1e-4)


def test_a_decoder_with_a_classifier(tmp_path: Path) -> None:
    folder = decoder(tmp_path, "Qwen3ForSequenceClassification", num_labels=1, pad_token_id=0)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = [[5, 9, 14, 1], [7, 8, 3, 2, 11, 4, 1]]
    logits = torch.cat(load(folder).run(rows, [4, 7], [None] * 2))
    with torch.no_grad():
        expected = torch.cat([theirs(torch.tensor([row])).logits[0] for row in rows])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own-head"])
@pytest.mark.parametrize("source", ["vllm", "logit-score"])
def test_a_reranker_that_answers_yes_or_no(tmp_path: Path, tied: bool, source: str) -> None:
    folder = decoder(tmp_path, tie_word_embeddings=tied)
    theirs = Qwen3ForCausalLM.from_pretrained(folder).eval()
    tokenizer = make_tokenizer()
    yes, no = (tokenizer.token_to_id(letter) for letter in "IJ")
    if source == "logit-score":
        modules(folder, None, "LogitScore")
        write(folder / "1_LogitScore" / "config.json", {"true_token_id": yes, "false_token_id": no})
    else:
        config = json.loads((folder / "config.json").read_text())
        write(folder / "config.json", {**config, "classifier_from_token": ["J", "I"]})
    rows = [[5, 9, 14], [7, 8, 3, 2, 11]]
    logits = torch.cat(load(folder).run(rows, [3, 5], [None] * 2))
    with torch.no_grad():
        last = [theirs(torch.tensor([row])).logits[0, -1] for row in rows]
    expected = torch.stack([one[yes] - one[no] for one in last])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_sizes_cut_a_vector_and_keep_its_length(tmp_path: Path) -> None:
    model = load(modules(encoder(tmp_path), "mean", "Normalize"))
    (whole,), (cut,) = (model.run([[2, 6, 7, 3]], [4], [size]) for size in (None, 8))
    assert cut.norm() == pytest.approx(1.0)
    torch.testing.assert_close(cut, whole[:8] / whole[:8].norm())


def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="2 labels"):
        find_spec(encoder(tmp_path / "two", "BertForSequenceClassification", num_labels=2))
    folder = modules(encoder(tmp_path / "modules"), "mean", "WordWeights")
    with pytest.raises(UnsupportedModel, match="WordWeights"):
        find_spec(folder)
    with pytest.raises(UnsupportedModel, match="no head that scores pairs"):
        find_spec(encoder(tmp_path / "plain"), "score")
    with pytest.raises(UnsupportedModel, match="is_causal"):
        find_spec(decoder(tmp_path / "both", is_causal=False), "embed")
    with pytest.raises(UnsupportedModel, match="makes no sense"):
        find_spec(encoder(tmp_path / "odd", matryoshka_dimensions=["x"]))
    with pytest.raises(UnsupportedModel, match="yes or no those of Qwen3"):
        find_spec(decoder(tmp_path / "gemma", "Gemma2ForCausalLM"), "score")
    assert find_spec(decoder(tmp_path / "text")) is None
    folder = encoder(tmp_path / "other")
    write(folder / "config.json", {"architectures": ["MPNetModel"]})
    with pytest.raises(UnsupportedModel, match="MPNet"):
        load(folder)
