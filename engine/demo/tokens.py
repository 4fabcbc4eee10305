"""The demo model's tokenizer and chat template, in Hugging Face's file layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.demo.corpus import Conversation

BOS, SYSTEM, USER, ASSISTANT, END, TOOL, PAD = (
    f"<|{name}|>" for name in ("bos", "system", "user", "assistant", "end", "tool", "pad")
)
SPECIAL = [BOS, SYSTEM, USER, ASSISTANT, END, TOOL, PAD, *(f"<|reserved_{i}|>" for i in range(9))]

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}{%- for part in content -%}{%- if part.type == 'text' -%}{{- part.text -}}
{%- else -%}{{- raise_exception('The demo model reads text only, not parts of type ' + part.type) -}}
{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{- '<|bos|>' -}}
{%- for message in messages -%}
{%- set role = 'system' if message.role == 'developer' else message.role -%}
{%- if role not in ('system', 'user', 'assistant', 'tool') -%}
{{- raise_exception('Unknown role ' + message.role + ': use system, developer, user, assistant or tool') -}}
{%- endif -%}
{{- '<|' + role + '|>' + text(message.content) + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""


def train(texts: Iterator[str], vocab: int) -> Tokenizer:
    """A byte-level BPE, in which any text can be written; digits stand alone, so that sums can be learned."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


class Encoder:
    """Conversations and texts as token ids, each with the weight that its prediction has in the loss."""

    def __init__(self, tokenizer: Tokenizer, *, context_weight: float = 0.1) -> None:
        self._tokenizer = tokenizer
        self._context_weight = context_weight
        self.ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}

    def encode(self, what: Conversation | str) -> tuple[list[int], list[float]]:
        if isinstance(what, str):
            tokens = [self.ids[BOS], *self._tokenizer.encode(what).ids, self.ids[END]]
            return tokens, [0.0] + [1.0] * (len(tokens) - 1)
        tokens, weights = [self.ids[BOS]], [0.0]
        if what.system is not None:
            self._add(tokens, weights, SYSTEM, what.system, self._context_weight)
        for question, answer in what.turns:
            self._add(tokens, weights, USER, question, self._context_weight)
            self._add(tokens, weights, ASSISTANT, answer, 1.0)
        return tokens, weights

    def prompt(self, what: Conversation) -> list[int]:
        """All but the last answer: what the model is asked."""
        tokens, _ = self.encode(Conversation(what.kind, what.turns[:-1], what.system))
        self._add(tokens, [], USER, what.turns[-1][0], 0.0)
        return [*tokens, self.ids[ASSISTANT]]

    def _add(self, tokens: list[int], weights: list[float], role: str, text: str, weight: float) -> None:
        said = [*self._tokenizer.encode(text).ids, self.ids[END]]
        tokens += [self.ids[role], *said]
        weights += [0.0, *[weight] * len(said)]
