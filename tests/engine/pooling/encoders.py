"""Tiny random encoders, rerankers and embedding decoders as transformers and sentence-transformers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel

from tests.engine.tiny import make_tokenizer

WORDS = [
    "lorem",
    "ipsum",
    "dolor",
    "sit",
    "amet",
    "cat",
    "dog",
    "runs",
    "a",
    "the",
    "is",
    "who",
    "?",
    "yes",
    "no",
]
VOCAB = 64
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
DECODER = {
    **SMALL,
    "vocab_size": 320,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def word_tokenizer(*, roberta: bool = False) -> Tokenizer:
    """One token a word; ``[CLS] a [SEP]`` and ``[CLS] a [SEP] b [SEP]``, or as RoBERTa has them."""
    special = ["<s>", "<pad>", "</s>", "<unk>"] if roberta else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    begin, end, unknown = ("<s>", "</s>", "<unk>") if roberta else ("[CLS]", "[SEP]", "[UNK]")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1) if chr(code) not in WORDS]
    vocabulary = {word: at for at, word in enumerate([*special, *WORDS, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = [(begin, vocabulary[begin]), (end, vocabulary[end])]
    pair = f"{begin} $A {end} {end} $B {end}" if roberta else f"{begin} $A {end} $B:1 {end}:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=pair, special_tokens=ids
    )
    return tokenizer


def save(folder: Path, model: PreTrainedModel, tokenizer: Tokenizer, **settings: Any) -> Path:
    """``settings`` are those of tokenizer_config.json."""
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    return folder


def random_model(kind: str, seed: int = 0, **options: Any) -> PreTrainedModel:
    """Of the class ``kind``, with weights large enough for every part to matter."""
    torch.manual_seed(seed)
    cls = getattr(transformers, kind)
    config = cls.config_class(**options)
    model = cls(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            scale = 0.2 if weight.ndim == 1 else 1.5 / weight.shape[-1] ** 0.5
            weight.copy_(noise * scale + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0))
    return model


BERT = {**SMALL, "max_position_embeddings": 64}
ROBERTA = {**SMALL, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0}
MODERN = {**SMALL, "max_position_embeddings": 64, "local_attention": 8, "pad_token_id": 0, "cls_token_id": 2}
MODERN |= {"bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}


def encoder(folder: Path, kind: str = "BertModel", **changes: Any) -> Path:
    roberta = "Roberta" in kind
    options = ROBERTA if roberta else MODERN if "Modern" in kind else BERT
    model = random_model(kind, **{**options, **changes})
    settings: dict[str, Any] = {"pad_token": "<pad>" if roberta else "[PAD]"}
    if kind.startswith("Bert"):
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return save(folder, model, word_tokenizer(roberta=roberta), **settings)


def decoder(
    folder: Path, kind: str = "Qwen3ForCausalLM", *, prefixless: bool = False, **changes: Any
) -> Path:
    """``prefixless``: tensors named without ``model.`` and without a head, as Qwen3-Embedding's are."""
    model = random_model(kind, **{**DECODER, **changes})
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="$A <|eos|>", pair="$A $B <|eos|>", special_tokens=[("<|eos|>", 1)]
            ),
        ]
    )
    save(folder, model.model if prefixless else model, tokenizer, eos_token="<|eos|>", pad_token="<|bos|>")
    if prefixless:
        config = json.loads((folder / "config.json").read_text())
        write(folder / "config.json", {**config, "architectures": [kind]})
    return folder


def modules(folder: Path, mode: str | None, *more: str, **lengths: Any) -> Path:
    """Writes sentence-transformers' files: ``mode`` of pooling, and ``Normalize``, if it is among ``more``."""
    named = ["Transformer", *(["Pooling"] if mode else []), *more]
    write(
        folder / "modules.json",
        [
            {
                "idx": at,
                "name": str(at),
                "path": "" if at == 0 else f"{at}_{name}",
                "type": f"sentence_transformers.models.{name}",
            }
            for at, name in enumerate(named)
        ],
    )
    for at, name in enumerate(named):
        if at:
            (folder / f"{at}_{name}").mkdir(exist_ok=True)
    if mode:
        width = json.loads((folder / "config.json").read_text())["hidden_size"]
        write(
            folder / "1_Pooling" / "config.json",
            {
                "word_embedding_dimension": width,
                "pooling_mode_cls_token": mode == "cls",
                "pooling_mode_mean_tokens": mode == "mean",
                "pooling_mode_max_tokens": mode == "max",
                "pooling_mode_lasttoken": mode == "lasttoken",
                "pooling_mode_weightedmean_tokens": mode == "weightedmean",
                "pooling_mode_mean_sqrt_len_tokens": mode == "mean_sqrt_len_tokens",
            },
        )
    write(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False, **lengths})
    return folder


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))
