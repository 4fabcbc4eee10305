"""A tiny random Llama with a byte-level tokenizer, in the layout that checkpoints come in."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SHAPE["vocab_size"],
        special_tokens=["<|bos|>", "<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    assert tokenizer.get_vocab_size() == SHAPE["vocab_size"]
    return tokenizer


def make_weights(shape: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    """Large enough for attention to matter: with small weights every token would look like the last."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * (1.5 / size[-1] ** 0.5)

    hidden, width, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    weights = {"model.embed_tokens.weight": random(shape["vocab_size"], hidden) * 4}
    for i in range(shape["num_hidden_layers"]):
        name = f"model.layers.{i}"
        weights |= {
            f"{name}.self_attn.q_proj.weight": random(heads * dim, hidden),
            f"{name}.self_attn.k_proj.weight": random(kv_heads * dim, hidden),
            f"{name}.self_attn.v_proj.weight": random(kv_heads * dim, hidden),
            f"{name}.self_attn.o_proj.weight": random(hidden, heads * dim),
            f"{name}.mlp.gate_proj.weight": random(width, hidden),
            f"{name}.mlp.up_proj.weight": random(width, hidden),
            f"{name}.mlp.down_proj.weight": random(hidden, width),
            f"{name}.input_layernorm.weight": 1 + 0.1 * random(hidden),
            f"{name}.post_attention_layernorm.weight": 1 + 0.1 * random(hidden),
        }
    weights["model.norm.weight"] = 1 + 0.1 * random(hidden)
    if not shape["tie_word_embeddings"]:
        head = random(shape["vocab_size"], hidden) * 2
        # Bytes that are no characters are seldom said, and the end never is: its logit is 0.
        head[[i for i in range(256) if i < 2 or i > 95]] *= 0.3
        head[SHAPE["eos_token_id"]] = 0
        weights["lm_head.weight"] = head
    return weights


def write_model(folder: Path, shape: dict = SHAPE, *, template: str | None = CHAT_TEMPLATE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    save_file(make_weights(shape), folder / "model.safetensors")
    return folder
