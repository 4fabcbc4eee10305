"""The demo model's tokenizer and chat template, in Hugging Face's file layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.demo.corpus import Conversation
from engine.demo.corpus.tools import shown

BOS, SYSTEM, USER, ASSISTANT, END, TOOL, PAD = (
    f"<|{name}|>" for name in ("bos", "system", "user", "assistant", "end", "tool", "pad")
)
SPECIAL = [BOS, SYSTEM, USER, ASSISTANT, END, TOOL, PAD, *(f"<|reserved_{i}|>" for i in range(9))]

FORCED = '<tool_call>\n{"name": "'
"""What a grammar writes where a call is demanded."""

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}{%- for part in content -%}{%- if part.type == 'text' -%}{{- part.text -}}
{%- else -%}{{- raise_exception('The demo model reads text only, not parts of type ' + part.type) -}}
{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- macro kind(schema) -%}
{%- if schema is not mapping -%}any
{%- elif schema.enum -%}{{- schema.enum[:8] | join('|') -}}
{%- elif schema.type is string -%}{{- schema.type -}}
{%- elif schema.type -%}{{- schema.type | join('|') -}}
{%- else -%}any{%- endif -%}
{%- endmacro -%}
{%- macro signature(function) -%}
{%- set wanted = (function.parameters or {}).required or [] -%}
{{- function.name + '(' -}}
{%- for name, schema in ((function.parameters or {}).properties or {}).items() -%}
{{- name + ('' if name in wanted else '?') + ': ' + kind(schema) + ('' if loop.last else ', ') -}}
{%- endfor -%}
{{- ')' -}}
{%- if function.description -%}{{- ': ' + function.description.strip().split('\\n')[0][:80] -}}{%- endif -%}
{%- endmacro -%}
{%- macro listed(tools) -%}
{{- 'Tools:' -}}{%- for tool in tools -%}{{- '\\n' + signature(tool.function) -}}{%- endfor -%}
{%- endmacro -%}
{%- macro called(call) -%}
{%- set arguments = call.function.arguments -%}
{{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' -}}
{{- arguments if arguments is string else arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endmacro -%}
{{- '<|bos|>' -}}
{%- set leads = messages and messages[0].role in ('system', 'developer') -%}
{%- if tools and not leads -%}{{- '<|system|>' + listed(tools) + '<|end|>' -}}{%- endif -%}
{%- for message in messages -%}
{%- set role = 'system' if message.role == 'developer' else message.role -%}
{%- if role not in ('system', 'user', 'assistant', 'tool') -%}
{{- raise_exception('Unknown role ' + message.role + ': use system, developer, user, assistant or tool') -}}
{%- endif -%}
{{- '<|' + role + '|>' + text(message.content) -}}
{%- if tools and leads and loop.first -%}{{- '\\n\\n' + listed(tools) -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- ('\\n' if message.content or not loop.first else '') + called(call) -}}
{%- endfor -%}
{{- '<|end|>' -}}
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
        tokens, weights = self._opening(what)
        for i, (question, answer) in enumerate(what.turns):
            self._add(tokens, weights, TOOL if i in what.results else USER, question, self._context_weight)
            if answer:
                self._add(tokens, weights, ASSISTANT, answer, 1.0)
        if what.forced:
            given = len(self._tokenizer.encode(FORCED).ids)
            begin = len(tokens) - len(self._tokenizer.encode(what.turns[-1][1]).ids) - 1
            weights[begin : begin + given] = [0.0] * given
        return tokens, weights

    def prompt(self, what: Conversation) -> list[int]:
        """All but the last answer: what the model is asked."""
        before = replace(what, turns=what.turns[:-1], forced=False)
        tokens, weights = self.encode(before)
        role = TOOL if len(what.turns) - 1 in what.results else USER
        self._add(tokens, weights, role, what.turns[-1][0], 0.0)
        return [*tokens, self.ids[ASSISTANT]]

    def _opening(self, what: Conversation) -> tuple[list[int], list[float]]:
        tokens, weights = [self.ids[BOS]], [0.0]
        if what.system is not None or what.tools:
            tools = shown(what.tools) if what.tools else None
            text = "\n\n".join(part for part in (what.system, tools) if part is not None)
            self._add(tokens, weights, SYSTEM, text, self._context_weight)
        return tokens, weights

    def _add(self, tokens: list[int], weights: list[float], role: str, text: str, weight: float) -> None:
        ids = [*self._tokenizer.encode(text).ids, self.ids[END]]
        tokens += [self.ids[role], *ids]
        weights += [0.0, *[weight] * len(ids)]
